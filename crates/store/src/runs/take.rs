//! Taking a run.

use std::time::Duration;

use domain::{Epoch, RunId, RunState};

use super::{Lease, TakenRun, read, told};
use crate::batch::binds;
use crate::writer::Work;
use crate::{Asker, Session, StoreError, closing, money, results, turns};

/// Takes a run for the holder, where nobody else works on it or on its session.
pub(super) fn take(
    work: &mut Work,
    asker: Asker,
    id: RunId,
    holder: String,
    lease: Duration,
) -> Result<Option<TakenRun>, StoreError> {
    let (mut run, mut head, row) = read(work, asker, id)?;
    let others = row.id_or_none::<RunId>("next_run")?;
    let held = run
        .lease
        .as_ref()
        .is_some_and(|lease| lease.until > work.now && lease.holder != holder);
    // While one is under way, the others are queued and younger, or it is this one's turn to wait.
    let must_wait = run.state == RunState::Queued && others.is_some_and(|other| other < run.id);
    let under_way = run.state == RunState::Queued && head.open_runs > 1 && !must_wait && {
        let runs = closing::open_runs(work, &head)?;
        runs.iter()
            .any(|other| other.id != id && other.state != RunState::Queued)
    };
    if run.state.is_final() || held || must_wait || under_way {
        return Ok(None);
    }
    let mut session = Session::of(&row)?;
    head.epoch = Epoch(head.epoch.0 + 1);
    run.epoch = head.epoch;
    run.attempts += 1;
    run.started = run.started.or(Some(work.now));
    if run.state == RunState::Queued {
        run.state = RunState::Running;
    }
    let until = work.now.after(lease);
    work.batch.add(
        "UPDATE runs SET state = $2, epoch = $3, attempts = $4, started = $5, holder = $6, lease_until = $7 WHERE id = $1",
        binds![
            id,
            run.state.as_str(),
            run.epoch.0,
            run.attempts,
            run.started,
            holder.as_str(),
            until
        ],
    );
    run.lease = Some(Lease { holder, until });
    head.event(work, told(&run, run.state))?;
    money::charge_left(work, &mut head, id)?;
    head.open.take_if(|(_, open)| open.run == id);
    if head.open_calls.is_empty() {
        for message in closing::take_waiting(work, &mut head, Some(id))? {
            head.message(work, message, None)?;
        }
    }
    let last_turn = turns::last(work, id)?;
    let early = results::early_of(work, &head)?;
    head.last_run = Some(id);
    session.epoch = head.epoch;
    session.messages = head.messages;
    session.events = head.events;
    session.run = Some((id, run.state));
    Ok(Some(TakenRun {
        run,
        session,
        last_turn,
        early,
        events: head.finish(work)?,
    }))
}
