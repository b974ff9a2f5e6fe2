//! Tokens that are made from secrets, one at a time, and used until shortly before their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use secret::{Secret, Successors};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::oauth2::{self, Asking};
use super::refresh::refresh;
use super::{Means, github_app, key_pair};
use crate::definition::{Auth, Grant};
use crate::{Code, Failure};

/// A token is not used in the last part of its life, as clocks differ and requests take their time.
const MARGIN: Duration = Duration::from_secs(60);
/// How long a token is used whose end nobody says.
const UNSAID: Duration = Duration::from_secs(300);
/// The longest time a token is used, whatever is said.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// How long the making of a token may take. It goes on when the call that wanted it is gone: others wait for it, and what a
/// provider rotated must not be lost.
const MAKING: Duration = Duration::from_secs(20);

/// The secrets that a token is made from, by slot.
pub(super) type Slots = BTreeMap<&'static str, Secret>;

/// A token.
pub(super) struct Made {
    pub(super) token: Secret,
    /// How long it lives.
    pub(super) lives: Option<Duration>,
}

/// The token of one service. In memory only.
#[derive(Default)]
pub(crate) struct Tokens {
    state: Arc<Mutex<State>>,
    /// Attempts to make one that came to an end.
    ended: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    /// What the rest was made from. Other secrets, other tokens: a revoked secret leaves no token behind.
    made_from: Slots,
    token: Option<(Secret, Instant)>,
    /// A refresh token that a provider gave and that could not be kept.
    unkept: Option<Secret>,
    /// The last attempt's number, if it failed, and how.
    failed: Option<(u64, Failure)>,
}

impl Tokens {
    /// The token for these secrets. Of many who ask at once one makes it; if that fails, it fails for all who waited.
    pub(super) async fn get(
        &self,
        service: &str,
        auth: &Auth,
        slots: Slots,
        successors: Option<&Arc<dyn Successors>>,
        means: &Means<'_>,
    ) -> Result<Secret, Failure> {
        let ended_before = self.ended.load(Ordering::Acquire);
        let late = || {
            Failure::new(
                Code::Timeout,
                format!("{service}: the upstream did not give a token in time"),
            )
        };
        let mut state = tokio::time::timeout_at(means.deadline, Arc::clone(&self.state).lock_owned())
            .await
            .map_err(|_| late())?;
        if state.made_from != slots {
            // What succeeds a refresh token does so whoever shows it.
            let same = state.made_from.get("refresh_token") == slots.get("refresh_token");
            *state = State {
                made_from: slots,
                unkept: state.unkept.take().filter(|_| same),
                ..State::default()
            };
        }
        if let Some((token, until)) = &state.token
            && Instant::now() < *until
        {
            return Ok(token.clone());
        }
        if let Some((number, failure)) = &state.failed
            && *number > ended_before
        {
            return Err(failure.clone());
        }
        let ended = Arc::clone(&self.ended);
        let (service, auth, client, base) = (
            service.to_owned(),
            auth.clone(),
            means.client.clone(),
            means.base.clone(),
        );
        let successors = successors.cloned();
        let making = means.tasks.spawn(async move {
            let slots = state.made_from.clone();
            let deadline = Instant::now() + MAKING;
            let asking = Asking {
                service: &service,
                auth: &auth,
                client: &client,
                deadline,
            };
            let made = match &auth {
                Auth::OAuth2 {
                    grant: Grant::RefreshToken,
                    ..
                } => refresh(&asking, &slots, successors.as_ref(), &mut state.unkept).await,
                Auth::OAuth2 { .. } => oauth2::ask(&asking, &slots).await.map(|granted| granted.made),
                Auth::GitHubApp => github_app::ask(&service, &slots, &base, &client, deadline).await,
                _ => key_pair::make(&service, &slots),
            };
            let number = ended.fetch_add(1, Ordering::AcqRel) + 1;
            keep(&mut state, number, made)
        });
        match tokio::time::timeout_at(means.deadline, making).await {
            Ok(Ok(result)) => result,
            // The task was ended with the program.
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }

    /// Forgets a token that was not accepted, unless there is another by now.
    pub(super) async fn discard(&self, token: &Secret) {
        let mut state = self.state.lock().await;
        if state.token.as_ref().is_some_and(|(held, _)| held == token) {
            state.token = None;
        }
    }
}

fn keep(state: &mut OwnedMutexGuard<State>, number: u64, made: Result<Made, Failure>) -> Result<Secret, Failure> {
    match made {
        Ok(made) => {
            let lives = made.lives.unwrap_or(UNSAID).min(LONGEST);
            let used = lives.saturating_sub(MARGIN.min(lives / 4));
            state.token = Some((made.token.clone(), Instant::now() + used));
            state.failed = None;
            Ok(made.token)
        }
        Err(failure) => {
            let told = state
                .failed
                .as_ref()
                .is_some_and(|(_, before)| before.code == failure.code);
            if failure.code == Code::CredentialRefused && !told {
                let remedy = failure.remedy.as_deref().unwrap_or_default();
                tracing::warn!("{failure}; {remedy}");
            }
            state.failed = Some((number, failure.clone()));
            Err(failure)
        }
    }
}
