//! Results of calls. They are kept as they come, one by one, and stand in the history together: one message, in the order of the
//! calls, written once when nothing can come any more.

use domain::{
    Author, Block, Epoch, Event, NumberedEvent, ResultPart, Role, RunId, RunState, SessionId, ToolCallId, ToolResult,
};

use crate::batch::{binds, statement};
use crate::head::{HEAD, Head, composed, open_calls};
use crate::runs::{RUN, not_found};
use crate::stored;
use crate::writer::Work;
use crate::{Asker, Dialect, Run, Store, StoreError, service_writes};

/// What a call is answered that was cut off.
const CUT_OFF: &str = "This call was interrupted before its result arrived. It may have taken effect, in whole or in part: \
                       look at the state of things before you do it again.";

/// Results that came before the turn that brings the others.
#[derive(Clone, Debug)]
pub struct EarlyResults {
    /// Of which run.
    pub run: RunId,
    /// Under which hold.
    pub epoch: Epoch,
    /// The turn that is going to bring the others.
    pub turn: u32,
    /// Results of the calls that the turn before it asked for. Others are refused.
    pub results: Vec<ToolResult>,
}

/// What came of keeping results.
#[derive(Clone, PartialEq, Debug)]
pub struct KeptResults {
    /// The calls that had none before.
    pub new: Vec<ToolCallId>,
    /// Those that had another one, which counts.
    pub different: Vec<ToolCallId>,
    /// What watchers see of it.
    pub events: Vec<NumberedEvent>,
}

impl Store {
    /// Keeps results of calls that were made, and tells that they have ended. They stand in the history when the run's next turn
    /// begins, or when the run ends, whatever happens in between. Of two results of one call the first that came counts.
    ///
    /// # Errors
    /// [`StoreError::Stale`] where the run was taken over or has ended; [`StoreError::Invalid`] for a result of a call that was
    /// not asked for, and where that turn has begun, or does not come next.
    pub async fn keep_results(&self, asker: Asker, early: EarlyResults) -> Result<KeptResults, StoreError> {
        asker.must_be_system("keep results")?;
        self.write("keep results", move |work| keep(work, &early)).await
    }
}

fn keep(work: &mut Work, early: &EarlyResults) -> Result<KeptResults, StoreError> {
    let sql = statement!(
        "SELECT {RUN}, {HEAD}, (SELECT COUNT(*) FROM turns t WHERE t.run_id = r.id AND t.turn = $2) AS begun \
         FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.id = $1"
    );
    let row = work.one(sql, binds![early.run, i64::from(early.turn)])?;
    let row = row.ok_or_else(|| not_found(early.run))?;
    let (run, mut head) = (Run::of(&row)?, Head::of(&row)?);
    run.check_hold(early.epoch)?;
    head.check_room(work)?;
    if run.state == RunState::Queued || early.turn != run.turn + 1 || row.integer("begun")? > 0 {
        return Err(refused(format!(
            "they are not for turn {}, which comes next",
            run.turn + 1
        )));
    }
    check(&head, &early.results)?;
    let (mut new, mut different) = (Vec::new(), Vec::new());
    for result in &early.results {
        let body = stored::write("result", result)?;
        let call = result.id.0.as_str();
        let first = "SELECT body FROM results WHERE session_id = $1 AND call = $2";
        if let Some(first) = work.one(first, binds![head.session, call])? {
            if first.bytes("body")? != body {
                different.push(result.id.clone());
            }
            continue;
        }
        work.batch.add(
            "INSERT INTO results (session_id, call, body) VALUES ($1, $2, $3)",
            binds![head.session, call, body],
        );
        head.event(work, ended(result))?;
        new.push(result.id.clone());
    }
    let events = if new.is_empty() { Vec::new() } else { head.finish(work)? };
    Ok(KeptResults { new, different, events })
}

fn refused(reason: impl Into<String>) -> StoreError {
    StoreError::Invalid {
        subject: "the results",
        reason: reason.into(),
    }
}

