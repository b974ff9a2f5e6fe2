//! What people are asked, and their answers.

use domain::{ApprovalAnswer, ApprovalId};
use store::{Approval, ApprovalFilter, Asker};

use crate::{Control, ControlError};

impl Control {
    /// One question.
    ///
    /// # Errors
    /// There is none, for the one who asks.
    pub async fn approval(&self, asker: Asker, id: ApprovalId) -> Result<Approval, ControlError> {
        Ok(self.0.store.approval(asker, id).await?)
    }

    /// Questions, the newest first.
    ///
    /// # Errors
    /// The filter names a session that does not exist, for the one who asks.
    pub async fn approvals(
        &self,
        asker: Asker,
        filter: ApprovalFilter,
        limit: u32,
    ) -> Result<Vec<Approval>, ControlError> {
        Ok(self.0.store.approvals(asker, filter, limit).await?)
    }

    /// A person answers; what waits for it goes on. `seen` is the SHA-256 of the request that they were shown, in hex.
    ///
    /// # Errors
    /// There is no such question, for the one who asks; they may not answer it; it is over; `seen` is of another request; the
    /// one who asks is no person.
    pub async fn decide(
        &self,
        asker: Asker,
        id: ApprovalId,
        answer: ApprovalAnswer,
        words: Option<&str>,
        seen: &str,
    ) -> Result<Approval, ControlError> {
        let mut hash = store::Hash::default();
        hex::decode_to_slice(seen, &mut hash.0).map_err(|_| {
            ControlError::Invalid("send back the request's SHA-256 as it was shown: 64 hexadecimal digits".to_owned())
        })?;
        let session = self.0.store.approval(asker, id).await?.session;
        let live = self.live(asker, session).await?;
        let mut writing = live.writing.lock().await;
        let decided = self.0.store.decide(asker, id, answer, words, hash).await?;
        live.note(&mut writing, decided.events);
        drop(writing);
        // Before whoever waits goes on.
        let refreshed = self.refresh_rights(&live).await;
        self.0.approvals.tell();
        refreshed?;
        Ok(decided.approval)
    }
}
