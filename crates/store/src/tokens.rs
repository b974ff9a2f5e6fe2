//! Tokens with which users come in. Only a hash is kept.

use domain::{Timestamp, TokenId, UserId};
use secret::Secret;
use serde_json::json;

use crate::batch::binds;
use crate::row::Row;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Store, StoreError, User, audit, chain, users};

/// The longest label, in bytes.
const LONGEST_LABEL: usize = 100;

/// How users' tokens begin.
pub(crate) const WORD: &str = "blj";

/// A user's token, without what opens the door.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// Its public half.
    pub id: TokenId,
    /// Whose.
    pub user: UserId,
    /// What its maker called it.
    pub label: String,
    /// When it was made.
    pub created: Timestamp,
    /// From when it opens nothing.
    pub expires: Option<Timestamp>,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

/// A token that was just made.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What is kept of it.
    pub token: Token,
    /// What its owner keeps; it is shown this once.
    pub secret: Secret,
}

/// Who a token belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The user.
    pub user: User,
    /// The token that was shown.
    pub token: TokenId,
    /// What its maker called it.
    pub label: String,
    /// The name under which its prompts count towards the caps of triggers.
    pub trigger: String,
    /// When it expires.
    pub expires: Option<Timestamp>,
}

impl Identity {
    /// Who asks, for the other methods.
    #[must_use]
    pub const fn asker(&self) -> Asker {
        Asker::User {
            id: self.user.id,
            admin: self.user.admin,
            until: self.expires,
        }
    }
}

impl Store {
    /// Makes a token for whoever shows another, as [`Store::create_token`] does. Its prompts count under that one's name, so that
    /// nobody makes their way out of a trigger's cap; an admin's new token counts under its own label.
    ///
    /// # Errors
    /// As there.
    pub async fn create_token_by(
        &self,
        maker: &Identity,
        user: UserId,
        label: &str,
        expires: Option<Timestamp>,
    ) -> Result<NewToken, StoreError> {
        let trigger = if maker.user.admin { label } else { &maker.trigger };
        self.make_token(maker.asker(), user, label, trigger, expires).await
    }

    /// Makes a token for a user. Where the one who asks came with a token that expires, the new one expires no later: a later
    /// or missing `expires` is refused. Audited.
    ///
    /// # Errors
    /// The user does not exist for the one who asks; the label is empty or too long; it would live longer than its maker's.
    pub async fn create_token(
        &self,
        asker: Asker,
        user: UserId,
        label: &str,
        expires: Option<Timestamp>,
    ) -> Result<NewToken, StoreError> {
        self.make_token(asker, user, label, label, expires).await
    }

