//! Files in and out of the workspace. The hands open them; PID 1 only moves bytes between a descriptor and the link.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causes::with_causes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use link::client::{Client, ClientError};
use protocol::{FileEntry, FileRequest, ToControl, Transfer};

use crate::hands::{FileFailure, Hands};
use crate::sync::Keeper;

const PIECE: usize = 64 << 10;
/// How long the hands may take for the rest of an archive, once all of it was handed over.
const ARCHIVED_WITHIN: Duration = Duration::from_secs(1_800);

/// Carries out a transfer, and says how it went.
pub(crate) async fn carry_out(
    client: &Client,
    hands: &Arc<Hands>,
    sync: &Keeper,
    request: u64,
    transfer: Transfer,
) -> ToControl {
    let done = match transfer {
        Transfer::Read { path } => send(client, hands, request, path).await.map(|()| Vec::new()),
        Transfer::Write { path } => fetch(client, hands, request, path).await.map(|()| Vec::new()),
        Transfer::Pack => pack(client, hands, request).await.map(|()| Vec::new()),
        Transfer::Unpack => unpack(client, hands, request).await.map(|()| Vec::new()),
        Transfer::List { path } => list(hands, path).await,
        Transfer::Flush => flush(sync).await.map(|()| Vec::new()),
    };
    let (entries, failure) = match done {
        Ok(entries) => (entries, None),
        Err(failure) => (Vec::new(), Some(failure)),
    };
    ToControl::Transferred {
        request,
        entries,
        missing: failure.as_ref().is_some_and(|failure| failure.missing),
        failure: failure.map(|failure| failure.words),
    }
}

async fn flush(sync: &Keeper) -> Result<(), FileFailure> {
    match sync.flush().await? {
        0 => Ok(()),
        left => Err(format!("{left} files have no room where they are kept, or cannot be read").into()),
    }
}

async fn list(hands: &Hands, path: String) -> Result<Vec<FileEntry>, FileFailure> {
    Ok(hands.file(FileRequest::List { path }).await?.entries)
}

async fn send(client: &Client, hands: &Hands, request: u64, path: String) -> Result<(), FileFailure> {
    let file = hands.file(FileRequest::Open { path }).await?.descriptor()?;
    client.send_file(request, pieces(file)).await.map_err(said)
}

fn pieces(file: OwnedFd) -> BoxStream<'static, io::Result<Bytes>> {
    stream::try_unfold(File::from(file), |file| async move {
        let (read, file) = blocking(move || {
            let mut piece = vec![0; PIECE];
            let length = (&file).read(&mut piece)?;
            piece.truncate(length);
            Ok((piece, file))
        })
        .await?;
        Ok((!read.is_empty()).then(|| (Bytes::from(read), file)))
    })
    .boxed()
}

/// Sends what the hands pack. Where they cannot, what is sent breaks off.
async fn pack(client: &Client, hands: &Arc<Hands>, request: u64) -> Result<(), FileFailure> {
    let made = hands.file(FileRequest::Pack).await?;
    let created = made.request;
    let archive = made.pipe()?;
    let hands = Arc::clone(hands);
    let whole = stream::once(async move {
        let whole = hands
            .file_within(FileRequest::Commit { created }, ARCHIVED_WITHIN)
            .await;
        whole
            .map(|_| Bytes::new())
            .map_err(|failure| io::Error::other(failure.words))
    });
    client
        .send_file(request, pieces(archive).chain(whole).boxed())
        .await
        .map_err(said)
}

async fn unpack(client: &Client, hands: &Hands, request: u64) -> Result<(), FileFailure> {
    let made = hands.file(FileRequest::Unpack).await?;
    let created = made.request;
    let filled = match made.pipe() {
        Ok(archive) => fill(client, request, archive).await,
        Err(failure) => Err(failure.into()),
    };
    if let Err(failure) = filled {
        tracing::debug!(failure = failure.words, "an archive was not read to its end");
    }
    // What was refused, or cut short, is why: that is the failure to tell.
    let committed = hands
        .file_within(FileRequest::Commit { created }, ARCHIVED_WITHIN)
        .await;
    committed.map(drop)
}

async fn fetch(client: &Client, hands: &Hands, request: u64, path: String) -> Result<(), FileFailure> {
    let made = hands.file(FileRequest::Create { path }).await?;
    let created = made.request;
    let filled = match made.descriptor() {
        Ok(file) => fill(client, request, file).await,
        Err(failure) => Err(failure.into()),
    };
    if let Err(failure) = filled {
        // The first failure is the one to tell.
        let _ = hands.file(FileRequest::Discard { created }).await;
        return Err(failure);
    }
    hands.file(FileRequest::Commit { created }).await?;
    Ok(())
}

async fn fill(client: &Client, request: u64, file: OwnedFd) -> Result<(), FileFailure> {
    let mut body = client.fetch_file(request).await.map_err(said)?;
    let mut file = File::from(file);
    while let Some(bytes) = body.chunk().await.map_err(said)? {
        file = blocking(move || {
            (&file).write_all(&bytes)?;
            Ok(file)
        })
        .await
        .map_err(|error| format!("cannot write the file: {error}"))?;
    }
    Ok(())
}

fn said(error: ClientError) -> FileFailure {
    with_causes(&error).into()
}

/// A disk may be slow, and PID 1 has one thread for everything else.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
