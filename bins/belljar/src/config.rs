//! One file, read once and checked whole: every mistake is reported, with its line.

mod document;
mod keys;
mod lines;
mod raw;
mod settings;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path, PathBuf};

pub(crate) use document::example;
#[cfg(test)]
use document::manual;
pub(crate) use lines::line_of_key;
pub(crate) use raw::Mistake;
pub(crate) use settings::{Containers, Egress, Login, Model, ObjectPlace, Prices, Provider, Settings};

/// Where the file is looked for, where nobody names one.
const PLACES: [&str; 2] = ["belljar.toml", "/etc/belljar/belljar.toml"];

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}{}", path.display(), hint(source))]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// It has mistakes.
    #[error("{}", listed(file, mistakes))]
    Mistakes { file: String, mistakes: Vec<Mistake> },
}

/// A configuration and what it was read from.
pub(crate) struct Loaded {
    /// The file; nothing where there is none and defaults hold.
    pub(crate) file: Option<PathBuf>,
    pub(crate) settings: Settings,
    pub(crate) warnings: Vec<Mistake>,
}

/// Reads the configuration that `named` names, or the first that is found, with the environment's overrides.
///
/// # Errors
/// When it cannot be read, or has mistakes: all of them.
pub(crate) fn load(named: Option<&Path>) -> Result<Loaded, ConfigError> {
    let file = match named {
        Some(path) => Some(path.to_owned()),
        None => PLACES.iter().map(PathBuf::from).find(|path| path.exists()),
    };
    let text = match &file {
        Some(path) => std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?,
        None => String::new(),
    };
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let checked = settings::check(raw::Raw::of(&text, &environment));
    let mut settings = checked.settings.map_err(|mistakes| ConfigError::Mistakes {
        file: file
            .as_ref()
            .map_or_else(|| "the configuration".to_owned(), |path| path.display().to_string()),
        mistakes,
    })?;
    let file = file.map(|path| std::path::absolute(&path).unwrap_or(path));
    if let Some(folder) = file.as_deref().and_then(Path::parent) {
        for script in settings.models.values_mut().filter_map(|model| model.script.as_mut()) {
            *script = folder.join(&*script);
        }
        settings.server.services = match settings.server.services.take() {
            Some(services) => Some(folder.join(services)),
            None => Some(folder.join("services")).filter(|services| services.is_dir()),
        };
    }
    Ok(Loaded {
        file,
        settings,
        warnings: checked.warnings,
    })
}

/// What to do where a file is there and closed.
fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            " (the user that Belljar runs as must be able to read it: /etc/belljar is the place for it)"
        }
        _ => "",
    }
}

fn listed(file: &str, mistakes: &[Mistake]) -> String {
    let count = match mistakes.len() {
        1 => "a mistake".to_owned(),
        count => format!("{count} mistakes"),
    };
    let lines: Vec<String> = mistakes.iter().map(|mistake| format!("  {mistake}")).collect();
    format!("{file} has {count}:\n{}", lines.join("\n"))
}
