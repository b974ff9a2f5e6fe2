//! Files in and out of a session's workspace.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use reqwest::{Body, Method};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use crate::arguments::{FilesArguments, GetArguments, PutArguments};
use crate::{Client, ClientError};

use super::lists;
use super::table::{Column, table};
use super::{encoded, output, resolve, say};

pub(super) async fn put(client: &Client, arguments: &PutArguments, json: bool) -> Result<(), ClientError> {
    let upload = Upload::open(&arguments.file, arguments.path.as_deref()).await?;
    let session = resolve(client, &arguments.session).await?;
    let answer = upload.send(client, &session).await?;
    say(json, &answer, answer["path"].as_str().unwrap_or_default())
}

/// A file that is to be copied into a workspace.
pub(super) struct Upload {
    source: tokio::fs::File,
    bytes: u64,
    path: String,
}

impl Upload {
    /// Opens it; it is to have its own name where no path is given.
    pub(super) async fn open(file: &Path, path: Option<&str>) -> Result<Self, ClientError> {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        let path = path
            .map(str::to_owned)
            .or(name)
            .ok_or_else(|| ClientError::Usage(format!("{} names no file", file.display())))?;
        let source = tokio::fs::File::open(file)
            .await
            .map_err(ClientError::file("open", file))?;
        let about = source.metadata().await.map_err(ClientError::file("look at", file))?;
        if !about.is_file() {
            return Err(ClientError::Usage(format!(
                "{} is not a file: copy files, or a folder packed into one",
                file.display()
            )));
        }
        Ok(Self {
            source,
            bytes: about.len(),
            path,
        })
    }

    pub(super) async fn send(self, client: &Client, session: &str) -> Result<Value, ClientError> {
        let place = format!("/sessions/{session}/file?path={}", encoded(&self.path));
        let request = client
            .request(Method::PUT, &place)
            .header(reqwest::header::CONTENT_LENGTH, self.bytes)
            .body(Body::wrap_stream(ReaderStream::with_capacity(self.source, 64 << 10)));
        client.json(request).await
    }
}

pub(super) async fn get(client: &Client, arguments: &GetArguments, json: bool) -> Result<(), ClientError> {
    let session = resolve(client, &arguments.session).await?;
    let to_stdout = arguments.file.as_deref() == Some(Path::new("-"));
    let place = place(arguments)?;
    if !(to_stdout || arguments.force) && fs::symlink_metadata(&place).is_ok() {
        return Err(ClientError::Usage(format!(
            "{} is there already: name another file, or say --force to put this one in its place",
            place.display()
        )));
    }
    let request = client.request(
        Method::GET,
        &format!("/sessions/{session}/file?path={}", encoded(&arguments.path)),
    );
    let response = client.send(request).await?;
    if to_stdout {
        let url = response.url().path().to_owned();
        let mut bytes = response.bytes_stream();
        let mut out = tokio::io::stdout();
        while let Some(piece) = bytes.next().await {
            let piece = piece.map_err(|source| ClientError::Broken {
                url: url.clone(),
                source,
            })?;
            out.write_all(&piece).await.map_err(output)?;
        }
        return out.flush().await.map_err(output);
    }
    let bytes = save(response, &place, 0o666).await?;
    let answer = json!({ "file": place, "bytes": bytes });
    say(json, &answer, &format!("{} ({bytes} bytes)", place.display()))
}

/// Copies the store of a control plane to a file that only its owner can read.
///
/// # Errors
/// The one who asks is no admin; the file cannot be written.
pub async fn backup(client: &Client, file: &Path) -> Result<(), ClientError> {
    let response = client.send(client.request(Method::POST, "/backup")).await?;
    save(response, file, 0o600).await.map(drop)
}

/// Writes an answer to a file and tells how many bytes it has. It is written beside its place first, so that a copy that broke
/// never stands there as a whole one.
async fn save(response: reqwest::Response, place: &Path, mode: u32) -> Result<u64, ClientError> {
    let url = response.url().path().to_owned();
    let mut bytes = response.bytes_stream();
    let part = PathBuf::from(format!("{}.part", place.display()));
    let copied = async {
        let file = fresh(&part, mode).map_err(ClientError::file("write", &part))?;
        let mut file = tokio::fs::File::from_std(file);
        let mut written = 0;
        while let Some(piece) = bytes.next().await {
            let piece = piece.map_err(|source| ClientError::Broken {
                url: url.clone(),
                source,
            })?;
            file.write_all(&piece)
                .await
                .map_err(ClientError::file("write", &part))?;
            written += piece.len() as u64;
        }
        file.sync_all().await.map_err(ClientError::file("write", &part))?;
        tokio::fs::rename(&part, place)
            .await
            .map_err(ClientError::file("write", place))?;
        Ok(written)
    };
    let copied = copied.await;
    if copied.is_err() {
        // What failed is told; a piece that stays behind is only in the way.
        let _ = tokio::fs::remove_file(&part).await;
    }
    copied
}

/// A file of our own, in the place of whatever has its name: in a folder that others may write it could be a link, or theirs
/// to read.
pub(super) fn fresh(path: &Path, mode: u32) -> io::Result<fs::File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(mode).open(path)
}

/// Where a fetched file goes.
fn place(arguments: &GetArguments) -> Result<PathBuf, ClientError> {
    let name = Path::new(&arguments.path).file_name();
    let name = name.ok_or_else(|| ClientError::Usage(format!("{:?} names no file", arguments.path)))?;
    Ok(match &arguments.file {
        None => PathBuf::from(name),
        Some(folder) if folder.is_dir() => folder.join(name),
        Some(file) => file.clone(),
    })
}

pub(super) async fn list(client: &Client, arguments: &FilesArguments, json: bool) -> Result<(), ClientError> {
    let session = resolve(client, &arguments.session).await?;
    let answer: Value = client
        .get(&format!("/sessions/{session}/files?path={}", encoded(&arguments.path)))
        .await?;
    let columns = [
        Column::right("BYTES", |file| file["bytes"].to_string()),
        Column::left("CHANGED", |file| lists::time(&file["changed"])).goes(1),
        Column::left("PATH", |file| {
            let slash = if file["kind"] == "folder" { "/" } else { "" };
            format!("{}{slash}", file["path"].as_str().unwrap_or_default())
        }),
    ];
    table(&answer["files"], &columns, json)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn a_copy_is_written_into_nobody_elses_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, part) = (folder.path().join("target"), folder.path().join("copy.part"));
        fs::write(&target, "theirs").expect("a file");
        symlink(&target, &part).expect("a link");
        let mut file = fresh(&part, 0o600).expect("a fresh file");
        file.write_all(b"secret").expect("room");
        assert_eq!(fs::read_to_string(&target).expect("readable"), "theirs");
        let about = fs::symlink_metadata(&part).expect("it is there");
        assert!(about.is_file() && about.mode() & 0o777 == 0o600);
    }
}
