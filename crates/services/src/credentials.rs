//! Credentials, put into a request at the moment it is made.

mod github_app;
mod key_pair;
mod oauth2;
mod refresh;
mod rsa;
mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use secret::{Custody, Secret, Unresolved};
use tokio::time::Instant;

use crate::client::Client;
use crate::definition::{Auth, Part};
use crate::request::{Outgoing, encode};
use crate::settings::Bound;
use crate::{Code, Failure};
use tokens::Tokens;

/// How one service authenticates, and with what. Secrets are asked for at each request and kept no longer.
pub(crate) struct Credentials {
    service: String,
    /// All of them are put into a request.
    ways: Vec<Way>,
    slots: BTreeMap<String, Bound>,
    secrets: Custody,
}

/// A way to authenticate, with what it remembers.
enum Way {
    Plain(Part),
    /// A token that is made from the secrets, and used until shortly before its end.
    Minted {
        auth: Auth,
        tokens: Arc<Tokens>,
    },
}

impl Way {
    fn new(part: Part) -> Self {
        match part.auth {
            auth @ (Auth::OAuth2 { .. } | Auth::GitHubApp | Auth::KeyPair) => Self::Minted {
                auth,
                tokens: Arc::default(),
            },
            _ => Self::Plain(part),
        }
    }
}

/// What a request was given.
pub(crate) struct Given {
    /// What must not come back.
    pub(crate) secrets: Vec<Secret>,
    /// The token that was made for it, where one was: it may have been revoked meanwhile.
    pub(crate) minted: Option<Secret>,
}

/// Who makes tokens needs this.
pub(crate) struct Means<'a> {
    pub(crate) client: &'a Client,
    pub(crate) base: &'a url::Url,
    pub(crate) tasks: &'a lifecycle::Tasks,
    pub(crate) deadline: Instant,
}

impl Credentials {
    /// `ways` are the definition's, the preferred first: the first is taken whose slots are all bound.
    pub(crate) fn new(service: &str, ways: &[Auth], slots: BTreeMap<String, Bound>, secrets: Custody) -> Self {
        let bound = |auth: &&Auth| auth.required().iter().all(|slot| slots.contains_key(*slot));
        let parts = match ways.iter().find(bound).or(ways.first()).cloned() {
            None => Vec::new(),
            Some(Auth::All(parts)) => parts,
            Some(auth) => vec![Part { auth, slot: None }],
        };
        Self {
            service: service.to_owned(),
            ways: parts.into_iter().map(Way::new).collect(),
            slots,
            secrets,
        }
    }

    /// Puts the credential into a request.
    pub(crate) async fn give(&self, request: &mut Outgoing, means: &Means<'_>) -> Result<Given, Failure> {
        let mut given = Given {
            secrets: Vec::new(),
            minted: None,
        };
        for way in &self.ways {
            match way {
                Way::Plain(part) => given.secrets.extend(self.give_plain(part, request)?),
                Way::Minted { auth, tokens } => {
                    let slots = self.all(auth)?;
                    let successors = self.secrets.successors.as_ref();
                    let token = tokens.get(&self.service, auth, slots, successors, means).await?;
                    self.set(request, AUTHORIZATION, &format!("Bearer {}", token.expose()))?;
                    if matches!(auth, Auth::KeyPair) {
                        request.headers.insert(key_pair::KIND_HEADER, key_pair::KIND);
                    }
                    given.secrets.push(token.clone());
                    given.minted = Some(token);
                }
            }
        }
        Ok(given)
    }

    /// The upstream did not accept this token: the next request gets another. Says whether there is any use in that.
    pub(crate) async fn discard(&self, given: &Given) -> bool {
        let Some(token) = &given.minted else { return false };
        for way in &self.ways {
            if let Way::Minted { tokens, .. } = way {
                tokens.discard(token).await;
            }
        }
        true
    }

