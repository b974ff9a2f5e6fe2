//! Whole workspaces as files: `tar`, compressed with zstd here, so that nobody with keys has to read what a stranger compressed.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};
use futures::{StreamExt, stream};
use reqwest::{Body, Method};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::files::fresh;
use super::run::open;
use super::say;
use crate::{Client, ClientError};

/// How a file that zstd made begins.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Pieces on their way between the network and whoever compresses.
const PIECES: usize = 4;
const PIECE: usize = 256 << 10;

/// Writes the workspace that the server has at `path` to a file.
pub(super) async fn export(
    client: &Client,
    path: &str,
    file: &Path,
    force: bool,
    json: bool,
) -> Result<(), ClientError> {
    if !force && fs::symlink_metadata(file).is_ok() {
        return Err(ClientError::Usage(format!(
            "{} is there already: name another file, or say --force to put this one in its place",
            file.display()
        )));
    }
    let request = client.request(Method::GET, path);
    let response = client.send(request).await?;
    let url = response.url().path().to_owned();
    let part = PathBuf::from(format!("{}.part", file.display()));
    let into = fresh(&part, 0o666).map_err(ClientError::file("write", &part))?;
    let (sender, pieces) = mpsc::channel(PIECES);
    let compressing = tokio::task::spawn_blocking(move || compressed(pieces, into));
    let mut arriving = response.bytes_stream();
    let mut broken = None;
    while let Some(piece) = arriving.next().await {
        match piece {
            Ok(piece) => {
                if sender.send(piece).await.is_err() {
                    // Whoever compresses has given up; why, it says.
                    break;
                }
            }
            Err(source) => {
                broken = Some(ClientError::Broken { url, source });
                break;
            }
        }
    }
    drop(sender);
    let done = compressing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    let done = match broken {
        Some(broken) => Err(broken),
        None => done.map_err(ClientError::file("write", &part)),
    };
    let placed = done.and_then(|bytes| {
        fs::rename(&part, file).map_err(ClientError::file("write", file))?;
        Ok(bytes)
    });
    match placed {
        Ok(bytes) => {
            let answer = json!({ "file": file, "bytes": bytes });
            say(json, &answer, &format!("{} ({bytes} bytes)", file.display()))
        }
        Err(error) => {
            // What failed is told; a piece that stays behind is only in the way.
            let _ = fs::remove_file(&part);
            Err(error)
        }
    }
}

/// Compresses what arrives into a file; how many bytes that has.
fn compressed(pieces: mpsc::Receiver<Bytes>, into: File) -> io::Result<u64> {
    let mut kept = Kept {
        into: BufWriter::new(into),
        bytes: 0,
        failed: None,
    };
    let arriving = Arriving {
        pieces,
        piece: Bytes::new(),
    };
    compress(arriving, &mut kept, CompressionLevel::Fastest);
    if let Some(failed) = kept.failed {
        return Err(failed);
    }
    let file = kept.into.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(kept.bytes)
}

/// What arrives, to be read.
struct Arriving {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// A file that never fails for whoever writes: the compressor would panic. The first failure is kept.
struct Kept {
    into: BufWriter<File>,
    bytes: u64,
    failed: Option<io::Error>,
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed.is_none() {
            self.failed = self.into.write_all(bytes).err();
            self.bytes += bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) async fn import(client: &Client, session: &str, file: &Path, json: bool) -> Result<(), ClientError> {
    let from = File::open(file).map_err(ClientError::file("open", file))?;
    let session = open(client, Some(session), None).await?;
    let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    let reading = tokio::task::spawn_blocking(move || {
        let read = plain(from, |piece| sender.blocking_send(Ok(piece)).is_ok());
        if let Err(error) = &read {
            // The other side must not take what came so far for all of it.
            let _ = sender.blocking_send(Err(io::Error::other(error.to_string())));
        }
        read
    });
    let pieces = stream::unfold(pieces, |mut pieces| async {
        let piece = pieces.recv().await?;
        Some((piece, pieces))
    });
    let request = client
        .request(Method::PUT, &format!("/sessions/{session}/workspace"))
        .body(Body::wrap_stream(pieces));
    let answered = client.json::<Value>(request).await;
    let read = reading.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    read.map_err(ClientError::file("read", file))?;
    say(json, &answered?, &session)
}

/// Hands on what is in an archive, compressed or not, until nobody wants more.
fn plain(from: File, mut take: impl FnMut(Bytes) -> bool) -> io::Result<()> {
    let mut from = BufReader::with_capacity(PIECE, from);
    let is_compressed = from.fill_buf()?.starts_with(&ZSTD);
    if !is_compressed {
        hand_on(&mut from, &mut take)?;
        return Ok(());
    }
    // Several programs write more than one frame.
    while !from.fill_buf()?.is_empty() {
        let mut frame = StreamingDecoder::new(&mut from).map_err(unreadable)?;
        if !hand_on(&mut frame, &mut take).map_err(unreadable)? {
            break;
        }
    }
    Ok(())
}

fn unreadable(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!(
        "what zstd compressed cannot be read to its end ({error}): if the file was cut or damaged, copy or export it again"
    ))
}

/// False: nobody wants more.
fn hand_on(from: &mut impl Read, take: &mut impl FnMut(Bytes) -> bool) -> io::Result<bool> {
    loop {
        let mut piece = vec![0; PIECE];
        let length = from.read(&mut piece)?;
        if length == 0 {
            return Ok(true);
        }
        piece.truncate(length);
        if !take(Bytes::from(piece)) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_back_in_frames_or_plain_and_never_in_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("archive");
        let words = b"words and words and words".repeat(40_000);
        let (sender, pieces) = mpsc::channel(PIECES);
        let sending = std::thread::spawn({
            let words = words.clone();
            move || {
                for piece in words.chunks(10_000) {
                    sender.blocking_send(Bytes::copy_from_slice(piece)).expect("wanted");
                }
            }
        });
        let bytes = compressed(pieces, File::create(&path).expect("a file")).expect("compressed");
        sending.join().expect("sent");
        let frame = fs::read(&path).expect("readable");
        assert_eq!(bytes, frame.len() as u64);
        assert!(frame.len() < words.len() / 2);
        let read = |content: &[u8]| {
            fs::write(&path, content).expect("a file");
            let mut back = Vec::new();
            let done = plain(File::open(&path).expect("a file"), |piece| {
                back.extend_from_slice(&piece);
                true
            });
            done.map(|()| back)
        };
        assert_eq!(read(&frame).expect("one frame"), words);
        assert_eq!(
            read(&[&frame[..], &frame[..]].concat()).expect("two"),
            [&words[..], &words[..]].concat()
        );
        assert_eq!(read(&words).expect("plain"), words);
        let cut = read(&frame[..frame.len() / 2]).expect_err("cut short").to_string();
        assert!(cut.contains("cannot be read to its end"), "{cut}");
    }
}
