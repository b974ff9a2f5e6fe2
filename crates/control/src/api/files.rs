//! Files of a session's workspace, through its runtime: never through the host's view.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use domain::SessionId;
use futures::Stream;
use futures::stream::BoxStream;
use lifecycle::DropGuard;
use link::server::{FileReader, FileSource, LinkError};
use protocol::FileEntry;
use serde_json::Value;
use store::{Asker, AuditEntry};

use crate::housing::Stay;
use crate::{Control, ControlError};

/// The longest path that is handed on.
const LONGEST_PATH: usize = 4_096;

/// A file's bytes as they come out of the sandbox, which stays awake meanwhile.
pub struct FileStream {
    bytes: BoxStream<'static, std::io::Result<Bytes>>,
    _stay: Stay,
    _until_dropped: Option<DropGuard>,
}

impl FileStream {
    /// What a sandbox hands out.
    pub(crate) fn new(reader: FileReader, stay: Stay) -> Self {
        Self {
            bytes: reader.into_stream(),
            _stay: stay,
            _until_dropped: None,
        }
    }

    /// Says when nobody reads it any more.
    pub(crate) fn until_dropped(mut self, guard: DropGuard) -> Self {
        self._until_dropped = Some(guard);
        self
    }
}

impl std::fmt::Debug for FileStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileStream").finish_non_exhaustive()
    }
}

impl Stream for FileStream {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.bytes.as_mut().poll_next(context)
    }
}

impl Control {
    /// Puts bytes in a file's place, folders on the way included: all of them, or none.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; the path leaves the workspace; the disk is full; no sandbox.
    pub async fn upload(
        &self,
        asker: Asker,
        session: SessionId,
        path: &str,
        bytes: FileSource,
    ) -> Result<(), ControlError> {
        let stay = self.opened(asker, session, path).await?;
        stay.linked.write_file(path, bytes).await.map_err(transferred)
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; there is no such file; no sandbox.
    pub async fn download(&self, asker: Asker, session: SessionId, path: &str) -> Result<FileStream, ControlError> {
        let stay = self.opened(asker, session, path).await?;
        let reader = stay.linked.read_file(path).await.map_err(transferred)?;
        Ok(FileStream::new(reader, stay))
    }

    /// What is in and below a folder; empty for the whole workspace.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; there is no such folder; no sandbox.
    pub async fn files(&self, asker: Asker, session: SessionId, path: &str) -> Result<Vec<FileEntry>, ControlError> {
        let stay = self.opened(asker, session, path).await?;
        stay.linked.list_files(path).await.map_err(transferred)
    }

    /// The whole workspace as an archive (tar). Links that lead out of it, pipes, sockets, devices and set-uid bits are left out.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; no sandbox.
    pub async fn export(&self, asker: Asker, session: SessionId) -> Result<FileStream, ControlError> {
        let stay = self.opened(asker, session, "").await?;
        let entry = AuditEntry::about("session.exported", session, Value::Null);
        self.0.store.audit(asker, vec![entry]).await?;
        let reader = stay.linked.pack().await.map_err(transferred)?;
        Ok(FileStream::new(reader, stay))
    }

    /// Puts what is in an archive (tar) in the workspace's place: all of it, or nothing.
    ///
    /// # Errors
    /// The session does not exist, for the one who asks; a run is under way; the archive is broken, or holds what is not taken
    /// in; no room; no sandbox.
    pub async fn import(&self, asker: Asker, session: SessionId, archive: FileSource) -> Result<(), ControlError> {
        let live = self.live(asker, session).await?;
        let _no_run_begins = self.without_run(asker, &live).await?;
        let stay = self.opened(asker, session, "").await?;
        stay.linked.unpack(archive).await.map_err(transferred)?;
        let entry = AuditEntry::about("session.imported", session, Value::Null);
        Ok(self.0.store.audit(asker, vec![entry]).await?)
    }

    async fn opened(&self, asker: Asker, session: SessionId, path: &str) -> Result<Stay, ControlError> {
        if path.len() > LONGEST_PATH || path.contains('\0') {
            return Err(ControlError::Invalid(format!(
                "a path is at most {LONGEST_PATH} bytes, without a zero byte"
            )));
        }
        let live = self.live(asker, session).await?;
        Ok(self.house(&live).await?)
    }
}

pub(crate) fn transferred(error: LinkError) -> ControlError {
    match error {
        // The runtime's own words: about the path that was asked for.
        LinkError::Failed { reason, .. } => ControlError::Invalid(reason),
        LinkError::Lost { .. } | LinkError::Silent { .. } | LinkError::Listen { .. } => {
            ControlError::Unavailable(error.to_string())
        }
    }
}
