//! Texts and values with places for arguments.

pub(crate) mod parse;

use serde_json::Value;

/// Where a value stands in a call's arguments: names from the outside in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument(pub Vec<String>);

/// A value with places for arguments.
#[derive(Clone, PartialEq, Debug)]
pub enum Template {
    /// It never changes.
    Fixed(Value),
    /// The argument itself, of whatever type. No value where it was not given.
    Argument(Argument),
    /// Every argument but these, as an object: the others stand elsewhere in the request.
    Rest(Vec<String>),
    /// A text. No value where one of its arguments was not given.
    Text(Vec<Piece>),
    /// A list, without those that have no value.
    List(Vec<Template>),
    /// An object, without those that have no value. No value where nothing is left and it was not written empty.
    Object(Vec<(String, Template)>),
}

/// A part of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// As it stands.
    Literal(String),
    /// A string, number or boolean of the arguments; in a path, one segment.
    Argument(Argument),
    /// The same in a path, where it may be several segments.
    Segments(Argument),
}

/// A path, such as `/repos/{owner}/{repo}/contents/{+path}`: `{x}` is one segment, `{+x}` may be several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathTemplate(pub Vec<Piece>);

/// An argument does not fit its place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the argument {argument} {reason}")]
pub struct Unfit {
    /// Which.
    pub argument: String,
    /// Why.
    pub reason: &'static str,
}

impl Argument {
    /// The value in a call's arguments; null counts as not given.
    #[must_use]
    pub fn of<'v>(&self, arguments: &'v Value) -> Option<&'v Value> {
        let mut value = arguments;
        for name in &self.0 {
            value = value.as_object()?.get(name)?;
        }
        (!value.is_null()).then_some(value)
    }
}

impl std::fmt::Display for Argument {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0.join("."))
    }
}
