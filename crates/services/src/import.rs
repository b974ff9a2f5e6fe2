//! From an OpenAPI description (3.0 or 3.1, JSON or YAML), or the tools of an MCP server, to a folder `services/<name>/`.
//!
//! What cannot be carried over is left out, and said. References are followed inside the document only, and everything
//! has a bound: a description of thousands of operations costs what its chosen operations cost.

mod document;
mod mcp;
mod operation;
mod paging;
pub(crate) mod schemas;
mod security;
mod servers;
#[cfg(test)]
mod tests;
mod write;

use std::path::{Path, PathBuf};

use serde_json::Value;

use self::document::Document;
pub use self::mcp::{Changed, McpOptions, Review, mcp, review};
use self::schemas::Schemas;
use crate::Catalogue;
use crate::definition::Mistake;

/// The most methods that one service is given.
const MAX_METHODS: usize = 200;

/// What is imported, and under what name.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The service's name; made from the title where it is left out.
    pub name: Option<String>,
    /// Which operations: names of operations or methods, or paths (`/pets/*`), where `*` stands for anything. All, where it is empty.
    pub only: Vec<String>,
    /// Where the API is, in place of what the description says.
    pub base_url: Option<String>,
}

/// A service that was made from a description.
#[derive(Clone, Debug)]
pub struct Imported {
    /// Its name.
    pub name: String,
    /// Its methods, in order.
    pub methods: Vec<String>,
    /// The slots that its first way to authenticate needs.
    pub slots: Vec<String>,
    /// What was left out, and why.
    pub left_out: Vec<LeftOut>,
    /// Its files, by their paths in its folder.
    pub files: Vec<(PathBuf, String)>,
}

/// Something of a description that has no place in a definition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// A description cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is too long.
    #[error("the description has {0} bytes, and at most {max} are read", max = document::MAX_BYTES)]
    TooLarge(usize),
    /// It is neither JSON nor YAML.
    #[error("read the description as JSON or YAML")]
    Unreadable(#[source] serde_yaml_ng::Error),
    /// It is of another version, or no description at all.
    #[error("the description is not OpenAPI 3.0 or 3.1: it says {0}")]
    Version(String),
    /// It does not say where the API is.
    #[error("the description does not say where the API is ({0}): say it with --base-url https://…")]
    NoServer(String),
    /// Its title makes no name.
    #[error("{0:?} can be no service's name: give one with --name, a lower-case letter and then letters, digits and _")]
    Name(String),
    /// Nothing is chosen.
    #[error("no operation is chosen: {0}")]
    Nothing(String),
    /// Too much is chosen.
    #[error(
        "{count} operations are chosen, and a service has at most {MAX_METHODS} methods: choose with --only; there are {parts}"
    )]
    TooMany {
        /// How many.
        count: usize,
        /// Some parts of the API to choose from.
        parts: String,
    },
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The folder cannot be written.
    #[error("write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// There is such a folder already.
    #[error("{} is there already: take it away, or import under another --name", .0.display())]
    Exists(PathBuf),
    /// What was made has mistakes. That is a fault of the import, and the folder is left out.
    #[error("what was made of the description has mistakes: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Mistakes(Vec<Mistake>),
}

/// Makes a service of a description.
///
/// # Errors
/// When the text is no description, says not where the API is, or too much is chosen, or nothing.
pub fn import(text: &str, options: &Options) -> Result<Imported, ImportError> {
    let document = Document::read(text)?;
    let title = document.root["info"]["title"].as_str().unwrap_or("service");
    let name = options.name.clone().unwrap_or_else(|| write::lower_name(title));
    if !crate::definition::read::is_identifier(&name) {
        return Err(ImportError::Name(name));
    }
    let mut left_out = Vec::new();
    let mut chosen = operation::chosen(&document, &options.only, &mut left_out);
    if chosen.is_empty() {
        document.base_url(options.base_url.as_deref())?;
        let parts = operation::parts(&document);
        return Err(ImportError::Nothing(if parts.is_empty() {
            "the description has none".into()
        } else {
            format!("there are {parts}")
        }));
    }
    if chosen.len() > MAX_METHODS {
        return Err(ImportError::TooMany {
            count: chosen.len(),
            parts: operation::parts(&document),
        });
    }
    let base_url = servers::read(&document, options.base_url.as_deref(), &mut chosen, &mut left_out)?;
    let auth = security::read(&document, &mut chosen, &mut left_out);
    if chosen.is_empty() {
        let why = left_out.iter().map(|left| format!("{}: {}", left.what, left.why));
        return Err(ImportError::Nothing(why.collect::<Vec<_>>().join("; ")));
    }
    let lists = operation::lists(&document, &chosen);
    let mut schemas = Schemas::new(&document);
    let mut methods = Vec::new();
    for one in &chosen {
        match operation::read(&document, one, lists, &mut schemas) {
            Ok(method) => methods.push(method),
            Err(why) => left_out.push(LeftOut { what: one.what(), why }),
        }
    }
    let named = schemas.finish(&mut left_out);
    let summary = write::line(match document.root["info"]["description"].as_str() {
        Some(description) => format!("{title}: {}", write::sentence(description)),
        None => title.to_owned(),
    });
    let files = write::files(&write::Parts {
        name: &name,
        summary: &summary,
        base_url: &base_url,
        lists,
        auth: &auth,
        methods: &methods,
        schemas: &named,
    });
    left_out.sort();
    left_out.dedup();
    Ok(Imported {
        name,
        methods: methods.into_iter().map(|method| method.name).collect(),
        slots: auth.first().map(|auth| auth.slots()).unwrap_or_default(),
        left_out,
        files,
    })
}

impl Imported {
    /// Writes the service into a folder of services, and makes sure that it can be used.
    ///
    /// # Errors
    /// When there is such a service already, or it cannot be written. Nothing is left behind then.
    pub fn write(&self, services: &Path) -> Result<PathBuf, ImportError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ImportError::Write { path, source }
        };
        let folder = services.join(&self.name);
        if folder.exists() {
            return Err(ImportError::Exists(folder));
        }
        let result = self.files.iter().try_for_each(|(path, text)| {
            let path = folder.join(path);
            let parent = path.parent().unwrap_or(&folder);
            std::fs::create_dir_all(parent).map_err(failed(parent))?;
            std::fs::write(&path, text).map_err(failed(&path))
        });
        let result = result.and_then(|()| match Catalogue::check(&folder) {
            mistakes if mistakes.is_empty() => Ok(()),
            mistakes => Err(ImportError::Mistakes(mistakes)),
        });
        if result.is_err() {
            // What cannot be taken away again is still a folder that the next `belljar check` tells of.
            let _ = std::fs::remove_dir_all(&folder);
        }
        result.map(|()| folder)
    }
}

/// A part of the description as a text, or none.
fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key)?.as_str().map(str::trim).filter(|text| !text.is_empty())
}
