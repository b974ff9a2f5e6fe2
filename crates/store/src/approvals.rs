//! Questions to people, and what came of them: what is approved is exactly what was asked, and what was approved once is done
//! once at most.

mod answer;
mod ask;

use std::time::Duration;

use domain::{
    ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalState, Event, NumberedEvent, RunId, SessionId, Timestamp,
    ToolCallId, UserId,
};

use crate::batch::{binds, statement};
use crate::head::Head;
use crate::row::Row;
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Hash, Store, StoreError};

pub(crate) use answer::withdraw_all;

/// A question to a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Approval {
    /// Which.
    pub id: ApprovalId,
    /// Which session asks.
    pub session: SessionId,
    /// Whose session that is.
    pub owner: UserId,
    /// The run that asked; none where none was under way.
    pub run: Option<RunId>,
    /// The tool call that it is about, or was made in.
    pub call: Option<ToolCallId>,
    /// What it is about.
    pub kind: ApprovalKind,
    /// What an approval for always stands for: `crm.deleteContact`, `exec`, `api.example.com:443`.
    pub subject: String,
    /// It asks for what the session's scope does not have.
    pub proposal: bool,
    /// Only admins may answer.
    pub admins_only: bool,
    /// All that is asked for, as canonical JSON.
    pub request: String,
    /// The SHA-256 of the request.
    pub sha256: Hash,
    /// The layer of the policy that wants a person to be asked.
    pub layer: String,
    /// The rule in it.
    pub rule: String,
    /// Why a person is asked, in words.
    pub why: String,
    /// Where it stands.
    pub state: ApprovalState,
    /// Who answered, by name.
    pub decided_by: Option<String>,
    /// What they said beside it.
    pub words: Option<String>,
    /// When it was asked.
    pub created: Timestamp,
    /// When it was answered, expired or was withdrawn.
    pub decided: Option<Timestamp>,
    /// When what was approved was begun.
    pub used: Option<Timestamp>,
    /// When it is too late: to answer, and to do what was approved once.
    pub expires: Timestamp,
}

/// A question that is to be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewApproval {
    /// Which session asks.
    pub session: SessionId,
    /// The run that asks; none where none is under way.
    pub run: Option<RunId>,
    /// The tool call that it is about, or is made in.
    pub call: Option<ToolCallId>,
    /// What it is about.
    pub kind: ApprovalKind,
    /// What an approval for always stands for.
    pub subject: String,
    /// It asks for what the session's scope does not have.
    pub proposal: bool,
    /// Only admins may answer.
    pub admins_only: bool,
    /// All that is asked for, as canonical JSON.
    pub request: String,
    /// The layer of the policy that wants a person to be asked.
    pub layer: String,
    /// The rule in it.
    pub rule: String,
    /// Why a person is asked, in words.
    pub why: String,
    /// How long there is to answer.
    pub life: Duration,
}

/// What came of asking.
#[derive(Clone, PartialEq, Debug)]
pub struct Asked {
    /// The question: a new one, or the one that was asked before and still counts.
    pub approval: Approval,
    /// What watchers see of it.
    pub events: Vec<NumberedEvent>,
}

/// What came of an answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Decided {
    /// The question, answered.
    pub approval: Approval,
    /// What watchers see of it.
    pub events: Vec<NumberedEvent>,
}

/// Which questions are listed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ApprovalFilter {
    /// Of this session only.
    pub session: Option<SessionId>,
    /// In this state only.
    pub state: Option<ApprovalState>,
}

pub(crate) const APPROVAL: &str = "a.id AS a_id, a.session_id AS a_session, a.owner AS a_owner, a.run_id AS a_run, \
     a.call_id, a.kind, a.subject, a.proposal, a.admins_only, a.request, a.sha256, a.layer, a.rule, a.why, \
     a.state AS a_state, a.decided_by, a.words, a.created AS a_created, a.decided, a.used, a.expires";

impl Approval {
    /// From a row with [`APPROVAL`].
    fn of(row: &Row) -> Result<Self, StoreError> {
        let unknown = |word: &str| stored::corrupt("approval", format!("there is no {word:?}"));
        let (kind, state) = (row.text("kind")?, row.text("a_state")?);
        Ok(Self {
            id: row.id("a_id")?,
            session: row.id("a_session")?,
            owner: row.id("a_owner")?,
            run: row.id_or_none("a_run")?,
            call: row.text_or_none("call_id")?.map(ToolCallId),
            kind: ApprovalKind::from_word(&kind).ok_or_else(|| unknown(&kind))?,
            subject: row.text("subject")?,
            proposal: row.integer("proposal")? != 0,
            admins_only: row.integer("admins_only")? != 0,
            request: row.text("request")?,
            sha256: row.hash("sha256")?,
            layer: row.text("layer")?,
            rule: row.text("rule")?,
            why: row.text("why")?,
            state: ApprovalState::from_word(&state).ok_or_else(|| unknown(&state))?,
            decided_by: row.text_or_none("decided_by")?,
            words: row.text_or_none("words")?,
            created: row.time("a_created")?,
            decided: row.time_or_none("decided")?,
            used: row.time_or_none("used")?,
            expires: row.time("expires")?,
        })
    }

