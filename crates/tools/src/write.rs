//! The tool `write`.

use std::io::Write;
use std::sync::Arc;

use serde::Deserialize;

use crate::toolbox::{Answer, Bounds, beside, words};
use crate::{FileError, Tools};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    path: String,
    content: String,
}

/// Puts a file in its place, whole.
pub(crate) async fn write(tools: &Tools, arguments: Arguments, bounds: Bounds<'_>) -> Answer {
    bounds.tell(
        &format!("writing {} bytes to", arguments.content.len()),
        &arguments.path,
    );
    let files = Arc::clone(&tools.files);
    let alone = Arc::clone(&tools.changes).lock_owned().await;
    beside(move || {
        // Held until the work is done, whoever still waits for it.
        let _alone = alone;
        let Arguments { path, content } = arguments;
        let created = files.create(&path)?;
        created
            .file()
            .write_all(content.as_bytes())
            .map_err(|error| FileError::io("write", &path, error))?;
        let done = if created.replaces() { "Replaced" } else { "Created" };
        created.commit()?;
        let lines = content.lines().count();
        Ok(words(format!(
            "{done} {path}: {}, {} bytes.",
            counted(lines, "line"),
            content.len()
        )))
    })
    .await
}

/// `1 line`, `2 lines`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
