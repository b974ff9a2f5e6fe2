//! A prompt comes in, a run is stopped.

use std::sync::atomic::Ordering;

use causes::with_causes;
use domain::{
    Author, Block, Delivery, Door, ExternalKey, Message, MessageId, Role, RunId, SessionId, Timestamp, Trigger, UserId,
};
use llm::Format;
use policy::Scope;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Accepted, Asker, Ended, Joined, Prompt, Session, SessionFilter, StoreError, Target};

use tokio::time::Instant;

use crate::api::USER_REMOVED;
use crate::live::{Active, Live, Writing, lock};
use crate::rights::settled;
use crate::{Control, ControlError};

/// What whoever stops a run is told when that cannot be stored.
const STOPPED: &str = "the run was stopped, and the store's disk is full: it is shown as cancelled once there is room there, and goes \
    on where the control plane is started anew before; free some, and ask again";

/// A prompt as a door hands it in.
#[derive(Clone, PartialEq, Debug)]
pub struct NewPrompt {
    /// For which session.
    pub target: Target,
    /// By which door it came.
    pub door: Door,
    /// Under which name it came there: a token's label, a webhook's, a schedule's.
    pub caller: Option<String>,
    /// Words and pictures.
    pub blocks: Vec<Block>,
    /// How it meets a run that is under way.
    pub delivery: Delivery,
    /// A repeat with the same key gets the first one's answer and changes nothing.
    pub request_key: Option<String>,
    /// The model that is to answer; the configuration's where it is left out.
    pub model: Option<String>,
    /// What the session may not do from now on, whatever else it might. It takes away and never adds.
    pub scope: Option<Scope>,
}

impl NewPrompt {
    /// A prompt of words.
    #[must_use]
    pub fn words(target: Target, door: Door, text: impl Into<String>) -> Self {
        Self {
            target,
            door,
            caller: None,
            blocks: vec![Block::Text { text: text.into() }],
            delivery: Delivery::default(),
            request_key: None,
            model: None,
            scope: None,
        }
    }
}

/// What a run is done with, as it is stored beside it.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    pub(crate) version: u32,
    pub(crate) model: Option<String>,
    /// The door by which the prompt came.
    pub(crate) door: Option<Door>,
}

impl Settings {
    /// What was stored; the defaults where a newer release wrote what this one does not understand.
    pub(crate) fn read(stored: &Value) -> Self {
        Self::deserialize(stored).unwrap_or_default()
    }
}

impl Control {
    /// Takes a prompt in. When this returns it is stored, and will be worked on whatever happens to this process.
    ///
    /// # Errors
    /// There is nothing in it, or too much; the session or the model does not exist, for the one who asks.
    pub async fn prompt(&self, asker: Asker, prompt: NewPrompt) -> Result<Accepted, ControlError> {
        let (door, began) = (prompt.door, Instant::now());
        let accepted = self.take_in(asker, prompt).await?;
        self.trace_prompt(&accepted, door.as_str(), began);
        Ok(accepted)
    }

    /// Refuses a prompt that would not be taken in, as far as that can be known before. Nothing is stored, and no session is made.
    ///
    /// # Errors
    /// As [`Control::prompt`].
    pub async fn check_prompt(&self, asker: Asker, prompt: &NewPrompt) -> Result<(), ControlError> {
        if let Target::Session(session) = prompt.target {
            let owner = self.live(asker, session).await?.owner;
            if self.0.store.user(Asker::System, owner).await?.removed.is_some() {
                let words = format!("nothing more is done in session {session}: {USER_REMOVED}");
                return Err(ControlError::Conflict(words));
            }
        }
        self.author_of(asker, prompt).await.map(drop)
    }

    /// Whose words a prompt is, where it may be taken in.
    async fn author_of(&self, asker: Asker, prompt: &NewPrompt) -> Result<UserId, ControlError> {
        self.check_blocks(&prompt.blocks)?;
        if let Some(model) = &prompt.model {
            let known = self.0.providers.model(model);
            known.map_err(|error| ControlError::Invalid(error.to_string()))?;
        }
        let author = match (&asker, &prompt.target) {
            (Asker::User { id, .. }, _) => *id,
            (_, Target::Key { owner, .. } | Target::New { owner }) => *owner,
            (_, Target::Session(session)) => self.live(asker, *session).await?.owner,
        };
        self.check_scope(asker, prompt, author).await?;
        Ok(author)
    }

