//! Tokens that sandboxes show. Only a hash is kept.
//!
//! A session has one current token. When it is rotated, the one before stays good for half a minute, and then only once (a
//! request that was under way). Shown again within that time it is refused; shown later it was stolen: every token of the
//! session is revoked, and the audit log says so.

use std::time::Duration;

use domain::{SandboxId, SessionId, Timestamp};
use secret::Secret;
use serde_json::json;

use crate::batch::binds;
use crate::head::{Head, not_found};
use crate::row::Row;
use crate::tokens::new_secret;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Hash, Store, StoreError, audit, chain};

/// What these tokens begin with.
const WORD: &str = "bljs";
/// What is done about one that is where it should not be.
const ALL_REVOKED: &str = "every token of the session is revoked";

/// A sandbox's token that was just made.
#[derive(Clone, Debug)]
pub struct SessionToken {
    /// What the sandbox shows.
    pub secret: Secret,
    /// From when it opens nothing.
    pub expires: Timestamp,
}

/// What a session's sandbox may expect of its token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenState {
    /// The session has a current one.
    Current,
    /// It has none, and goes on.
    Revoked,
    /// It has none, and was archived.
    Archived,
    /// It has none, and its user was removed.
    Removed,
}

impl SessionToken {
    /// A token that no store knows: it is good for as long as whoever made it says so.
    #[must_use]
    pub fn unstored(expires: Timestamp) -> Self {
        Self {
            secret: new_secret(WORD),
            expires,
        }
    }
}

impl Store {
    /// The longest time for which a token that was rotated away is still accepted.
    pub const OVERLAP: Duration = Duration::from_secs(30);

    /// Makes a session's first token, for a sandbox that is claimed; every earlier one of the session is revoked.
    ///
    /// # Errors
    /// The session does not exist, or the one who asks is not Belljar itself.
    pub async fn issue_session_token(
        &self,
        asker: Asker,
        session: SessionId,
        life: Duration,
    ) -> Result<SessionToken, StoreError> {
        asker.must_be_system("make a session's token")?;
        self.write("make a session's token", move |work| {
            Head::read(work, session)?;
            // Those were of sandboxes that are gone: nobody knows one of them by heart.
            end(work, session);
            // One that was revoked and has expired since can betray nobody any more.
            work.batch.add(
                "DELETE FROM session_tokens WHERE session_id = $1 AND expires < $2",
                binds![session, work.now],
            );
            Ok(insert(work, session, life))
        })
        .await
    }

    /// How often tokens were revoked while this store is open, by whomever and for whatever reason. Whoever found a token good, and
    /// loaded this before, may believe that until it is another number, or the token expires. It has changed before whoever revokes
    /// is answered.
    #[must_use]
    pub fn revocations(&self) -> u64 {
        self.inner.watchers.revocations()
    }

    /// Puts a new token in the place of the current one, which stays good for [`Store::OVERLAP`], once. Whoever asks knows by a
    /// clock that nobody sets that it is time; by the machine's the current one may have expired.
    ///
    /// # Errors
    /// The session has no token, or they were revoked.
    pub async fn rotate_session_token(
        &self,
        asker: Asker,
        session: SessionId,
        life: Duration,
    ) -> Result<SessionToken, StoreError> {
        asker.must_be_system("rotate a session's token")?;
        self.write("rotate a session's token", move |work| {
                let current = "SELECT 1 FROM session_tokens WHERE session_id = $1 AND replaced IS NULL AND revoked IS NULL";
                if work.one(current, binds![session])?.is_none() {
                    return Err(StoreError::NotFound {
                        kind: "token of session",
                        id: session.to_string(),
                    });
                }
                work.batch.add(
                    "UPDATE session_tokens SET replaced = $2 WHERE session_id = $1 AND replaced IS NULL AND revoked IS NULL",
                    binds![session, work.now],
                );
                Ok(insert(work, session, life))
            })
        .await
    }

    /// The session whose token this is. The current token costs one read.
    ///
    /// # Errors
    /// [`StoreError::Unauthorized`] where it opens nothing.
    pub async fn check_session_token(&self, secret: &str) -> Result<SessionId, StoreError> {
        let hash = chain::digest(secret.as_bytes());
        let row = self.read_one("check a session's token", SHOWN, binds![hash]).await?;
        match Shown::of(row.as_ref())?.verdict(self.now()) {
            Verdict::Good(session) => Ok(session),
            Verdict::Bad(reason) => Err(StoreError::Unauthorized { reason }),
            // What follows is written, and decided by the one who writes: two who show it at once are not both let in.
            Verdict::Once | Verdict::Stolen => {
                let admitted = self
                    .write("check a session's token", move |work| admit(work, hash))
                    .await?;
                admitted.map_err(|reason| StoreError::Unauthorized { reason })
            }
        }
    }

    /// Ends every token of the session whose token this is: a sandbox that is not the session's showed it. Audited once, however
    /// often it is shown meanwhile; where it opened nothing any more, nothing changes.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself; the store could not be written.
    pub async fn revoke_stolen_token(&self, asker: Asker, secret: &str, shown_by: SandboxId) -> Result<(), StoreError> {
        const ATTEMPT: &str = "revoke a stolen token";
        asker.must_be_system(ATTEMPT)?;
        let hash = chain::digest(secret.as_bytes());
        self.write(ATTEMPT, move |work| {
            let row = work.one(SHOWN, binds![hash])?;
            let shown = Shown::of(row.as_ref())?;
            let Some(session) = shown.session.filter(|_| !shown.revoked) else {
                return Ok(());
            };
            revoke(work, session);
            let detail = json!({ "shown_by": shown_by, "done": ALL_REVOKED });
            let entry = AuditEntry::about("session_token.stolen", session, detail);
            audit::append(work, asker, &[entry])
        })
        .await
    }

