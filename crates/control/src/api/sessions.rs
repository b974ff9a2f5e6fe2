//! Sessions, their runs and what was said in them.

use causes::with_causes;
use domain::{Door, EventNumber, NumberedEvent, RunId, SessionId};
use policy::Scope;
use store::{Asker, Cursor, Page, Positioned, Run, Session, SessionFilter, Spend, Target};

use crate::prompts::stored_scope;
use crate::{Control, ControlError};

impl Control {
    /// One session.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn session(&self, asker: Asker, session: SessionId) -> Result<Session, ControlError> {
        Ok(self.0.store.session(asker, session).await?)
    }

    /// Finds or makes a session without a prompt, so that files can be put into it first, and narrows it. True: it was made.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn open_session(
        &self,
        asker: Asker,
        target: Target,
        door: Door,
        title: &str,
        scope: Option<&Scope>,
    ) -> Result<(Session, bool), ControlError> {
        let narrowing = scope.map(stored_scope).transpose()?;
        let opened = self.0.store.open_session(asker, target, door, title, narrowing).await?;
        if let Some(scope) = scope {
            let live = self.live(asker, opened.0.id).await?;
            live.narrow(scope);
            self.recheck(&live);
        }
        Ok(opened)
    }

    /// A page of sessions, last prompted first.
    ///
    /// # Errors
    /// The filter names another user, and the one who asks is no admin.
    pub async fn sessions(
        &self,
        asker: Asker,
        filter: SessionFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page, ControlError> {
        Ok(self.0.store.sessions(asker, filter, after, limit).await?)
    }

    /// Puts a session away: what is under way stops, its tokens open nothing, its sandbox goes; its files and what was said
    /// are kept, and a prompt brings it back. Where files are kept outside of disks its disk is removed in the background,
    /// unless a prompt comes first.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn archive(&self, asker: Asker, session: SessionId) -> Result<(), ControlError> {
        let live = self.live(asker, session).await?;
        while self.cancel(asker, session, "the session was archived").await?.is_some() {}
        let control = self.clone();
        self.to_its_end(async move {
            let mut writing = live.writing.lock().await;
            let withdrawn = control.0.store.archive_session(asker, session).await?;
            live.note(&mut writing, withdrawn);
            drop(writing);
            control.0.approvals.tell();
            // Its sandbox goes, whatever becomes of this.
            let refreshed = control.refresh_rights(&live).await;
            let why = "the session was archived: its processes are gone, its files are kept";
            control.unhouse_archived(&live, why).await;
            if control.0.files.is_some() {
                let tasks = control.0.tasks.clone();
                tasks.spawn_until_stopped(async move {
                    if let Err(error) = control.archive_files(Asker::System, session).await {
                        tracing::info!(%session, error = with_causes(&error), "an archived session keeps its disk");
                    }
                });
            }
            refreshed
        })
        .await
    }

    /// One run.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn run(&self, asker: Asker, run: RunId) -> Result<Run, ControlError> {
        Ok(self.0.store.run(asker, run).await?)
    }

    /// A session's runs, newest first, those before `before`.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn runs(
        &self,
        asker: Asker,
        session: SessionId,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<Run>, ControlError> {
        Ok(self.0.store.runs(asker, session, before, limit).await?)
    }

    /// What was said, after message `after`.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn messages(
        &self,
        asker: Asker,
        session: SessionId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Positioned>, ControlError> {
        Ok(self.0.store.messages(asker, session, after, limit).await?)
    }

    /// The events after `after`, as they are stored; [`Control::watch`] goes on from there.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn events(
        &self,
        asker: Asker,
        session: SessionId,
        after: EventNumber,
        limit: u32,
    ) -> Result<Vec<NumberedEvent>, ControlError> {
        Ok(self.0.store.events(asker, session, after, limit).await?.events)
    }

    /// What a session has spent, and what its calls under way may still cost.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks.
    pub async fn session_spend(&self, asker: Asker, session: SessionId) -> Result<Spend, ControlError> {
        Ok(self.0.store.session_spend(asker, session).await?)
    }
}
