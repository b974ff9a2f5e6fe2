//! Refresh tokens that a provider replaces with each use. The one that comes is kept before anything else is done with its
//! answer, as the one before is dead by then.

use std::sync::Arc;

use causes::with_causes;
use secret::{Secret, Successors, Unkept};
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use super::oauth2::{self, Asking};
use super::tokens::{Made, Slots};
use crate::{Code, Failure};

const SLOT: &str = "refresh_token";

/// Asks for a token with the newest refresh token that there is. `unkept` is one that could not be kept; it is tried again.
pub(super) async fn refresh(
    asking: &Asking<'_>,
    slots: &Slots,
    successors: Option<&Arc<dyn Successors>>,
    unkept: &mut Option<Secret>,
) -> Result<Made, Failure> {
    let mut shown = slots.clone();
    let keeper = match (successors, slots.get(SLOT)) {
        (Some(successors), Some(first)) => Some(Keeper {
            service: asking.service.to_owned(),
            first: first.clone(),
            successors: Arc::clone(successors),
        }),
        _ => None,
    };
    // Held until what comes is kept.
    let mut turn = None;
    if let Some(keeper) = &keeper {
        let began = timeout_at(asking.deadline, keeper.begin()).await;
        let (began, kept) = began.map_err(|_| {
            Failure::new(
                Code::Timeout,
                format!("{}: another program takes long to renew its token", asking.service),
            )
        })??;
        turn = Some(began);
        shown.extend(kept.map(|kept| (SLOT, kept)));
    }
    shown.extend(unkept.clone().map(|newest| (SLOT, newest)));
    let granted = oauth2::ask(asking, &shown).await?;
    let came = granted.refresh_token.filter(|came| shown.get(SLOT) != Some(came));
    if let Some(newest) = came.or_else(|| unkept.clone()) {
        *unkept = match &keeper {
            None => Some(newest),
            Some(keeper) => keeper.keep(newest).await,
        };
    }
    drop(turn);
    Ok(granted.made)
}

/// Keeps what succeeds one configured refresh token.
#[derive(Clone)]
struct Keeper {
    service: String,
    first: Secret,
    successors: Arc<dyn Successors>,
}

impl Keeper {
    /// Waits for its turn; what was kept.
    async fn begin(&self) -> Result<(Box<dyn Send>, Option<Secret>), Failure> {
        let keeper = self.clone();
        let began = spawn_blocking(move || {
            let turn = keeper.successors.turn(&keeper.service)?;
            let kept = keeper.successors.newest(&keeper.service, &keeper.first)?;
            Ok((turn, kept))
        });
        let failed = |why: String| {
            let service = &self.service;
            Failure::new(
                Code::CredentialMissing,
                format!("{service}: nobody knows whether its provider has replaced auth.{SLOT}: {why}"),
            )
        };
        match began.await {
            Ok(began) => began.map_err(|Unkept { why, remedy }| failed(why).remedy(remedy)),
            Err(broken) => Err(failed(with_causes(&broken))),
        }
    }

    /// Keeps a refresh token; gives it back where it cannot be kept.
    async fn keep(&self, newest: Secret) -> Option<Secret> {
        let (keeper, keeping) = (self.clone(), newest.clone());
        let kept = spawn_blocking(move || keeper.successors.keep(&keeper.service, &keeper.first, &keeping));
        let why = match kept.await {
            Ok(Ok(())) => return None,
            Ok(Err(unkept)) => unkept.to_string(),
            Err(broken) => with_causes(&broken),
        };
        tracing::error!(
            service = self.service,
            "the provider replaced auth.{SLOT}, and the new one is in memory only, as it cannot be kept: {why}. If Belljar ends \
             before that is mended, somebody has to sign in again"
        );
        Some(newest)
    }
}
