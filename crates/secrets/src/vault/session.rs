//! Who asks the vault: a token, made and renewed by one task at a time.

use std::time::Duration;

use reqwest::Method;
use secret::{Credential, Secret};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Login;
use super::client::Client;
use super::failure::Failure;
use super::wire::{Ignored, LoggedIn, LookedUp, Seconds};

/// How long a refused login is not tried again.
const REST: Duration = Duration::from_secs(2);

/// Where a token asks about itself. Every token may that has the policy `default`.
const LOOK_UP: &str = "auth/token/lookup-self";

/// The token that questions are asked with.
pub(super) struct Sessions {
    login: Login,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    refused: Option<(Instant, Failure)>,
}

struct Session {
    token: Secret,
    ends: Option<Instant>,
    renew: Option<Instant>,
}

impl Session {
    fn new(token: Secret, lasts: Seconds, renewable: bool) -> Self {
        let lasts = lasts.duration();
        Self {
            token,
            ends: lasts.map(|lasts| Instant::now() + lasts),
            renew: lasts.filter(|_| renewable).map(|lasts| Instant::now() + lasts * 2 / 3),
        }
    }
}

fn has_come(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| moment <= Instant::now())
}

impl Sessions {
    pub(super) fn new(login: Login) -> Self {
        Self {
            login,
            state: Mutex::default(),
        }
    }

    /// The token to ask with now. Logs in or renews where it is time to; who comes meanwhile waits for that.
    pub(super) async fn token(&self, client: &Client) -> Result<Secret, Failure> {
        let mut state = self.state.lock().await;
        if let Some((until, failure)) = &state.refused
            && *until > Instant::now()
        {
            return Err(failure.clone());
        }
        let given = match &self.login {
            Login::Token(token) => Some(get(token)?),
            Login::AppRole { .. } => None,
        };
        let good = state
            .session
            .take()
            .filter(|session| !has_come(session.ends) && given.as_ref().is_none_or(|given| *given == session.token));
        let session = match good {
            Some(session) if has_come(session.renew) => self.renewed(client, session).await,
            Some(session) => Ok(session),
            None => self.log_in(client, given).await,
        };
        match session {
            Ok(session) => {
                let token = session.token.clone();
                *state = State {
                    session: Some(session),
                    refused: None,
                };
                Ok(token)
            }
            Err(failure) => {
                if !failure.is_passing() {
                    state.refused = Some((Instant::now() + REST, failure.clone()));
                }
                Err(failure)
            }
        }
    }

    /// Told that a question with this token was refused. True: the token itself was to blame, and the next may do better.
    pub(super) async fn refused(&self, client: &Client, token: &Secret) -> bool {
        let mut state = self.state.lock().await;
        match &state.session {
            Some(session) if session.token == *token => {}
            // Somebody else found out before.
            _ => return true,
        }
        let known = client.ask::<Ignored>(Method::GET, LOOK_UP, Some(token), None);
        let dead = matches!(known.await, Err(Failure::Refused { .. }));
        if dead {
            state.session = None;
        }
        dead
    }

    async fn log_in(&self, client: &Client, given: Option<Secret>) -> Result<Session, Failure> {
        let (mount, role, secret) = match (&self.login, given) {
            (Login::AppRole { mount, role, secret }, _) => (mount, get(role)?, get(secret)?),
            (Login::Token(token), given) => {
                let token = given.map_or_else(|| get(token), Ok)?;
                let facts = client.ask::<LookedUp>(Method::GET, LOOK_UP, Some(&token), None);
                let facts = facts.await.map_err(login_refused)?.data;
                return Ok(Session::new(token, facts.ttl, facts.renewable));
            }
        };
        let body = json!({ "role_id": role.expose(), "secret_id": secret.expose() });
        let path = format!("auth/{mount}/login");
        let answer = client.ask::<LoggedIn>(Method::POST, &path, None, Some(&body)).await;
        let auth = answer.map_err(login_refused)?.auth;
        Ok(Session::new(auth.client_token, auth.lease_duration, auth.renewable))
    }

    /// The same token for longer; where that is refused, a new one, or the old as long as it lasts.
    async fn renewed(&self, client: &Client, session: Session) -> Result<Session, Failure> {
        let (path, body) = ("auth/token/renew-self", json!({}));
        let renewed = client.ask::<LoggedIn>(Method::POST, path, Some(&session.token), Some(&body));
        match (renewed.await, &self.login) {
            (Ok(LoggedIn { auth }), _) => Ok(Session::new(session.token, auth.lease_duration, auth.renewable)),
            (Err(failure), _) if failure.is_passing() => Ok(session),
            (Err(_), Login::AppRole { .. }) => self.log_in(client, None).await,
            (Err(failure), Login::Token(_)) => {
                tracing::warn!("the vault's token cannot be renewed and will end: {failure}");
                Ok(Session { renew: None, ..session })
            }
        }
    }
}

fn get(credential: &Credential) -> Result<Secret, Failure> {
    credential.get().map_err(|error| Failure::NoLogin(Box::new(error)))
}

fn login_refused(failure: Failure) -> Failure {
    match failure {
        Failure::Refused { status, said } => Failure::LoginRefused { status, said },
        Failure::Missing => Failure::LoginRefused {
            status: 404,
            said: ": there is no such way to log in".to_owned(),
        },
        other => other,
    }
}
