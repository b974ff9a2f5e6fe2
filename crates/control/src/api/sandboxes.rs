//! The sandboxes there are, and how Belljar itself does.

use std::time::Duration;

use causes::with_causes;
use domain::{SandboxId, SessionId, Timestamp, ToolCall, ToolCallId, ToolResult};
use futures::StreamExt;
use sandbox::{ImageStatus, ProviderError, SandboxState, SandboxStatus, SandboxUsage};
use serde::Serialize;
use serde_json::json;
use store::{Asker, AuditEntry};
use telemetry::Figures;
use tokio::time::{Instant, timeout};

use crate::housing::SIDE_BY_SIDE;
use crate::housing::meters::TransitionFigures;
use crate::{Control, ControlError};

/// How long a part may take to answer before it counts as down.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Why a sandbox is gone that an operator removed.
const BY_HAND: &str = "it was removed by hand: its processes are gone, its files are kept";

/// The longest command that an operator may run, in bytes.
const LONGEST_COMMAND: usize = 64 << 10;

/// A sandbox, and what it takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SandboxEntry {
    /// How it is.
    pub status: SandboxStatus,
    /// What it takes; none where it is dead.
    pub usage: Option<SandboxUsage>,
    /// It was made ahead, and is nobody's yet.
    pub warm: bool,
    /// The image that it was made from, where the provider still has it.
    pub image: Option<ImageStatus>,
    /// When it was last used; none where nobody here uses it.
    pub last_used: Option<Timestamp>,
    /// Until when programs in the background keep it awake, where they do.
    pub kept_until: Option<Timestamp>,
}

impl SandboxEntry {
    /// Why it is dead, where it is.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match &self.status.state {
            SandboxState::Dead { reason } => Some(reason),
            SandboxState::Running | SandboxState::Frozen => None,
        }
    }
}

/// What became of all sandboxes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct RemovedSandboxes {
    /// Those that are gone.
    pub removed: usize,
    /// Those that could not be removed.
    pub left: usize,
    /// Runs that were under way, and go on in new ones.
    pub runs: usize,
}

/// How sandboxes do, for those who watch an installation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SandboxFigures {
    /// Sandboxes of sessions whose processes run.
    pub running: usize,
    /// Sandboxes of sessions whose processes stand still.
    pub frozen: usize,
    /// Those that were made ahead and wait for a session.
    pub warm: usize,
    /// Those that were made ahead and died, or hung, before a session came.
    pub warm_died: u64,
    /// How each step in the life of sandboxes went.
    pub transitions: Vec<TransitionFigures>,
}

/// How Belljar does. A part that is well has no words.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Health {
    /// What is wrong with the store.
    pub store: Option<String>,
    /// What is wrong with the sandbox provider.
    pub sandboxes: Option<String>,
    /// Runs under way.
    pub runs: usize,
}

impl Control {
    /// Every sandbox.
    ///
    /// # Errors
    /// The one who asks is no admin; the provider cannot be reached.
    pub async fn sandboxes(&self, asker: Asker) -> Result<Vec<SandboxEntry>, ControlError> {
        only_admins(asker, "list sandboxes")?;
        let provider = &self.0.housing.provider;
        let (listed, images) = tokio::join!(provider.list(), provider.images());
        // Without them less is known of each.
        let images = images.unwrap_or_default();
        let mut entries = Vec::new();
        for status in listed.map_err(provided)? {
            let usage = provider.usage(status.id).await.ok();
            let used = self.0.housing.resident(status.id).map(|resident| resident.usage);
            entries.push(SandboxEntry {
                warm: self.0.housing.warm.has(status.id),
                last_used: used.as_ref().map(|usage| ago(usage.last())),
                kept_until: used.and_then(|usage| usage.kept_until()).map(ahead),
                image: images.iter().find(|image| image.digest == status.image).cloned(),
                status,
                usage,
            });
        }
        Ok(entries)
    }

    /// The last words of a sandbox's runtime. They come out of the sandbox: show them, believe nothing. Audited.
    ///
    /// # Errors
    /// The one who asks is no admin; there is no such sandbox; the provider cannot be reached.
    pub async fn sandbox_words(&self, asker: Asker, sandbox: SandboxId) -> Result<String, ControlError> {
        only_admins(asker, "read what sandboxes say")?;
        let provider = &self.0.housing.provider;
        provider.status(sandbox).await.map_err(provided)?;
        self.audit_sandbox(asker, "sandbox.logs", sandbox).await?;
        provider.words(sandbox).await.map_err(provided)
    }

    /// Writes down what an admin is about to do with a sandbox, of whichever session.
    async fn audit_sandbox(&self, asker: Asker, action: &str, sandbox: SandboxId) -> Result<(), ControlError> {
        let entry = self.sandbox_entry(action, sandbox);
        Ok(self.0.store.audit(asker, vec![entry]).await?)
    }

    fn sandbox_entry(&self, action: &str, sandbox: SandboxId) -> AuditEntry {
        let detail = json!({ "sandbox": sandbox });
        match self.0.housing.session_of(sandbox) {
            Some(live) => AuditEntry::about(action, live.session, detail),
            None => AuditEntry::new(action, format!("sandbox:{sandbox}"), detail),
        }
    }

