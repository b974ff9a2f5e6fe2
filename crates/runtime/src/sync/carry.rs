//! What PID 1 does for the process that watches.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use causes::with_causes;
use channel::{Descriptors, Lines};
use futures::StreamExt;
use futures::stream::{self, BoxStream, FuturesUnordered};
use link::client::{Client, ClientError};
use protocol::{DiskId, Fault, FromSync, PIECE, RefusalCode, SYNC_BYTES, SyncAnswer, SyncCall, SyncRequest, ToSync};
use rustix::fs::{FileType, fstat};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::Flush;
use crate::gateway::backoff;

/// Orders to keep everything, as they come.
pub type Ordered = mpsc::Receiver<Flush>;

const AT_ONCE: usize = 64 << 10;

/// What may be under way for it; more is not read meanwhile.
const UNDER_WAY: usize = 24;

/// Words of it that go into the log.
const WORDS: usize = 20;
const LONGEST_WORDS: usize = 500;

/// Why [`carry`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The control plane keeps no files.
    NotKept,
    /// The process that watches is gone, or speaks nonsense.
    Gone,
}

/// Asks until it is known how many files this disk lacks; nothing where files are not kept.
pub(super) async fn agree(client: &Client, disk: &DiskId) -> Option<u64> {
    let call = SyncCall {
        disk: disk.clone(),
        request: SyncRequest::Begin,
    };
    let mut attempt = 0;
    loop {
        match client.sync(&call).await {
            Ok(SyncAnswer::Begun { missing }) => {
                info!(missing, "files of the workspace are kept");
                return Some(missing);
            }
            Ok(_) => return None,
            Err(ClientError::Refused(refusal))
                if matches!(refusal.code, RefusalCode::Denied | RefusalCode::Invalid) =>
            {
                return None;
            }
            Err(error) => {
                if attempt == 0 {
                    warn!(
                        error = with_causes(&error),
                        "cannot ask whether files are kept; trying again"
                    );
                }
                attempt += 1;
                tokio::time::sleep(backoff(attempt)).await;
            }
        }
    }
}

/// Carries out what the process at the other end of a socket asks, until it hangs up. `disk` is told which one it is, `filled`
/// when the workspace holds everything but for so many files that have no room; `flushes` are handed on, and answered.
pub async fn carry(
    client: &Client,
    socket: UnixStream,
    disk: &watch::Sender<Option<DiskId>>,
    flushes: &mut Ordered,
    filled: &watch::Sender<Option<u64>>,
) -> Ended {
    let socket = Arc::new(socket);
    let mut lines = Lines::new(Arc::clone(&socket), SYNC_BYTES, Descriptors::Taken);
    let Ok(Some(FromSync::Disk { disk: named })) = lines.read().await else {
        warn!("the process that keeps files cannot name its disk");
        return Ended::Gone;
    };
    disk.send_replace(Some(named.clone()));
    match agree(client, &named).await {
        None => return Ended::NotKept,
        Some(0) => {
            filled.send_replace(Some(0));
        }
        Some(_) => {}
    }
    if channel::write(&socket, &ToSync::Begin, None).await.is_err() {
        return Ended::Gone;
    }
    let disk = &named;
    let mut under_way = FuturesUnordered::new();
    let mut flushing: HashMap<u64, Flush> = HashMap::new();
    let mut next = 0;
    let mut words_left = WORDS;
    loop {
        let answer = tokio::select! {
            biased;
            Some(answer) = under_way.next() => answer,
            Some(flush) = flushes.recv() => {
                next += 1;
                flushing.insert(next, flush);
                ToSync::Flush { number: next }
            }
            line = lines.read::<FromSync>(), if under_way.len() < UNDER_WAY => {
                let line = match line {
                    Ok(Some(line)) => line,
                    Ok(None) => return Ended::Gone,
                    Err(error) => {
                        warn!(error = with_causes(&error), "the process that keeps files speaks nonsense");
                        return Ended::Gone;
                    }
                };
                match line {
                    FromSync::Filled { no_room } => {
                        filled.send_replace(Some(no_room));
                    }
                    FromSync::Flushed { number, left } => {
                        if let Some(flush) = flushing.remove(&number) {
                            // Whoever ordered it may have gone.
                            let _ = flush.send(left);
                        }
                    }
                    FromSync::Said { words } => {
                        if words_left > 0 {
                            words_left -= 1;
                            let words = words.chars().take(LONGEST_WORDS).collect::<String>();
                            warn!(words, "the process that keeps files says");
                        }
                    }
                    line => {
                        let descriptor = match line {
                            FromSync::Put { .. } | FromSync::Get { .. } => lines.descriptor(),
                            _ => None,
                        };
                        under_way.push(serve(client, disk, line, descriptor));
                    }
                }
                continue;
            }
        };
        if channel::write(&socket, &answer, None).await.is_err() {
            return Ended::Gone;
        }
    }
}

