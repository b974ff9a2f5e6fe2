//! Sandboxes in which images are built and snapshots are read: each with a session of Belljar's own, of which no row of the store
//! tells.

use std::sync::Arc;

use causes::with_causes;
use domain::{SandboxId, SessionId, Timestamp};
use policy::Layers;
use sandbox::{ImageDigest, ProviderError, SandboxSpec};
use store::SessionToken;

use super::making::housed;
use super::{HousingError, Stay, tokens};
use crate::Control;
use crate::live::{Live, lock};

/// What such a sandbox is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Site {
    ToBuild,
    ToRead,
}

impl Control {
    /// Makes a sandbox of Belljar's own. Whatever becomes of it, it is to be cleared away.
    pub(crate) async fn open_site(
        &self,
        session: SessionId,
        image: ImageDigest,
        layers: Layers,
        site: Site,
    ) -> Result<(Arc<Live>, Stay), HousingError> {
        let live = self.0.lives.insert_own(session, layers);
        let spec = SandboxSpec {
            id: SandboxId::new(),
            session,
            image,
            limits: self.0.config.sandbox,
            builder: site == Site::ToBuild,
        };
        let status = self.create(&spec).await.map_err(HousingError::Provider)?;
        let usage = self.enter(&live, spec.id);
        let (linked, socket) = self.open_link(&status).await?;
        let token = SessionToken::unstored(Timestamp(i64::MAX));
        let housed = housed(linked, usage, tokens::Current::own(&token), socket);
        // From here on what it shows is known; it is nobody's to be put to sleep.
        *live.seat.housed.lock().await = Some(Arc::clone(&housed));
        self.answers(&housed.linked).await?;
        let claimed = housed.linked.claim(session, &token.secret, self.outfit(true)).await;
        claimed.map_err(HousingError::Link)?;
        Ok((live, Stay::new(&housed)))
    }

    /// Removes every trace of such a sandbox, whoever made it.
    pub(crate) async fn clear_site(&self, session: SessionId) -> Result<(), ProviderError> {
        if let Some(live) = self.0.lives.find(session)
            && let Some(housed) = live.seat.housed.lock().await.take()
        {
            housed.linked.close();
        }
        self.0.lives.remove(session);
        lock(&self.0.housing.by_sandbox).retain(|_, resident| resident.live.session != session);
        if let Some(broker) = &self.0.broker {
            broker.forget(session);
        }
        let provider = &self.0.housing.provider;
        let all = provider.list().await?.into_iter();
        for status in all.filter(|status| status.session == session) {
            self.destroy(session, status.id).await?;
        }
        provider.remove_disk(session).await
    }

    /// The same; where it cannot be done now, who removes nobody's things does it later.
    pub(crate) async fn try_to_clear_site(&self, session: SessionId) {
        if let Err(error) = self.clear_site(session).await {
            tracing::warn!(%session, error = with_causes(&error), "could not remove a sandbox of Belljar's own; it is tried again later");
        }
    }
}