/// Refuses results of calls that were not made, and two of one call.
pub(crate) fn check(head: &Head, results: &[ToolResult]) -> Result<(), StoreError> {
    for (place, result) in results.iter().enumerate() {
        let call = &result.id.0;
        if !head.open_calls.contains(&result.id) {
            return Err(refused(format!("one is of {call:?}, a call that was not asked for")));
        }
        if results.iter().take(place).any(|other| other.id == result.id) {
            return Err(refused(format!("two are of the call {call:?}")));
        }
    }
    Ok(())
}

/// Whether a call was asked for and has no result yet.
pub(crate) fn is_awaited(work: &Work, session: SessionId, call: &ToolCallId) -> Result<bool, StoreError> {
    let sql = "SELECT s.open_calls, EXISTS (SELECT 1 FROM results r WHERE r.session_id = s.id AND r.call = $2) AS kept \
               FROM sessions s WHERE s.id = $1";
    let Some(row) = work.one(sql, binds![session, call.0.as_str()])? else {
        return Ok(false);
    };
    Ok(row.integer("kept")? == 0 && open_calls(&row)?.contains(call))
}

/// The results of open calls that were kept.
pub(crate) fn early_of(work: &mut Work, head: &Head) -> Result<Vec<ToolResult>, StoreError> {
    if head.early == 0 {
        return Ok(Vec::new());
    }
    let rows = work.all("SELECT body FROM results WHERE session_id = $1", binds![head.session])?;
    rows.iter()
        .map(|row| stored::read("result", row.bytes("body")?))
        .collect()
}

/// Answers the open calls, if there are any: with the results that were kept, else with those that are brought now, else with
/// words that say that they were cut off. Nothing is told twice of the former. False: there was no open call.
pub(crate) fn answer(
    work: &mut Work,
    head: &mut Head,
    run: RunId,
    brought: &[ToolResult],
    dialect: Option<&Dialect>,
) -> Result<bool, StoreError> {
    if head.open_calls.is_empty() {
        return Ok(false);
    }
    let early = early_of(work, head)?;
    if head.early > 0 {
        work.batch
            .add("DELETE FROM results WHERE session_id = $1", binds![head.session]);
        head.early = 0;
    }
    let find = |results: &[ToolResult], call: &ToolCallId| results.iter().find(|result| result.id == *call).cloned();
    let mut results = Vec::with_capacity(head.open_calls.len());
    for call in std::mem::take(&mut head.open_calls) {
        let result = match find(&early, &call) {
            Some(result) => result,
            None => {
                let result = find(brought, &call).unwrap_or_else(|| ToolResult::error(call, CUT_OFF));
                head.event(work, ended(&result))?;
                result
            }
        };
        results.push(Block::ToolResult(with_writes(work, head.session, run, result)?));
    }
    let author = if early.is_empty() && brought.is_empty() {
        Author::ControlPlane
    } else {
        Author::Sandbox
    };
    let message = composed(author, Role::User, results, work.now);
    head.message(work, message, dialect)?;
    Ok(true)
}

/// A result, and which writes its call began where it is none or a failure: whoever looks at the state of things is to know at what.
fn with_writes(work: &Work, session: SessionId, run: RunId, mut result: ToolResult) -> Result<ToolResult, StoreError> {
    if result.is_error {
        let told = service_writes::told(work, session, run, &result.id)?;
        result.content.extend(told.map(|text| ResultPart::Text { text }));
    }
    Ok(result)
}

/// The event of a tool that has ended, with the first line of what it said.
fn ended(result: &ToolResult) -> Event {
    const LONGEST: usize = 200;
    let words = result.content.iter().find_map(|part| match part {
        ResultPart::Text { text } => text.lines().map(str::trim).find(|line| !line.is_empty()),
        ResultPart::Image(_) => Some("an image"),
    });
    Event::ToolEnded {
        call: result.id.clone(),
        is_error: result.is_error,
        summary: words.unwrap_or_default().chars().take(LONGEST).collect(),
    }
}
