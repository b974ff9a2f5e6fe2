//! Files that a session is owed: it went back to a snapshot, or was made from one, and gets no sandbox before it has them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use causes::with_causes;
use sandbox::ProviderError;
use store::Asker;
use tokio::time::Instant;

use super::HousingError;
use super::meters::Transition;
use crate::live::{Live, lock};
use crate::{Control, ControlError};

impl Control {
    /// Ends a session's sandbox if it is owed other files, and brings them.
    pub(crate) async fn settle_files(&self, live: &Arc<Live>) -> Result<(), ControlError> {
        if live.owed().is_none() {
            return Ok(());
        }
        self.exchange_files(live, std::future::ready(Ok(()))).await
    }

    /// Ends a session's sandbox, so that nothing in it sees its files change; then does what makes it be owed others, and brings
    /// them.
    pub(crate) async fn exchange_files(
        &self,
        live: &Arc<Live>,
        owe: impl Future<Output = Result<(), ControlError>>,
    ) -> Result<(), ControlError> {
        let mut seat = live.seat.housed.lock().await;
        let why = "the session gets other files";
        self.vacate(live, &mut seat, why).await;
        owe.await?;
        self.bring_files(live).await.map_err(|error| {
            let words = with_causes(&error);
            tracing::warn!(session = %live.session, error = %words, "could not bring a session's files");
            ControlError::Unavailable(format!(
                "the session's files could not be brought, and are when it is used next: {words}"
            ))
        })
    }

    /// Makes a session's disk from the snapshot that it is owed. To be called with its seat held, before it gets a sandbox.
    pub(super) async fn bring_files(&self, live: &Live) -> Result<(), HousingError> {
        let Some(snapshot) = live.owed() else { return Ok(()) };
        let provider = &self.0.housing.provider;
        lock(&self.0.housing.left).remove(&live.session);
        let began = Instant::now();
        let mut brought = provider.restore(snapshot, live.session).await;
        if let Err(ProviderError::DiskInUse { sandbox, .. }) = brought {
            // One that a dead process left: it has the files that are to go.
            let destroyed = self.destroy(live.session, sandbox).await;
            destroyed.map_err(HousingError::Provider)?;
            brought = provider.restore(snapshot, live.session).await;
        }
        self.stepped(live.session, Transition::Restore, began, &brought);
        if let Err(ProviderError::NoSnapshot(_)) = brought {
            // It will never come: better the files that are there than none.
            tracing::error!(session = %live.session, %snapshot, "the files that a session was to have are gone; it goes on with those it has");
            let mut writing = live.writing.lock().await;
            let given_up = self.0.store.files_gone(Asker::System, live.session, snapshot).await;
            live.note(&mut writing, given_up.map_err(HousingError::Store)?);
            live.owe(None);
            return Ok(());
        }
        brought.map_err(HousingError::Provider)?;
        let spent = self.0.store.files_brought(Asker::System, live.session).await;
        let spent = spent.map_err(HousingError::Store)?;
        live.owe(None);
        live.seat.has_files.store(true, Ordering::SeqCst);
        if let Some(spent) = spent
            && let Err(error) = provider.remove_snapshot(spent).await
        {
            tracing::warn!(snapshot = %spent, error = with_causes(&error), "could not remove the files of a snapshot; it is seen to later");
        }
        Ok(())
    }
}