    async fn take_in(&self, asker: Asker, prompt: NewPrompt) -> Result<Accepted, ControlError> {
        let author = self.author_of(asker, &prompt).await?;
        let message = Message {
            id: MessageId::new(),
            role: Role::User,
            author: Author::User { id: author },
            blocks: prompt.blocks,
            interrupted: false,
            at: Timestamp::now(),
        };
        let settings = Settings {
            version: 1,
            model: prompt.model,
            door: Some(prompt.door),
        };
        let scope = prompt.scope;
        let prompt = Prompt {
            target: prompt.target,
            door: prompt.door,
            trigger: Trigger::new(prompt.door, prompt.caller.as_deref()),
            message,
            delivery: prompt.delivery,
            request_key: prompt.request_key,
            narrowing: scope.as_ref().map(stored_scope).transpose()?,
            settings: serde_json::to_value(settings)
                .map_err(|error| ControlError::internal("write settings", error))?,
        };
        match self.existing(asker, &prompt.target).await? {
            Some(session) => {
                let live = self.live(asker, session).await?;
                let mut writing = live.writing.lock().await;
                if prompt.delivery == Delivery::Restart {
                    self.seal(&live).await;
                }
                let accepted = self.0.store.accept_prompt(asker, prompt.clone()).await;
                if let Some(speaking) = live.speaking() {
                    let interrupts = |accepted: &Accepted| accepted.interrupted.contains(&speaking.run);
                    if !accepted.as_ref().is_ok_and(interrupts) {
                        speaking.unseal(&live);
                    }
                }
                let accepted = accepted?;
                self.accepted(&live, &mut writing, &accepted, &prompt.message, scope.as_ref());
                Ok(accepted)
            }
            None => {
                let accepted = self.0.store.accept_prompt(asker, prompt.clone()).await?;
                let live = self.live(asker, accepted.session).await?;
                let mut writing = live.writing.lock().await;
                self.accepted(&live, &mut writing, &accepted, &prompt.message, scope.as_ref());
                Ok(accepted)
            }
        }
    }