async fn serve(client: &Client, disk: &DiskId, line: FromSync, descriptor: Option<OwnedFd>) -> ToSync {
    let (number, done) = match line {
        FromSync::Ask { number, request } => {
            let disk = disk.clone();
            match client.sync(&SyncCall { disk, request }).await {
                Ok(answer) => return ToSync::Answer { number, answer },
                Err(error) => (number, Err(error.into())),
            }
        }
        FromSync::Put { number, url, at, bytes } => (number, put(client, &url, at, bytes, descriptor).await),
        FromSync::Get { number, url, at, bytes } => (number, get(client, &url, at, bytes, descriptor).await),
        // Has no answer.
        FromSync::Disk { .. } | FromSync::Filled { .. } | FromSync::Flushed { .. } | FromSync::Said { .. } => {
            (0, Ok(()))
        }
    };
    match done {
        Ok(()) => ToSync::Done { number },
        Err(Failure { fault, reason }) => ToSync::Failed { number, fault, reason },
    }
}

/// Why something was not done.
struct Failure {
    fault: Fault,
    reason: String,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let never = matches!(
            &error,
            ClientError::Request { .. }
                | ClientError::Refused(protocol::Refusal {
                    code: RefusalCode::Invalid | RefusalCode::Denied,
                    ..
                })
        );
        Self {
            fault: if never { Fault::Lasting } else { Fault::Passing },
            reason: with_causes(&error),
        }
    }
}

fn never(reason: &str) -> Failure {
    Failure {
        fault: Fault::Lasting,
        reason: reason.to_owned(),
    }
}

/// The file. Whoever broke the other process may have sent what makes a reader wait for ever, so it is looked at.
fn regular(descriptor: Option<OwnedFd>, bytes: u64) -> Result<Arc<File>, Failure> {
    let descriptor = descriptor.ok_or_else(|| never("no file came with the line"))?;
    if bytes > PIECE {
        return Err(never("this is no piece of a file"));
    }
    match fstat(&descriptor) {
        Ok(status) if FileType::from_raw_mode(status.st_mode).is_file() => Ok(Arc::new(File::from(descriptor))),
        _ => Err(never("what came is no regular file")),
    }
}

async fn put(client: &Client, url: &str, at: u64, bytes: u64, file: Option<OwnedFd>) -> Result<(), Failure> {
    let file = regular(file, bytes)?;
    Ok(client.keep_object(url, bytes, pieces(file, at, bytes)).await?)
}

fn pieces(file: Arc<File>, at: u64, bytes: u64) -> BoxStream<'static, io::Result<Bytes>> {
    stream::try_unfold(0, move |read| {
        let file = Arc::clone(&file);
        async move {
            if read == bytes {
                return Ok(None);
            }
            let piece = blocking(move || {
                let wanted = usize::try_from(bytes - read).unwrap_or(AT_ONCE).min(AT_ONCE);
                let mut piece = vec![0; wanted];
                let count = file.read_at(&mut piece, at + read)?;
                piece.truncate(count);
                Ok(piece)
            })
            .await?;
            if piece.is_empty() {
                // It became shorter.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let read = read + piece.len() as u64;
            Ok(Some((Bytes::from(piece), read)))
        }
    })
    .boxed()
}

/// Zeros are left out: where nothing is written there is a hole.
async fn get(client: &Client, url: &str, at: u64, bytes: u64, file: Option<OwnedFd>) -> Result<(), Failure> {
    let file = regular(file, bytes)?;
    let mut body = client.fetch_object(url).await?;
    let mut written = 0;
    while let Some(piece) = body.chunk().await? {
        let place = at + written;
        written += piece.len() as u64;
        if written > bytes {
            return Err(never("more came than there should be"));
        }
        let file = Arc::clone(&file);
        blocking(move || write(&file, &piece, place))
            .await
            .map_err(|error| Failure {
                fault: match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Fault::NoRoom,
                    _ => Fault::Passing,
                },
                reason: format!("cannot write a file: {error}"),
            })?;
    }
    if written < bytes {
        return Err(Failure {
            fault: Fault::Passing,
            reason: "the content was cut".to_owned(),
        });
    }
    Ok(())
}

fn write(file: &File, piece: &[u8], at: u64) -> io::Result<()> {
    let mut place = at;
    for block in piece.chunks(4 << 10) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, place)?;
        }
        place += block.len() as u64;
    }
    Ok(())
}

/// A disk may be slow, and PID 1 has one thread for everything else.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