    /// Whether a session has a current token, and why it has none. No time counts here: one that has expired is current until it
    /// is replaced.
    ///
    /// # Errors
    /// There is no such session, or the one who asks is not Belljar itself; the store could not be read.
    pub async fn session_token_state(&self, asker: Asker, session: SessionId) -> Result<TokenState, StoreError> {
        const ATTEMPT: &str = "look for a session's token";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT s.archived, u.removed, EXISTS (SELECT 1 FROM session_tokens t \
                   WHERE t.session_id = s.id AND t.replaced IS NULL AND t.revoked IS NULL) AS current \
                   FROM sessions s JOIN users u ON u.id = s.owner WHERE s.id = $1";
        let row = self.read_one(ATTEMPT, sql, binds![session]).await?;
        let row = row.ok_or_else(|| not_found(session))?;
        Ok(if row.integer("current")? == 1 {
            TokenState::Current
        } else if row.time_or_none("removed")?.is_some() {
            TokenState::Removed
        } else if row.time_or_none("archived")?.is_some() {
            TokenState::Archived
        } else {
            TokenState::Revoked
        })
    }

    /// Ends every token of a session at once. Audited where there was one, which is answered; to do it again changes nothing.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn revoke_session_tokens(
        &self,
        asker: Asker,
        session: SessionId,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let reason = reason.to_owned();
        self.write("revoke a session's tokens", move |work| {
            let head = Head::read(work, session)?;
            if !asker.may_see(session, head.owner) {
                return Err(not_found(session));
            }
            let sql = "SELECT 1 FROM session_tokens WHERE session_id = $1 AND revoked IS NULL";
            if work.one(sql, binds![session])?.is_none() {
                return Ok(false);
            }
            revoke(work, session);
            let entry = AuditEntry::about("session_tokens.revoked", session, json!({ "reason": reason }));
            audit::append(work, asker, &[entry])?;
            Ok(true)
        })
        .await
    }
}

const SHOWN: &str = "SELECT session_id, expires, replaced, used, revoked FROM session_tokens WHERE hash = $1";

/// A token that somebody shows.
struct Shown {
    session: Option<SessionId>,
    expires: Timestamp,
    replaced: Option<Timestamp>,
    used: bool,
    revoked: bool,
}

enum Verdict {
    /// It is the current one.
    Good(SessionId),
    /// It was rotated away a moment ago.
    Once,
    /// It was rotated away long ago: whoever shows it is not the sandbox that has the new one.
    Stolen,
    /// It opens nothing.
    Bad(&'static str),
}

impl Shown {
    fn of(row: Option<&Row>) -> Result<Self, StoreError> {
        let Some(row) = row else {
            return Ok(Self {
                session: None,
                expires: Timestamp(0),
                replaced: None,
                used: false,
                revoked: false,
            });
        };
        Ok(Self {
            session: Some(row.id("session_id")?),
            expires: row.time("expires")?,
            replaced: row.time_or_none("replaced")?,
            used: row.time_or_none("used")?.is_some(),
            revoked: row.time_or_none("revoked")?.is_some(),
        })
    }

    fn verdict(&self, now: Timestamp) -> Verdict {
        match (self.session, self.replaced) {
            (None, _) => Verdict::Bad("no session has this one"),
            _ if self.revoked => Verdict::Bad("it was revoked"),
            (Some(_), Some(replaced)) if now > replaced.after(Store::OVERLAP) => Verdict::Stolen,
            _ if self.expires <= now => Verdict::Bad("it has expired"),
            (Some(_), Some(_)) if self.used => Verdict::Bad("it was rotated away, and has been used since"),
            (Some(_), Some(_)) => Verdict::Once,
            (Some(session), None) => Verdict::Good(session),
        }
    }
}

fn admit(work: &mut Work, hash: Hash) -> Result<Result<SessionId, &'static str>, StoreError> {
    let row = work.one(SHOWN, binds![hash])?;
    let shown = Shown::of(row.as_ref())?;
    let Some(session) = shown.session else {
        return Ok(Err("no session has this one"));
    };
    match shown.verdict(work.now) {
        Verdict::Good(session) => Ok(Ok(session)),
        Verdict::Bad(reason) => Ok(Err(reason)),
        Verdict::Once => {
            work.batch.add(
                "UPDATE session_tokens SET used = $2 WHERE hash = $1",
                binds![hash, work.now],
            );
            Ok(Ok(session))
        }
        Verdict::Stolen => {
            revoke(work, session);
            let entry = AuditEntry::about("session_token.reused", session, json!({ "done": ALL_REVOKED }));
            audit::append(work, Asker::Session(session), &[entry])?;
            Ok(Err(
                "it was rotated away long ago; every token of the session is revoked now",
            ))
        }
    }
}

/// Ends every token of a session, and has everybody ask who knows one by heart.
pub(crate) fn revoke(work: &mut Work, session: SessionId) {
    end(work, session);
    work.revoked = true;
}

fn end(work: &mut Work, session: SessionId) {
    work.batch.add(
        "UPDATE session_tokens SET revoked = $2 WHERE session_id = $1 AND revoked IS NULL",
        binds![session, work.now],
    );
}

fn insert(work: &mut Work, session: SessionId, life: Duration) -> SessionToken {
    let token = SessionToken {
        secret: new_secret(WORD),
        expires: work.now.after(life),
    };
    work.batch.add(
        "INSERT INTO session_tokens (hash, session_id, expires) VALUES ($1, $2, $3)",
        binds![chain::digest(token.secret.expose().as_bytes()), session, token.expires],
    );
    token
}