    async fn make_token(
        &self,
        asker: Asker,
        user: UserId,
        label: &str,
        trigger: &str,
        expires: Option<Timestamp>,
    ) -> Result<NewToken, StoreError> {
        const ATTEMPT: &str = "make a token";
        let refused = |reason: &str| {
            Err(StoreError::Invalid {
                subject: "the token",
                reason: reason.to_owned(),
            })
        };
        if !asker.may_act_for(user) {
            return Err(users::not_found(user));
        }
        if label.is_empty() || label.len() > LONGEST_LABEL || label.chars().any(char::is_control) {
            return refused("its label is 1 to 100 bytes of printable text");
        }
        if expires.is_some_and(|expires| expires <= self.now()) {
            return refused("it would have expired already");
        }
        if let Asker::User { until: Some(until), .. } = asker
            && expires.is_none_or(|expires| expires > until)
        {
            return refused("the token that makes it expires, and it would live longer: give it an earlier end");
        }
        let (label, trigger) = (label.to_owned(), trigger.to_owned());
        self.write(ATTEMPT, move |work| {
            let there = "SELECT id FROM users WHERE id = $1 AND removed IS NULL";
            if work.one(there, binds![user])?.is_none() {
                return Err(users::not_found(user));
            }
            let secret = new_secret(WORD);
            let (token, entry) = add(work, &secret, user, label, &trigger, expires);
            audit::append(work, asker, &[entry])?;
            Ok(NewToken { token, secret })
        })
        .await
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// [`StoreError::Unauthorized`] where it opens nothing, whatever it is.
    pub async fn check_token(&self, secret: &str) -> Result<Identity, StoreError> {
        let sql = "SELECT t.id AS t_id, t.label, t.trigger_name, t.expires, t.revoked, u.id, u.name, u.admin, u.created, u.removed \
                   FROM tokens t JOIN users u ON u.id = t.user_id WHERE t.hash = $1";
        let hash = chain::digest(secret.as_bytes());
        let unauthorized = |reason| StoreError::Unauthorized { reason };
        let row = self.read_one("check a token", sql, binds![hash]).await?;
        let row = row.ok_or_else(|| unauthorized("nobody has this one"))?;
        let (user, expires) = (User::of(&row)?, row.time_or_none("expires")?);
        if row.time_or_none("revoked")?.is_some() || user.removed.is_some() {
            return Err(unauthorized("it was revoked"));
        }
        if expires.is_some_and(|expires| expires <= self.now()) {
            return Err(unauthorized("it has expired"));
        }
        Ok(Identity {
            user,
            token: row.id("t_id")?,
            label: row.text("label")?,
            trigger: row.text("trigger_name")?,
            expires,
        })
    }

    /// A user's tokens, newest first, the revoked and expired ones included.
    ///
    /// # Errors
    /// The user does not exist for the one who asks.
    pub async fn tokens(&self, asker: Asker, user: UserId) -> Result<Vec<Token>, StoreError> {
        self.user(asker, user).await?;
        let sql =
            "SELECT id, user_id, label, created, expires, revoked FROM tokens WHERE user_id = $1 ORDER BY id DESC";
        let rows = self.read("list tokens", sql, binds![user]).await?;
        rows.iter().map(Token::of).collect()
    }

    /// Ends a token at once. To revoke it again changes nothing. Audited.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn revoke_token(&self, asker: Asker, token: TokenId) -> Result<(), StoreError> {
        let not_found = move || StoreError::NotFound {
            kind: "token",
            id: token.to_string(),
        };
        self.write("revoke a token", move |work| {
            let sql = "SELECT id, user_id, label, created, expires, revoked FROM tokens WHERE id = $1";
            let row = work.one(sql, binds![token])?.ok_or_else(not_found)?;
            let found = Token::of(&row)?;
            if !asker.may_act_for(found.user) {
                return Err(not_found());
            }
            if found.revoked.is_some() {
                return Ok(());
            }
            work.batch
                .add("UPDATE tokens SET revoked = $2 WHERE id = $1", binds![token, work.now]);
            let detail = json!({ "user": found.user, "label": found.label });
            let entry = AuditEntry::new("token.revoked", format!("token:{token}"), detail);
            audit::append(work, asker, &[entry])
        })
        .await
    }
}

impl Token {
    fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id("id")?,
            user: row.id("user_id")?,
            label: row.text("label")?,
            created: row.time("created")?,
            expires: row.time_or_none("expires")?,
            revoked: row.time_or_none("revoked")?,
        })
    }
}

/// Adds a token to what is written, and says so.
pub(crate) fn add(
    work: &mut Work,
    secret: &Secret,
    user: UserId,
    label: String,
    trigger: &str,
    expires: Option<Timestamp>,
) -> (Token, AuditEntry) {
    let token = Token {
        id: TokenId::new(),
        user,
        label,
        created: work.now,
        expires,
        revoked: None,
    };
    work.batch.add(
        "INSERT INTO tokens (id, user_id, label, trigger_name, hash, created, expires) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        binds![
            token.id,
            user,
            token.label.as_str(),
            trigger,
            chain::digest(secret.expose().as_bytes()),
            token.created,
            token.expires
        ],
    );
    let detail = json!({ "user": user, "label": token.label, "trigger": trigger, "expires": token.expires });
    let entry = AuditEntry::new("token.created", format!("token:{}", token.id), detail);
    (token, entry)
}

/// 256 bits that nobody can guess, behind a word that scanners for lost secrets can look for.
pub(crate) fn new_secret(word: &str) -> Secret {
    let bytes: [u8; 32] = rand::random();
    Secret::new(format!("{word}_{}", hex::encode(bytes)))
}