    /// The event of a question that is over, or was approved.
    fn told(&self) -> Event {
        Event::ApprovalDecided {
            approval: self.id,
            subject: self.subject.clone(),
            state: self.state,
            by: self.decided_by.clone(),
            reason: self.words.clone(),
        }
    }

    /// Stores where it stands now.
    fn write(&self, work: &mut Work) {
        work.batch.add(
            "UPDATE approvals SET state = $2, decided_by = $3, words = $4, decided = $5, used = $6 WHERE id = $1",
            binds![
                self.id,
                self.state.as_str(),
                self.decided_by.clone(),
                self.words.clone(),
                self.decided,
                self.used
            ],
        );
    }
}

fn not_found(id: ApprovalId) -> StoreError {
    StoreError::NotFound {
        kind: "approval",
        id: id.to_string(),
    }
}

fn find(work: &Work, id: ApprovalId) -> Result<Approval, StoreError> {
    let sql = statement!("SELECT {APPROVAL} FROM approvals a WHERE a.id = $1");
    let row = work.one(sql, binds![id])?.ok_or_else(|| not_found(id))?;
    Approval::of(&row)
}

/// What an ending run asked for and was not done is withdrawn; what was approved for it is over.
pub(crate) fn end_run(work: &mut Work, head: &mut Head, run: RunId) -> Result<(), StoreError> {
    let sql = statement!(
        "SELECT {APPROVAL} FROM approvals a WHERE a.session_id = $1 AND a.state IN ('pending', 'approved_once')"
    );
    for row in work.all(sql, binds![head.session])? {
        let mut approval = Approval::of(&row)?;
        let over = match (approval.kind, approval.state) {
            _ if approval.proposal => None,
            // The way out is asked for without waiting: the answer may come after the run, and counts for the next.
            (ApprovalKind::Egress, ApprovalState::ApprovedOnce) => Some(ApprovalState::Used),
            (ApprovalKind::Egress, _) => None,
            _ => (approval.run == Some(run)).then_some(ApprovalState::Withdrawn),
        };
        if let Some(state) = over {
            approval.close(work, head, state)?;
        }
    }
    Ok(())
}

impl Approval {
    /// Ends it without anybody's answer.
    fn close(&mut self, work: &mut Work, head: &mut Head, state: ApprovalState) -> Result<(), StoreError> {
        self.state = state;
        self.decided = self.decided.or(Some(work.now));
        self.write(work);
        head.event(work, self.told())
    }
}

impl Store {
    /// One question.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn approval(&self, asker: Asker, id: ApprovalId) -> Result<Approval, StoreError> {
        let sql = statement!("SELECT {APPROVAL} FROM approvals a WHERE a.id = $1");
        let row = self.read_one("read an approval", sql, binds![id]).await?;
        let approval = row.as_ref().map(Approval::of).transpose()?;
        let seen = approval.filter(|approval| asker.may_see(approval.session, approval.owner));
        seen.ok_or_else(|| not_found(id))
    }

    /// Questions, the newest first.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn approvals(
        &self,
        asker: Asker,
        filter: ApprovalFilter,
        limit: u32,
    ) -> Result<Vec<Approval>, StoreError> {
        if let Some(session) = filter.session {
            self.owner_of(asker, session).await?;
        }
        let owner = match asker {
            Asker::User { id, admin: false, .. } => Some(id),
            Asker::User { .. } | Asker::System => None,
            Asker::Session(session) => Some(self.owner_of(asker, session).await?),
        };
        let session = match asker {
            Asker::Session(own) => Some(own),
            Asker::User { .. } | Asker::System => filter.session,
        };
        let sql = statement!(
            "SELECT {APPROVAL} FROM approvals a WHERE ($1 IS NULL OR a.session_id = $1) AND ($2 IS NULL OR a.owner = $2) \
             AND ($3 IS NULL OR a.state = $3) ORDER BY a.id DESC LIMIT $4"
        );
        let state = filter.state.map(ApprovalState::as_str);
        let limit = i64::from(limit.min(Self::LONGEST_PAGE));
        let rows = self
            .read("read approvals", sql, binds![session, owner, state, limit])
            .await?;
        rows.iter().map(Approval::of).collect()
    }

    /// What people approved for a session and still counts: for always, and connections of the run under way or else the next.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn approved(&self, asker: Asker, session: SessionId) -> Result<Vec<Approval>, StoreError> {
        self.owner_of(asker, session).await?;
        let sql = statement!(
            "SELECT {APPROVAL} FROM approvals a WHERE a.session_id = $1 AND (a.state = 'approved_always' \
             OR (a.state = 'approved_once' AND a.kind = 'egress')) ORDER BY a.id"
        );
        let rows = self.read("read what was approved", sql, binds![session]).await?;
        rows.iter().map(Approval::of).collect()
    }

    /// Questions of a run about calls of tools, the oldest first.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn questions_of_calls(&self, asker: Asker, run: RunId) -> Result<Vec<Approval>, StoreError> {
        asker.must_be_system("read what a run asked")?;
        let sql = statement!(
            "SELECT {APPROVAL} FROM approvals a JOIN runs r ON r.session_id = a.session_id WHERE r.id = $1 \
             AND a.run_id = $1 AND a.kind = 'tool' ORDER BY a.id"
        );
        let rows = self.read("read what a run asked", sql, binds![run]).await?;
        rows.iter().map(Approval::of).collect()
    }
}
