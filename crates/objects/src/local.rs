//! Objects in a folder of this machine.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;
use ring::digest::{Context, SHA256};
use tempfile::NamedTempFile;
use tokio::io::AsyncReadExt;

use crate::objects::{Key, ObjectError, Stream, unavailable};
use places::{Places, sync};

mod places;

const WRITE: &str = "write an object";
const PIECE: usize = 64 << 10;

/// Room that is left to others on the same disk, the store among them.
const RESERVE: u64 = 512 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Local {
    folder: Arc<PathBuf>,
    places: Arc<Places>,
}

impl Local {
    pub(crate) fn open(folder: PathBuf) -> Result<Self, ObjectError> {
        let make = || {
            fs::create_dir_all(folder.join("sessions"))?;
            // What was on its way when a process ended.
            match fs::remove_dir_all(folder.join("unfinished")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            fs::create_dir(folder.join("unfinished"))?;
            sync(&folder)?;
            sync(&std::path::absolute(&folder)?.join(".."))
        };
        make().map_err(|error| ObjectError::Settings(format!("the folder {}: {error}", folder.display())))?;
        Ok(Self {
            places: Arc::new(Places::new(folder.join("sessions"))),
            folder: Arc::new(folder),
        })
    }

    pub(crate) async fn put(&self, key: Key, bytes: u64, mut stream: Stream) -> Result<(), ObjectError> {
        let attempt = WRITE;
        let space = rustix::fs::statvfs(&*self.folder).map_err(unavailable(attempt))?;
        if space.f_bavail.saturating_mul(space.f_frsize) < RESERVE.saturating_add(bytes) {
            let words = format!("less than {RESERVE} bytes are free in {}", self.folder.display());
            return Err(ObjectError::Full {
                attempt,
                source: words.into(),
            });
        }
        let other = |reason: String| ObjectError::Other { key, reason };
        let unfinished = self.folder.join("unfinished");
        let mut file = blocking(move || NamedTempFile::new_in(unfinished))
            .await
            .map_err(unwritten)?;
        let mut hash = Context::new(&SHA256);
        let mut written = 0;
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|source| ObjectError::Cut { key, source })?;
            written += piece.len() as u64;
            if written > bytes {
                return Err(other(format!("it has more than {bytes} bytes")));
            }
            hash.update(&piece);
            file = blocking(move || file.write_all(&piece).map(|()| file))
                .await
                .map_err(unwritten)?;
        }
        if written < bytes {
            return Err(other(format!("it has {written} bytes and not {bytes}")));
        }
        if hash.finish().as_ref() != key.sha256.0 {
            return Err(other("its checksum is another".to_owned()));
        }
        let synced = blocking(move || file.as_file().sync_all().map(|()| file)).await;
        let placed = match synced {
            Ok(file) => self.places.put(file, key).await,
            Err(error) => Err(error),
        };
        placed.map_err(unwritten)
    }

    pub(crate) async fn get(&self, key: Key) -> Result<(u64, Stream), ObjectError> {
        let attempt = "read an object";
        let file = match tokio::fs::File::open(self.places.of(key)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ObjectError::NotFound(key)),
            Err(error) => return Err(unavailable(attempt)(error)),
        };
        let bytes = file.metadata().await.map_err(unavailable(attempt))?.len();
        let pieces = stream::try_unfold(file, |mut file| async move {
            let mut piece = bytes::BytesMut::with_capacity(PIECE);
            let count = file.read_buf(&mut piece).await?;
            Ok((count > 0).then(|| (piece.freeze(), file)))
        });
        Ok((bytes, pieces.boxed()))
    }

    pub(crate) async fn head(&self, key: Key) -> Result<Option<u64>, ObjectError> {
        match tokio::fs::metadata(self.places.of(key)).await {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unavailable("look for an object")(error)),
        }
    }

    pub(crate) async fn delete(&self, key: Key) -> Result<(), ObjectError> {
        let places = Arc::clone(&self.places);
        let remove = move || places.remove(key);
        blocking(remove).await.map_err(|source| ObjectError::Refused {
            attempt: "remove an object",
            source: source.into(),
        })
    }
}

fn unwritten(error: io::Error) -> ObjectError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ObjectError::Full {
            attempt: WRITE,
            source: error.into(),
        },
        _ => unavailable(WRITE)(error),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
