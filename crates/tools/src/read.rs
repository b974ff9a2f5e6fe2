//! The tool `read`.

mod image;
mod lines;

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;

use domain::ResultPart;
use protocol::FileKind;
use serde::Deserialize;

use crate::bounded::Collector;
use crate::files::Opened;
use crate::process::{End, Program};
use crate::safebash::{confinement, find_program, plain_environment};
use crate::toolbox::{Answer, Bounds, Failure, beside, words};
use crate::{FileError, Files, Tools};

/// The most entries of a folder that are listed.
const MAX_ENTRIES: usize = 500;
/// What is looked at to tell text from anything else.
const HEAD: usize = 8 * 1024;
/// The largest text of a PDF that is kept while it is cut into lines.
const MAX_PDF_TEXT: usize = 16 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    path: String,
    /// The first line, from 1; of a folder, the first entry.
    #[serde(default = "first")]
    offset: u64,
    /// Lines.
    #[serde(default)]
    limit: Option<u64>,
}

fn first() -> u64 {
    1
}

/// A file could not be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("`offset` counts from 1, and `limit` is at least 1")]
    Range,
    #[error("{path} is a PDF, and pdftotext, which would read it, is not installed here")]
    NoPdftotext { path: String },
    #[error("pdftotext cannot read {path}: {said}")]
    Pdf { path: String, said: String },
    #[error("reading {path} took longer than {seconds} s")]
    TimedOut { path: String, seconds: u64 },
}

/// What a path turned out to be.
enum Found {
    Shown(Vec<ResultPart>),
    Pdf,
}

/// Shows a file or a folder.
pub(crate) async fn read(tools: &Tools, arguments: Arguments, bounds: Bounds<'_>) -> Answer {
    let Arguments { path, offset, limit } = arguments;
    if offset == 0 || limit == Some(0) {
        return Err(ReadError::Range.into());
    }
    bounds.tell("reading", &path);
    let range = lines::Range {
        first: offset,
        count: limit.unwrap_or(u64::MAX),
        most: bounds.output_bytes.saturating_sub(200),
    };
    let files = Arc::clone(&tools.files);
    let path_there = path.clone();
    let found = beside(move || match files.open_any(&path_there)? {
        Opened::Folder(_) => Ok(Found::Shown(words(folder(&files, &path_there)?))),
        Opened::File(file, length) => show(file, length, &path_there, range),
    });
    match found.await? {
        Found::Shown(parts) => Ok(parts),
        Found::Pdf => {
            bounds.tell("taking the text out of", &path);
            pdf(tools, &path, range, bounds).await
        }
    }
}

fn show(mut file: File, length: u64, path: &str, range: lines::Range) -> Result<Found, Failure> {
    let failed = |error| Failure::from(FileError::io("read", path, error));
    let mut head = vec![0; HEAD];
    let mut read = 0;
    while read < HEAD {
        match file.read(&mut head[read..]).map_err(failed)? {
            0 => break,
            more => read += more,
        }
    }
    head.truncate(read);
    if head.starts_with(b"%PDF-") {
        return Ok(Found::Pdf);
    }
    if let Some(kind) = pictures::Kind::of(&head) {
        let name = Path::new(path)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        return Ok(Found::Shown(image::show(file, kind, length, &name).map_err(failed)?));
    }
    if head.contains(&0) {
        return Ok(Found::Shown(words(format!(
            "{path} is binary ({}), {length} bytes: use exec to work with it.",
            image::describe(&head)
        ))));
    }
    file.rewind().map_err(failed)?;
    Ok(Found::Shown(words(lines::show(file, path, range).map_err(failed)?)))
}

/// What is in a folder, one entry a line.
fn folder(files: &Files, path: &str) -> Result<String, FileError> {
    let (entries, more) = files.list_one(path, MAX_ENTRIES)?;
    let mut text = format!(
        "{path} is a folder with {}",
        crate::write::counted(entries.len(), "entry").replace("entrys", "entries")
    );
    text.push_str(if more { " and more:\n" } else { ":\n" });
    for entry in entries {
        text.push_str(&entry.path.replace(char::is_control, "\u{fffd}"));
        match entry.kind {
            FileKind::File => text.push_str(&format!("  {} bytes", entry.bytes)),
            FileKind::Folder => text.push('/'),
            FileKind::Link => text.push_str("  (symbolic link)"),
            FileKind::Special => text.push_str("  (pipe, socket or device)"),
        }
        text.push('\n');
    }
    Ok(text)
}

/// The text of a PDF, as `pdftotext` sees it.
async fn pdf(tools: &Tools, path: &str, range: lines::Range, bounds: Bounds<'_>) -> Answer {
    let program = find_program("pdftotext").ok_or_else(|| ReadError::NoPdftotext { path: path.to_owned() })?;
    let file = tools.files.real_path(path)?.display().to_string();
    let environment = plain_environment();
    let running = tools.launcher.start(&Program {
        path: &program,
        arguments: &[
            "-layout".into(),
            "-enc".into(),
            "UTF-8".into(),
            "--".into(),
            file,
            "-".into(),
        ],
        environment: &environment,
        input: false,
        confinement: Some(&confinement(&tools.files, &program, false)),
    })?;
    let mut text = Vec::new();
    let end = running
        .finish(&program, bounds.deadline, bounds.stop, |bytes| {
            let room = MAX_PDF_TEXT - text.len();
            text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        })
        .await?;
    match end {
        End::Exited(0) => {
            // A page's end is a line of its own.
            let text = String::from_utf8_lossy(&text).replace('\u{c}', "\n");
            let shown =
                lines::show(text.as_bytes(), path, range).map_err(|error| FileError::io("read", path, error))?;
            Ok(words(format!("(text of a PDF)\n{shown}")))
        }
        End::Exited(_) => {
            let mut said = Collector::clean(&tools.files, String::new(), 500);
            said.push(&text[..text.len().min(500)]);
            let path = path.to_owned();
            Err(ReadError::Pdf {
                path,
                said: said.finish().text.trim().to_owned(),
            }
            .into())
        }
        End::TimedOut => Err(ReadError::TimedOut {
            path: path.to_owned(),
            seconds: bounds.seconds,
        }
        .into()),
        End::Stopped => Err(Failure::Stopped),
    }
}
