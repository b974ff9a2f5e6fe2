//! A file for each kind of thing.

pub(crate) mod approvals;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod images;
pub(crate) mod models;
pub(crate) mod people;
pub(crate) mod policy;
pub(crate) mod prompts;
pub(crate) mod proxy;
pub(crate) mod sandboxes;
pub(crate) mod sessions;
pub(crate) mod snapshots;
pub(crate) mod usage;

/// The most that one page of a list has.
const LONGEST_PAGE: u32 = 200;

/// How long a page is, of what was asked for.
fn page_length(asked: Option<u32>) -> u32 {
    asked.unwrap_or(50).clamp(1, LONGEST_PAGE)
}

/// A value that is written as one word, or by its `state`, as that word.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Object(members)) => members
            .get("state")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default()
            .to_owned(),
        _ => String::new(),
    }
}

/// An answer that says nothing but that it was done.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct Done {
    /// Always true.
    done: bool,
}

impl Done {
    const JSON: axum::Json<Self> = axum::Json(Self { done: true });
}
