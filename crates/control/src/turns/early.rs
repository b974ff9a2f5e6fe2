//! Results that come before the turn that brings the others.

use std::sync::Arc;

use causes::with_causes;
use protocol::{EarlyResults, Refusal, RefusalCode};
use store::{Asker, StoreError};

use super::{active_for, fit, stale, unavailable};
use crate::Control;
use crate::live::{Active, Live, lock};

impl Control {
    /// Keeps results of calls of the last reply while others of them are still made, and tells that they have ended. `Ok`: they
    /// are on the disk, or others of the same calls that came first. It comes to its end whether or not whoever handed them in
    /// is still there, and no turn begins meanwhile.
    pub(crate) async fn keep_early(&self, live: &Arc<Live>, mut early: EarlyResults) -> Result<(), Refusal> {
        let active = active_for(live, early.run, early.epoch)?;
        // Nothing of a reply is made before the turn that it answers is over.
        let turn = tokio::select! {
            biased;
            () = active.over.cancelled() => return Err(stale()),
            turn = Arc::clone(&live.turns).lock_owned() => turn,
        };
        if early.turn != active.next_turn() {
            let words = format!("results are taken for turn {}, which comes next", active.next_turn());
            return Err(Refusal::new(RefusalCode::Invalid, words));
        }
        for result in &mut early.results {
            fit(result, &active);
        }
        // What a person denied is answered with the turn.
        early
            .results
            .retain(|result| !lock(&active.denied).contains_key(&result.id));
        let (control, live) = (self.clone(), Arc::clone(live));
        let keeping = self.0.tasks.spawn(async move {
            let _no_turn_begins = turn;
            control.store_early(&live, &active, early).await
        });
        keeping.await.unwrap_or_else(|_| Err(unavailable()))
    }

    async fn store_early(&self, live: &Live, active: &Active, early: EarlyResults) -> Result<(), Refusal> {
        let wanted = store::EarlyResults {
            run: early.run,
            epoch: early.epoch,
            turn: early.turn,
            results: early.results.clone(),
        };
        let mut patience = self.patience("the results of calls");
        let (mut writing, kept) = loop {
            let writing = live.writing.lock().await;
            let error = match self.0.store.keep_results(Asker::System, wanted.clone()).await {
                Ok(kept) => break (writing, kept),
                Err(StoreError::Stale { .. }) => return Err(stale()),
                Err(error @ (StoreError::Invalid { .. } | StoreError::SessionFull { .. })) => {
                    return Err(Refusal::new(RefusalCode::Invalid, error.to_string()));
                }
                Err(error) => error,
            };
            drop(writing);
            let again = tokio::select! {
                biased;
                () = active.over.cancelled() => return Err(stale()),
                again = patience.again(error) => again,
            };
            again.map_err(|error| {
                tracing::error!(run = %active.run, error = with_causes(&error), "could not keep the results of calls; the turn brings them");
                unavailable()
            })?;
        };
        for call in &kept.different {
            tracing::warn!(run = %active.run, %call, "a call has two different results: the first that came counts");
        }
        let new = || early.results.iter().filter(|result| kept.new.contains(&result.id));
        for result in new() {
            let bound = self.results_bound(&active.model, [result]);
            lock(&active.early).insert(result.id.clone(), bound);
        }
        self.trace_results(active, new(), &early.times);
        live.note(&mut writing, kept.events);
        Ok(())
    }
}
