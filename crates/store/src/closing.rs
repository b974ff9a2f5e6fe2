//! What an ending run leaves is made whole: what the model had said, calls without a result, prompts that waited.

use domain::{Author, Block, Epoch, Event, Message, Money, Role, RunId, RunState};
use serde_json::json;

use crate::batch::{binds, statement};
use crate::head::{Head, composed};
use crate::runs::{self, RUN};
use crate::stored;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Dialect, End, Ended, Run, StoreError, approvals, audit, results};

/// Ends a run that has not ended, for whoever holds it (or, without an epoch, for anybody).
pub(crate) fn end(
    work: &mut Work,
    asker: Asker,
    id: RunId,
    epoch: Option<Epoch>,
    end: End,
) -> Result<Ended, StoreError> {
    let (run, mut head, row) = runs::read(work, asker, id)?;
    let waits = row.id_or_none("next_run")?;
    if run.state.is_final() {
        return Ok(Ended {
            state: run.state,
            now: false,
            next: None,
            events: Vec::new(),
        });
    }
    if let Some(epoch) = epoch {
        run.check_hold(epoch)?;
    }
    if !run.state.may_become(end.state) || !end.state.is_final() {
        return Err(StoreError::Invalid {
            subject: "the end of a run",
            reason: format!(
                "a run that is {} cannot end as {}",
                run.state.as_str(),
                end.state.as_str()
            ),
        });
    }
    let next = close(work, &mut head, &run, &end, None)?;
    Ok(Ended {
        state: end.state,
        now: true,
        next: next.or(waits),
        events: head.finish(work)?,
    })
}

/// Ends a run, with everything that it leaves. Gives the run that is to be taken next, where prompts that waited made one.
pub(crate) fn close(
    work: &mut Work,
    head: &mut Head,
    run: &Run,
    end: &End,
    dialect: Option<&Dialect>,
) -> Result<Option<RunId>, StoreError> {
    let begun = run.state != RunState::Queued;
    if begun {
        keep_what_was_said(work, head, run.id, dialect)?;
        results::answer(work, head, run.id, &[], dialect)?;
        approvals::end_run(work, head, run.id)?;
    }
    work.batch.add(
        "UPDATE runs SET state = $2, ended = $3, reason = $4, code = $5, holder = NULL, lease_until = 0 WHERE id = $1",
        binds![
            run.id,
            end.state.as_str(),
            work.now,
            end.reason.clone(),
            end.code.clone()
        ],
    );
    head.event(
        work,
        Event::Run {
            run: run.id,
            epoch: run.epoch,
            state: end.state,
            delivery: None,
            reason: end.reason.clone(),
            code: end.code.clone(),
        },
    )?;
    audit_end(work, head, run, end)?;
    let prompts = take_waiting(work, head, Some(run.id))?;
    // A prompt that was stopped before its run began, while another is at work, is withdrawn: it would part that one's calls from their results.
    let withdrawn = !begun && end.state != RunState::Interrupted && head.open_runs > 1;
    head.open_runs -= 1;
    if prompts.is_empty() || withdrawn {
        return Ok(None);
    }
    for message in prompts {
        head.message(work, message, dialect)?;
    }
    if !begun || !matches!(end.state, RunState::Done | RunState::Failed) {
        return Ok(None);
    }
    let next = RunId::new();
    runs::insert(work, head, next, run.delivery, &run.trigger, &run.settings)?;
    Ok(Some(next))
}

/// Writes down how a run ended, what caused it, how long it took and what it cost.
fn audit_end(work: &mut Work, head: &Head, run: &Run, end: &End) -> Result<(), StoreError> {
    let row = work.one("SELECT spent FROM runs WHERE id = $1", binds![run.id])?;
    let spent = row.map_or(Ok(0), |row| row.integer("spent"))?;
    let detail = json!({ "trigger": run.trigger, "state": end.state.as_str(), "code": end.code });
    let mut entry = AuditEntry::new("run.ended", format!("run:{}", run.id), detail).of(head.session, Some(run.id));
    entry.facts.user = Some(head.owner);
    entry.facts.cost = Some(Money(spent).plus(head.paid()));
    let took = run.started.map(|started| work.now.0.saturating_sub(started.0));
    entry.facts.micros = took.and_then(|took| u64::try_from(took.saturating_mul(1_000)).ok());
    audit::append(work, Asker::System, [entry])
}

/// The open message, as far as it came, becomes an interrupted one.
fn keep_what_was_said(
    work: &mut Work,
    head: &mut Head,
    run: RunId,
    dialect: Option<&Dialect>,
) -> Result<(), StoreError> {
    let Some((_, open)) = head.open.take_if(|(_, open)| open.run == run) else {
        return Ok(());
    };
    if open.text.is_empty() {
        return Ok(());
    }
    let message = Message {
        id: open.message,
        interrupted: true,
        ..composed(
            Author::Model { name: open.model },
            Role::Assistant,
            vec![Block::Text { text: open.text }],
            work.now,
        )
    };
    head.message(work, message, dialect)
}

/// The prompts that wait (for one run, or in the whole session), in order; they wait no more.
pub(crate) fn take_waiting(work: &mut Work, head: &mut Head, run: Option<RunId>) -> Result<Vec<Message>, StoreError> {
    if head.waiting == 0 {
        return Ok(Vec::new());
    }
    let rows = work.all(
        "SELECT number, body FROM waiting WHERE session_id = $1 AND ($2 IS NULL OR run_id = $2) ORDER BY number",
        binds![head.session, run],
    )?;
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        messages.push(stored::read("message", row.bytes("body")?)?);
        work.batch
            .add("DELETE FROM waiting WHERE number = $1", binds![row.integer("number")?]);
    }
    head.waiting -= rows.len() as i64;
    Ok(messages)
}

/// The session's runs that have not ended, oldest first.
pub(crate) fn open_runs(work: &mut Work, head: &Head) -> Result<Vec<Run>, StoreError> {
    if head.open_runs == 0 {
        return Ok(Vec::new());
    }
    let sql = statement!("SELECT {RUN} FROM runs r WHERE r.session_id = $1 AND r.ended IS NULL ORDER BY r.id");
    let rows = work.all(sql, binds![head.session])?;
    rows.iter().map(Run::of).collect()
}