    fn give_plain(&self, part: &Part, request: &mut Outgoing) -> Result<Vec<Secret>, Failure> {
        let token = || self.slot(part.slot("token"));
        match &part.auth {
            Auth::Bearer => {
                let token = token()?;
                self.set(request, AUTHORIZATION, &format!("Bearer {}", token.expose()))?;
                Ok(vec![token])
            }
            Auth::Basic => {
                let user = self.slot("user")?;
                let password = self.optional("password")?;
                let both = format!(
                    "{}:{}",
                    user.expose(),
                    password.as_ref().map_or("", |password| password.expose())
                );
                self.set(request, AUTHORIZATION, &format!("Basic {}", STANDARD.encode(&both)))?;
                // A user's name that was written as it is may come back, the pair may not.
                let user = matches!(self.slots.get("user"), Some(Bound::Secret(_))).then_some(user);
                Ok(user.into_iter().chain(password).chain([Secret::new(both)]).collect())
            }
            Auth::Header { name, prefix } => {
                let token = token()?;
                let name = HeaderName::try_from(name.as_str())
                    .map_err(|_| self.missing(format!("{name:?} is no header's name")))?;
                self.set(request, name, &format!("{prefix}{}", token.expose()))?;
                Ok(vec![token])
            }
            Auth::Query { name } => {
                let token = token()?;
                let mut query = request.url.query().map(|query| format!("{query}&")).unwrap_or_default();
                query.extend(encode(name));
                query.push('=');
                query.extend(encode(token.expose()));
                request.url.set_query(Some(&query));
                Ok(vec![token])
            }
            Auth::AwsSigV4 { region, service } => self.sign(region, service, request),
            // They are made, or given to a program, not put into a request.
            Auth::OAuth2 { .. } | Auth::GitHubApp | Auth::KeyPair | Auth::Environment { .. } | Auth::All(_) => {
                Ok(Vec::new())
            }
        }
    }

    fn sign(&self, region: &str, service: &str, request: &mut Outgoing) -> Result<Vec<Secret>, Failure> {
        let access_key = self.slot("access_key_id")?;
        let secret_key = self.slot("secret_access_key")?;
        let session_token = self.optional("session_token")?;
        let host = &request.url[url::Position::BeforeHost..url::Position::AfterPort];
        let signed = signing::sign(
            &signing::Request {
                method: &request.verb,
                host,
                path: request.url.path(),
                query: request.url.query(),
                headers: &request.headers,
                payload: &signing::payload_hash(&request.body),
            },
            &signing::Keys {
                access_key: access_key.expose(),
                secret_key: &secret_key,
                session_token: session_token.as_ref(),
            },
            signing::Scope { region, service },
            jiff::Timestamp::now().as_second(),
        );
        let signed = signed.map_err(|error| self.missing(error.to_string()))?;
        request.headers.extend(signed);
        Ok([secret_key].into_iter().chain(session_token).collect())
    }

    /// Every slot of a way that is bound, by name.
    fn all(&self, auth: &Auth) -> Result<BTreeMap<&'static str, Secret>, Failure> {
        let mut all = BTreeMap::new();
        for slot in auth.own_required() {
            all.insert(*slot, self.slot(slot)?);
        }
        for slot in auth.own_optional() {
            if let Some(secret) = self.optional(slot)? {
                all.insert(*slot, secret);
            }
        }
        Ok(all)
    }

    /// What is given to a program.
    pub(crate) fn token(&self) -> Result<Secret, Failure> {
        self.slot("token")
    }

    /// The secret of a slot, where it is bound.
    pub(crate) fn optional(&self, slot: &str) -> Result<Option<Secret>, Failure> {
        self.slots.contains_key(slot).then(|| self.slot(slot)).transpose()
    }

    /// The secret of a slot, as it is now.
    pub(crate) fn slot(&self, slot: &str) -> Result<Secret, Failure> {
        let service = &self.service;
        let unresolved = |unresolved: Unresolved| {
            let Unresolved {
                reference, why, remedy, ..
            } = unresolved;
            Failure::new(
                Code::CredentialMissing,
                format!("{service}: the secret {reference} (auth.{slot}) cannot be had: {why}"),
            )
            .remedy(remedy)
        };
        match self.slots.get(slot) {
            Some(Bound::Secret(reference)) => self.secrets.source.secret(reference).map_err(unresolved),
            Some(Bound::Text(text)) => Ok(text.clone()),
            None => Err(Failure::new(
                Code::CredentialMissing,
                format!("{service}: nothing says what auth.{slot} is"),
            )
            .remedy(format!(
                "an administrator sets services.{service}.auth.{slot} in belljar.toml, such as \"store:{service}-{slot}\""
            ))),
        }
    }

    fn set(&self, request: &mut Outgoing, name: HeaderName, text: &str) -> Result<(), Failure> {
        let mut value = HeaderValue::from_str(text).map_err(|_| {
            self.missing("the credential has characters that a header cannot carry, such as a line break".to_owned())
        })?;
        value.set_sensitive(true);
        request.headers.insert(name, value);
        Ok(())
    }

    fn missing(&self, why: String) -> Failure {
        let service = &self.service;
        Failure::new(Code::CredentialMissing, format!("{service}: {why}")).remedy(format!(
            "an administrator sets the secrets of services.{service}.auth anew"
        ))
    }
}
