//! Users, their tokens, what they spent, who did what.

use std::collections::HashSet;
use std::sync::Arc;

use domain::{Timestamp, TokenId, UserId};
use futures::{StreamExt, future};
use secret::Secret;
use store::{
    Asker, AuditFilter, AuditFrom, AuditPage, AuditVerdict, By, Hash, Identity, LedgerEntry, NewToken, Token,
    UsageFilter, UsageSum, User,
};
use tokio::sync::watch;

use crate::housing::SIDE_BY_SIDE;
use crate::live::Live;
use crate::{Control, ControlError};

/// Why the runs of a user stop.
pub(crate) const USER_REMOVED: &str = "its user was removed";

impl Control {
    /// Whose token this is.
    ///
    /// # Errors
    /// [`ControlError::Unauthorized`] where it opens nothing.
    pub async fn authenticate(&self, token: &Secret) -> Result<Identity, ControlError> {
        Ok(self.0.store.check_token(token.expose()).await?)
    }

    /// The first admin, with a token that has this secret, where there is no user yet: the start of a new installation. It is kept
    /// before it is made: whoever is killed in between begins again, and nobody is left outside.
    ///
    /// # Errors
    /// The store failed; it could not be kept.
    pub async fn first_admin<E: From<ControlError>>(
        &self,
        name: &str,
        keep: impl FnOnce(&Secret) -> Result<(), E>,
    ) -> Result<Option<Secret>, E> {
        let store = &self.0.store;
        let Some(secret) = store.first_secret().await.map_err(ControlError::from)? else {
            return Ok(None);
        };
        keep(&secret)?;
        let made = store.create_first_admin(name, &secret).await;
        Ok(made.map_err(ControlError::from)?.then_some(secret))
    }

    /// A new token of an admin, for whoever owns the machine and is left with none that opens anything.
    ///
    /// # Errors
    /// The store failed.
    pub async fn recover_admin(&self) -> Result<Option<Secret>, ControlError> {
        Ok(self.0.store.recover_admin().await?)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// The one who asks is no admin; the name is no name, or taken.
    pub async fn create_user(&self, asker: Asker, name: &str, admin: bool) -> Result<User, ControlError> {
        Ok(self.0.store.create_user(asker, name, admin).await?)
    }

    /// One user.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn user(&self, asker: Asker, user: UserId) -> Result<User, ControlError> {
        Ok(self.0.store.user(asker, user).await?)
    }

    /// Everybody.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn users(&self, asker: Asker) -> Result<Vec<User>, ControlError> {
        Ok(self.0.store.users(asker, false).await?)
    }

    /// Removes a user: their tokens and those of their sessions open nothing from now on, their runs are cancelled, and their
    /// sessions take no prompt.
    ///
    /// # Errors
    /// The one who asks is no admin; there is no such user; it is the last admin. Not all runs could be stopped: none goes on for
    /// long all the same, and it may be asked again.
    pub async fn remove_user(&self, asker: Asker, user: UserId) -> Result<(), ControlError> {
        let control = self.clone();
        self.to_its_end(async move {
            control.0.store.remove_user(asker, user).await?;
            let stopped = control.stop_runs_of(user).await;
            stopped.and(control.unhouse_all_of(user).await)
        })
        .await
    }

    async fn unhouse_all_of(&self, user: UserId) -> Result<(), ControlError> {
        let mut lives = self.0.lives.all();
        lives.retain(|live| live.owner == user);
        let known: HashSet<_> = lives.iter().map(|live| live.session).collect();
        self.unhouse_each(lives, USER_REMOVED).await;
        // Of those that a process before this one left, and of what was kept of them, nobody may have heard here.
        let mut others = self.0.store.sessions_with_processes(Asker::System, user).await?;
        others.retain(|session| !known.contains(session));
        let others = future::try_join_all(others.into_iter().map(|session| self.live(Asker::System, session))).await?;
        self.unhouse_each(others, USER_REMOVED).await;
        Ok(())
    }

    async fn unhouse_each(&self, lives: Vec<Arc<Live>>, why: &str) {
        futures::stream::iter(lives)
            .for_each_concurrent(SIDE_BY_SIDE, async |live| self.unhouse(&live, why).await)
            .await;
    }

    async fn stop_runs_of(&self, user: UserId) -> Result<(), ControlError> {
        let mut stopped = Ok(());
        for session in self.0.store.open_sessions(Asker::System, user).await? {
            loop {
                match self.cancel(Asker::System, session, USER_REMOVED).await {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        stopped = stopped.and(Err(error));
                        break;
                    }
                }
            }
        }
        stopped
    }

    /// Makes a token for a user, for whoever shows another.
    ///
    /// # Errors
    /// The user does not exist for the one who asks; it would live longer than its maker's.
    pub async fn create_token(
        &self,
        maker: &Identity,
        user: UserId,
        label: &str,
        expires: Option<Timestamp>,
    ) -> Result<NewToken, ControlError> {
        Ok(self.0.store.create_token_by(maker, user, label, expires).await?)
    }

    /// A user's tokens.
    ///
    /// # Errors
    /// The user does not exist for the one who asks.
    pub async fn tokens(&self, asker: Asker, user: UserId) -> Result<Vec<Token>, ControlError> {
        Ok(self.0.store.tokens(asker, user).await?)
    }

    /// Ends a token at once.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn revoke_token(&self, asker: Asker, token: TokenId) -> Result<(), ControlError> {
        Ok(self.0.store.revoke_token(asker, token).await?)
    }

    /// Sums of what was spent.
    ///
    /// # Errors
    /// The filter names what does not exist for the one who asks.
    pub async fn usage(&self, asker: Asker, filter: UsageFilter, by: By) -> Result<Vec<UsageSum>, ControlError> {
        Ok(self.0.store.usage(asker, filter, by).await?)
    }

    /// What was spent, call by call, after entry `after`.
    ///
    /// # Errors
    /// The filter names what does not exist for the one who asks.
    pub async fn ledger(
        &self,
        asker: Asker,
        filter: UsageFilter,
        after: i64,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, ControlError> {
        Ok(self.0.store.ledger(asker, filter, after, limit).await?)
    }

    /// Entries of the audit log that a filter wants, at most `limit`.
    ///
    /// # Errors
    /// The one who asks is no admin; the action is no pattern.
    pub async fn audit(
        &self,
        asker: Asker,
        filter: AuditFilter,
        from: AuditFrom,
        limit: u32,
    ) -> Result<AuditPage, ControlError> {
        Ok(self.0.store.audit_page(asker, filter, from, limit).await?)
    }

    /// Holds the number of the audit log's newest entry, told after each commit.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub fn watch_audit(&self, asker: Asker) -> Result<watch::Receiver<i64>, ControlError> {
        Ok(self.0.store.watch_audit(asker)?)
    }

    /// Whether the audit log is what was written. `noted` is the number and link of an entry that was kept elsewhere.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn verify_audit(&self, asker: Asker, noted: Option<(i64, Hash)>) -> Result<AuditVerdict, ControlError> {
        Ok(self.0.store.verify_audit(asker, noted).await?)
    }
}
