//! Money is set aside for a call before it is made.

use causes::with_causes;
use domain::{Money, TurnId};
use protocol::ServiceFailure;
use store::{Asker, OverCap, StoreError};
use tokio::time::{Instant, timeout_at};

use super::failure::refused;
use super::{Answer, Wanted};
use crate::Control;
use crate::money::{self, Remedy};

/// Calls that may be clamped anew because others reserved meanwhile.
const CLAMPS: usize = 20;

/// What was set aside.
pub(super) struct Reserved {
    pub(super) id: TurnId,
    pub(super) amount: Money,
    /// The most tokens that the model may say.
    pub(super) output: u64,
}

impl Control {
    /// Reserves for a call, clamped to what is left; waits for reserved money to come free where that helps. None: nobody
    /// waits for the answer any more.
    pub(super) async fn reserve_for(
        &self,
        wanted: &Wanted<'_>,
        answer: &mut Answer,
    ) -> Result<Option<Reserved>, ServiceFailure> {
        let Wanted { active, model, .. } = wanted;
        let most = wanted
            .request
            .max_tokens
            .unwrap_or(model.max_output)
            .min(model.max_output);
        let price = model.price.as_ref().filter(|_| active.offer.is_capped());
        let version = money::version(model.price.as_ref());
        let (mut output, mut clamps, mut waiting) = (most, 0, None);
        loop {
            let freed = self.0.freed.notified();
            // A stream is cut by our own count, which is rather too high: an answer of full length must fit it.
            let counted = if clamps > 0 {
                output
            } else {
                output.saturating_add(output / 2)
            };
            let amount = price.map_or(Money::ZERO, |price| money::worst(price, wanted.input, counted));
            let (run, epoch, caps) = (active.run, active.epoch, active.offer.caps.clone());
            // Never given up half-way: what is reserved must be known here.
            let reserved = self
                .0
                .store
                .reserve(Asker::System, run, epoch, &model.name, &version, amount, caps);
            let over = match (reserved.await, price) {
                (Ok(reserved), _) => {
                    return Ok(Some(Reserved {
                        id: reserved.id,
                        amount,
                        output,
                    }));
                }
                (Err(StoreError::OverCap(over)), Some(price)) => {
                    (money::remedy(&over, price, wanted.input, output), over)
                }
                (Err(StoreError::Stale { .. }), _) => return Err(refused(403, "no_run", "the run has ended")),
                (Err(error), _) => {
                    tracing::error!(%run, error = with_causes(&error), "could not reserve for a program's call");
                    return Err(refused(503, "unavailable", "the call could not be stored; try again"));
                }
            };
            match over {
                (Remedy::Clamp(tokens), _) if clamps < CLAMPS => {
                    output = tokens;
                    clamps += 1;
                }
                (Remedy::Clamp(_) | Remedy::Wait, over) => {
                    if waiting.is_none() {
                        let place = self.0.budget_queue.try_acquire().map_err(|_| busy(&over))?;
                        waiting = Some((place, Instant::now() + self.0.config.budget_wait));
                    }
                    let until = waiting.as_ref().map_or_else(Instant::now, |(_, until)| *until);
                    tokio::select! {
                        () = answer.closed() => return Ok(None),
                        () = active.over.cancelled() => return Err(refused(403, "no_run", "the run has ended")),
                        freed = timeout_at(until, freed) => freed.map_err(|_| busy(&over))?,
                    }
                    (output, clamps) = (most, 0);
                }
                (Remedy::None, over) => return Err(refused(402, "budget_exhausted", over.to_string())),
            }
        }
    }
}

fn busy(over: &OverCap) -> ServiceFailure {
    let words = format!("{over}; they did not end in time, so try again later");
    ServiceFailure {
        retry_after: Some(1),
        ..refused(429, "budget_busy", words)
    }
}