    /// Runs one program that only looks in a session's sandbox, as the user and as the agent's `safebash` would. Audited.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks, who is no admin; no sandbox.
    pub async fn run_in_sandbox(
        &self,
        asker: Asker,
        session: SessionId,
        command: &str,
    ) -> Result<ToolResult, ControlError> {
        let live = self.live(asker, session).await?;
        only_admins(asker, "run commands in sandboxes")?;
        if command.trim().is_empty() || command.len() > LONGEST_COMMAND {
            return Err(ControlError::Invalid(format!(
                "a command has 1 to {LONGEST_COMMAND} bytes: a program and its arguments"
            )));
        }
        let entry = AuditEntry::about("sandbox.exec", session, json!({ "command": command }));
        // Nothing runs before both are done.
        let (stay, audited) = tokio::join!(self.house(&live), self.0.store.audit(asker, vec![entry]));
        let stay = stay?;
        audited?;
        let call = ToolCall {
            id: ToolCallId(format!("operator-{}", SandboxId::new())),
            name: "safebash".to_owned(),
            input: json!({ "command": command }),
        };
        let ran = stay.linked.call(call, self.0.config.limits).await;
        ran.map_err(|error| ControlError::Unavailable(error.to_string()))
    }

    /// How sandboxes do.
    #[must_use]
    pub fn sandbox_figures(&self) -> SandboxFigures {
        let housing = &self.0.housing;
        let (running, frozen) = housing.count();
        SandboxFigures {
            running,
            frozen,
            warm: housing.warm.ready(),
            warm_died: housing.warm.died(),
            transitions: housing.meters.read(),
        }
    }

    /// How many sessions have a disk with files that are kept nowhere else: they wait for the store of objects.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn sessions_behind(&self) -> Result<u64, ControlError> {
        Ok(self.0.store.count_behind(Asker::System).await?)
    }

    /// What became of spans, where traces are told.
    #[must_use]
    pub fn trace_figures(&self) -> Option<Figures> {
        self.0.traces.figures()
    }

    /// Removes a sandbox; the session's files are kept, and a run that it worked on goes on in another. Audited.
    ///
    /// # Errors
    /// The one who asks is no admin; there is no such sandbox.
    pub async fn remove_sandbox(&self, asker: Asker, sandbox: SandboxId) -> Result<(), ControlError> {
        only_admins(asker, "remove sandboxes")?;
        self.0.housing.provider.status(sandbox).await.map_err(provided)?;
        self.audit_sandbox(asker, "sandbox.remove", sandbox).await?;
        self.evict(sandbox, BY_HAND).await.map_err(provided)
    }

    /// Removes every sandbox: those of sessions, whose files are kept and whose runs go on in others, those that wait for a
    /// session, and those in which an image is built, which is tried again later. Until somebody needs one, none is made. Audited.
    ///
    /// # Errors
    /// The one who asks is no admin; the provider cannot be reached.
    pub async fn remove_sandboxes(&self, asker: Asker) -> Result<RemovedSandboxes, ControlError> {
        only_admins(asker, "remove sandboxes")?;
        let provider = &self.0.housing.provider;
        let all = provider.list().await.map_err(provided)?;
        let entries = all.iter().map(|status| self.sandbox_entry("sandbox.remove", status.id));
        self.0.store.audit(asker, entries.collect()).await?;
        let runs = self.0.dispatch.driven().len();
        self.rest().await;
        let each = futures::stream::iter(&all);
        each.for_each_concurrent(SIDE_BY_SIDE, |status| self.remove_one(status))
            .await;
        let there = provider.list().await.map_err(provided)?;
        let is_left = |status: &&SandboxStatus| there.iter().any(|still| still.id == status.id);
        let left = all.iter().filter(is_left).count();
        Ok(RemovedSandboxes {
            removed: all.len() - left,
            left,
            runs,
        })
    }

    /// Removes a sandbox of whomever; where it fails, it is there still.
    async fn remove_one(&self, status: &SandboxStatus) {
        if status.builder {
            self.try_to_clear_site(status.session).await;
        } else if let Err(error) = self.evict(status.id, BY_HAND).await
            && !matches!(error, ProviderError::NotFound(_))
        {
            tracing::warn!(sandbox = %status.id, error = with_causes(&error), "could not remove a sandbox");
        }
    }

    /// How Belljar does.
    pub async fn health(&self) -> Health {
        let store = timeout(ANSWERS_WITHIN, self.0.store.pending_runs(Asker::System, 1));
        let sandboxes = timeout(ANSWERS_WITHIN, self.0.housing.provider.list());
        let (store, sandboxes) = tokio::join!(store, sandboxes);
        let silent = || "it did not answer in time".to_owned();
        Health {
            store: match store {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(silent()),
            },
            sandboxes: match sandboxes {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(silent()),
            },
            runs: self.0.dispatch.driven().len(),
        }
    }
}

/// When this moment was, by the machine's clock.
fn ago(moment: Instant) -> Timestamp {
    let passed = i64::try_from(moment.elapsed().as_millis()).unwrap_or(i64::MAX);
    Timestamp(Timestamp::now().0.saturating_sub(passed))
}

/// When this moment will be, by the machine's clock.
fn ahead(moment: Instant) -> Timestamp {
    let left = moment.saturating_duration_since(Instant::now()).as_millis();
    Timestamp(
        Timestamp::now()
            .0
            .saturating_add(i64::try_from(left).unwrap_or(i64::MAX)),
    )
}

pub(super) fn only_admins(asker: Asker, attempt: &str) -> Result<(), ControlError> {
    if asker.is_admin() {
        return Ok(());
    }
    Err(ControlError::Denied(format!("only an admin may {attempt}")))
}

pub(super) fn provided(error: ProviderError) -> ControlError {
    match error {
        ProviderError::NotFound(id) => ControlError::NotFound {
            kind: "sandbox",
            name: id.to_string(),
        },
        ProviderError::Unavailable(_) | ProviderError::Machine { .. } => ControlError::Unavailable(error.to_string()),
        error => ControlError::internal("use its sandbox provider", error),
    }
}