    /// Stops what is under way in a session; prompts that wait for it are next. None: nothing was under way.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn cancel(&self, asker: Asker, session: SessionId, reason: &str) -> Result<Option<Ended>, ControlError> {
        let live = self.live(asker, session).await?;
        let run = match live.active() {
            Some(active) if !active.over.is_cancelled() => active.run,
            _ => match self.0.store.session(asker, session).await?.run {
                Some((run, state)) if !state.is_final() => run,
                _ => return Ok(None),
            },
        };
        self.cancel_run(asker, &live, run, reason).await.map(Some)
    }

    async fn cancel_run(&self, asker: Asker, live: &Live, run: RunId, reason: &str) -> Result<Ended, ControlError> {
        let mut writing = live.writing.lock().await;
        if live.active().is_some_and(|active| active.run == run) {
            self.seal(live).await;
        }
        let ended = self.0.store.cancel_run(asker, run, reason).await;
        if let Err(StoreError::DiskFull { .. }) = &ended
            && let Some(active) = live.active().filter(|active| active.run == run)
        {
            *lock(&active.cancel) = Some((asker, reason.to_owned()));
            active.cancelled.store(true, Ordering::SeqCst);
            Self::cut(live, &[run]);
            return Err(ControlError::Unavailable(STOPPED.to_owned()));
        }
        let ended = ended?;
        if ended.now
            && let Some(active) = live.active().filter(|active| active.run == run)
        {
            active.cancelled.store(true, Ordering::SeqCst);
        }
        Self::cut(live, &[run]);
        writing.joining = 0;
        live.note(&mut writing, ended.events.clone());
        if let Some(next) = ended.next {
            self.begin_run(live.session, next);
        }
        Ok(ended)
    }

    /// Stores that a person stopped a run, where there was no room for it then. Whoever ends the run otherwise comes after it.
    pub(crate) async fn store_cancel(
        &self,
        live: &Live,
        active: &Active,
        writing: &mut Writing,
    ) -> Result<(), StoreError> {
        let Some((asker, reason)) = lock(&active.cancel).clone() else {
            return Ok(());
        };
        let ended = self.0.store.cancel_run(asker, active.run, &reason).await?;
        lock(&active.cancel).take();
        writing.joining = 0;
        live.note(writing, ended.events);
        if let Some(next) = ended.next {
            self.begin_run(live.session, next);
        }
        Ok(())
    }

    /// Nothing that the model of the turn under way says from here on is shown or kept; what it said so far is stored.
    pub(crate) async fn seal(&self, live: &Live) {
        let Some(speaking) = live.speaking() else { return };
        let Some((turn, text, thinking)) = speaking.seal() else {
            return;
        };
        if let Err(error) = self.0.store.save_open(Asker::System, turn, &text, &thinking).await {
            tracing::warn!(session = %live.session, error = with_causes(&error), "could not keep the last words of a reply that is cut");
        }
    }

    /// What is done for these runs stops.
    fn cut(live: &Live, runs: &[RunId]) {
        if let Some(active) = live.active().filter(|active| runs.contains(&active.run)) {
            active.over.cancel();
        }
        if let Some(speaking) = live.speaking().filter(|speaking| runs.contains(&speaking.run)) {
            speaking.cut.cancel();
        }
    }

    fn accepted(
        &self,
        live: &Live,
        writing: &mut Writing,
        accepted: &Accepted,
        message: &Message,
        scope: Option<&Scope>,
    ) {
        if let Some(scope) = scope.filter(|_| !accepted.repeated) {
            live.narrow(scope);
            self.recheck(live);
        }
        Self::cut(live, &accepted.interrupted);
        live.note(writing, accepted.events.clone());
        if accepted.repeated {
            return;
        }
        match accepted.joined {
            Joined::Started => {
                writing.joining = 0;
                self.begin_run(accepted.session, accepted.run);
            }
            Joined::Steered => writing.joining = writing.joining.saturating_add(bound(message)),
            Joined::Queued => {}
        }
    }

    /// The session that a prompt is for, if it is there already.
    async fn existing(&self, asker: Asker, target: &Target) -> Result<Option<SessionId>, ControlError> {
        match target {
            Target::Session(session) => Ok(Some(*session)),
            Target::New { .. } => Ok(None),
            Target::Key { owner, key } => Ok(self.session_by_key(asker, *owner, key).await?.map(|session| session.id)),
        }
    }

    async fn session_by_key(
        &self,
        asker: Asker,
        owner: UserId,
        key: &ExternalKey,
    ) -> Result<Option<Session>, ControlError> {
        for archived in [false, true] {
            let filter = SessionFilter {
                owner: Some(owner),
                key: Some(key.clone()),
                archived,
            };
            let page = self.0.store.sessions(asker, filter, None, 1).await?;
            if let Some(session) = page.sessions.into_iter().next() {
                return Ok(Some(session));
            }
        }
        Ok(None)
    }

    /// Refuses a prompt that asks for a model that it may not have, or would change the scope of a run under way.
    async fn check_scope(&self, asker: Asker, prompt: &NewPrompt, owner: UserId) -> Result<(), ControlError> {
        if prompt.scope.is_some() && prompt.delivery == Delivery::Steer {
            let words = "a prompt that steers joins a run whose scope is fixed: leave out its scope, or let it queue or restart";
            return Err(ControlError::Invalid(words.to_owned()));
        }
        let Some(model) = &prompt.model else { return Ok(()) };
        let session = self.existing(asker, &prompt.target).await?;
        let live = match session {
            Some(session) => Some(self.live(asker, session).await?),
            None => None,
        };
        let owner = match &prompt.target {
            Target::Key { owner, .. } | Target::New { owner } => *owner,
            Target::Session(_) => owner,
        };
        let layers = self.foreseen(live.as_deref(), owner, prompt.door, prompt.scope.as_ref());
        let decision = settled(layers.await?.model(model));
        if decision.is_allowed() {
            return Ok(());
        }
        Err(ControlError::Denied(decision.reason))
    }

    fn check_blocks(&self, blocks: &[Block]) -> Result<(), ControlError> {
        let most = self.0.config.prompt_bytes as u64;
        let mut bytes = 0_u64;
        let mut says_something = false;
        for block in blocks {
            match block {
                Block::Text { text } => {
                    bytes += text.len() as u64;
                    says_something |= !text.trim().is_empty();
                }
                Block::Image(image) => {
                    pictures::look_at_base64(&image.media_type, &image.data).map_err(|error| {
                        ControlError::Invalid(format!("a picture of the prompt cannot be shown to a model: {error}"))
                    })?;
                    bytes += image.data.len() as u64;
                    says_something = true;
                }
                Block::Thinking { .. } | Block::ToolUse(_) | Block::ToolResult(_) => {
                    return Err(ControlError::Invalid(
                        "a prompt holds words and pictures only".to_owned(),
                    ));
                }
            }
        }
        if bytes > most {
            let what = "the prompt";
            return Err(ControlError::TooLarge { what, bytes, most });
        }
        if !says_something {
            return Err(ControlError::Invalid(
                "the prompt is empty: say what is to be done".to_owned(),
            ));
        }
        Ok(())
    }
}

/// A scope as it is stored.
pub(crate) fn stored_scope(scope: &Scope) -> Result<Value, ControlError> {
    serde_json::to_value(scope).map_err(|error| ControlError::internal("write a scope", error))
}

/// The most tokens that a prompt can be, whatever the model: no token is shorter than a byte.
fn bound(message: &Message) -> u64 {
    // Of all formats, this is the one in which a picture can cost most.
    serde_json::to_vec(message).map_or(u64::MAX, |json| llm::message_bound(Format::OpenaiChat, message, &json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_picture_that_joins_a_run_is_reserved_for_as_a_picture() {
        let image = domain::Image {
            media_type: "image/png".to_owned(),
            data: "AAAA".to_owned(),
        };
        let message = Message {
            id: MessageId::new(),
            role: Role::User,
            author: Author::ControlPlane,
            blocks: vec![Block::Image(image)],
            interrupted: false,
            at: Timestamp::now(),
        };
        // The dearest that a picture of any size is with any provider.
        assert!(bound(&message) > 40_000, "{}", bound(&message));
    }
}
