//! Leases: what the vault made for us lasts as long as it is renewed, and ends when somebody revokes it.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;

use super::failure::Failure;
use super::read::Reader;
use super::wire::{Ignored, Renewed, Seconds};

/// A secret on lease.
pub(super) struct Lease {
    id: String,
    ends: Instant,
    /// When to renew it, or to ask for another secret.
    renew: Instant,
    /// How long it lasted at first: when a renewal brings less than half of that, its longest time has nearly passed.
    first: Duration,
    renewable: bool,
    /// Whether we may ask if it still stands.
    may_look: bool,
}

/// What became of a lease.
pub(super) enum Kept {
    /// It stands until then.
    Held(Lease, Instant),
    /// Another secret has to be read; this one is good until it is.
    Read,
    /// It was revoked or has ended.
    Gone,
}

impl Lease {
    /// Nothing where there is no lease.
    pub(super) fn of(id: String, lasts: Seconds, renewable: bool, asked: Instant) -> Option<Self> {
        let lasts = lasts.duration().filter(|_| !id.is_empty())?;
        Some(Self {
            id,
            ends: asked + lasts,
            renew: asked + lasts * 2 / 3,
            first: lasts,
            renewable,
            may_look: true,
        })
    }

    pub(super) fn ends(&self) -> Instant {
        self.ends
    }
}

impl Reader {
    /// Renews a lease where it is time to, and otherwise asks whether it still stands. A lease that could not be looked after
    /// comes back with the failure.
    pub(super) async fn look_after(&self, lease: Lease) -> Result<Kept, (Lease, Failure)> {
        let now = Instant::now();
        if lease.ends <= now {
            return Ok(Kept::Gone);
        }
        if lease.renew <= now {
            return self.renew(lease).await;
        }
        if !lease.may_look {
            let until = lease.ends;
            return Ok(Kept::Held(lease, until));
        }
        let body = json!({ "lease_id": lease.id });
        let stands = self.ask::<Ignored>(Method::PUT, "sys/leases/lookup", Some(&body)).await;
        match stands {
            Ok(Ignored {}) => {
                let until = lease.ends;
                Ok(Kept::Held(lease, until))
            }
            Err(Failure::Missing | Failure::Refused { status: 400, .. }) => Ok(Kept::Gone),
            Err(failure @ Failure::Refused { .. }) => {
                tracing::warn!(
                    "whether a secret of the vault was revoked shows at its next renewal only: let the policy of Belljar's token update sys/leases/lookup ({failure})"
                );
                let until = lease.ends;
                Ok(Kept::Held(
                    Lease {
                        may_look: false,
                        ..lease
                    },
                    until,
                ))
            }
            Err(failure) => Err((lease, failure)),
        }
    }

    async fn renew(&self, mut lease: Lease) -> Result<Kept, (Lease, Failure)> {
        if !lease.renewable {
            return Ok(Kept::Read);
        }
        let asked = Instant::now();
        let body = json!({ "lease_id": lease.id });
        match self.ask::<Renewed>(Method::PUT, "sys/leases/renew", Some(&body)).await {
            Ok(renewed) => match renewed.lease_duration.duration() {
                Some(lasts) if lasts * 2 >= lease.first => {
                    lease.ends = asked + lasts;
                    lease.renew = asked + lasts * 2 / 3;
                    lease.renewable = renewed.renewable;
                    let until = lease.ends;
                    Ok(Kept::Held(lease, until))
                }
                _ => Ok(Kept::Read),
            },
            Err(Failure::Missing | Failure::Refused { status: 400, .. }) => Ok(Kept::Gone),
            Err(Failure::Refused { .. }) => Ok(Kept::Read),
            Err(failure) => Err((lease, failure)),
        }
    }
}
