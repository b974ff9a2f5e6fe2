//! What a service is: which methods there are, and how a call of one becomes a request.
//!
//! A definition is data. It is read from `services/<name>/service.toml` by [`Catalogue::load`], checked whole, and never
//! changed; the dispatch table, the types that a model sees, the manual and the contract test all come from it. Whatever
//! can be wrong with it was said when it was loaded: a call never meets a mistake of its author.

mod auth;
mod catalogue;
mod fixture;
mod mcp;
pub(crate) mod mistake;
mod pages;
pub(crate) mod read;
mod script;
pub(crate) mod source;
mod sql;
pub(crate) mod template;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

pub use auth::{Auth, ClientPlace, Grant, Part};
pub use catalogue::Catalogue;
pub use fixture::{Exchange, Fixture, Recorded};
pub use mcp::{Command, Server, Tool};
pub use mistake::Mistake;
pub use pages::{CursorPlace, Next, Pages};
pub use script::Script;
pub use sql::{Engine, Sql, Statement};
pub use template::{Argument, PathTemplate, Piece, Template, Unfit};

pub(crate) use source::below;

use crate::schema::Schema;

/// An outside API as the agent sees it.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name: an identifier, the folder's name.
    pub name: String,
    /// One line for the prompt.
    pub summary: String,
    /// Where it was read from.
    pub folder: PathBuf,
    /// What is behind it.
    pub kind: Kind,
    /// Ways to authenticate, the preferred first: that one is used whose slots are all bound. Empty: none is needed.
    pub auth: Vec<Auth>,
    /// Limits of the service as a whole; what a method leaves out is taken from here.
    pub limits: Limits,
    /// Its methods by name.
    pub methods: BTreeMap<String, Method>,
}

/// What is behind a service.
#[derive(Clone, Debug)]
pub enum Kind {
    /// An API over HTTP.
    Http(Http),
    /// An MCP server.
    Mcp(Server),
    /// JavaScript between calls of an API.
    Script(Script),
    /// A database.
    Sql(Sql),
}

/// An API over HTTP.
#[derive(Clone, Debug)]
pub struct Http {
    /// What every path is joined to: http or https, without user, query, fragment, and `/` at its end.
    pub base_url: String,
    /// Headers of every request, in lower case.
    pub headers: Vec<(String, String)>,
    /// How lists and objects stand in a query and in a form.
    pub nesting: Nesting,
    /// How a refusal is recognised and told.
    pub failure: Failing,
}

impl Service {
    /// Where it is as it is defined, in words.
    #[must_use]
    pub fn place(&self) -> &str {
        match &self.kind {
            Kind::Http(http) => &http.base_url,
            Kind::Mcp(Server::Url { url, .. }) => url,
            Kind::Script(script) => &script.api.base_url,
            Kind::Mcp(Server::Command(command)) => command.words.first().map_or("", String::as_str),
            Kind::Sql(sql) => sql.engines.first().map_or("", |engine| engine.as_str()),
        }
    }
}

/// One thing that can be asked of a service.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name: an identifier, without a dot.
    pub name: String,
    /// One line.
    pub summary: String,
    /// Whether it changes anything.
    pub access: Access,
    /// Whether a repeat does no harm; reading always is.
    pub idempotent: bool,
    /// What a call must hand in: always an object, without properties that are not named unless it says so. A paged
    /// method's has `cursor`.
    pub arguments: Schema,
    /// What comes back; of a paged method, one item of it. Unknown where it is left out.
    pub result: Option<Schema>,
    /// What a call does: of the same kind as the service.
    pub action: Action,
    /// How the answer is read.
    pub answer: Answer,
    /// The part of a JSON answer that is the result; all of it where it is empty.
    pub select: Pointer,
    /// How the next part of a long list is asked for.
    pub pages: Option<Pages>,
    /// The header that carries the call's idempotency key, in lower case, where the upstream takes one.
    pub idempotency_header: Option<String>,
    /// Limits of this method.
    pub limits: Limits,
    /// Recorded exchanges, in the order in which `belljar service test` plays them.
    pub fixtures: Vec<Fixture>,
}

/// Whether a method changes anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It changes nothing.
    Read,
    /// It may.
    Write,
}

/// What a call does.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// It makes a request.
    Http(Request),
    /// It calls a tool.
    Mcp(Tool),
    /// It runs the function of the method's name.
    Script,
    /// It runs a statement.
    Sql(Statement),
}

/// How a call becomes an HTTP request.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub verb: http::Method,
    /// Joined to the service's base. Its arguments are required, and scalars.
    pub path: PathTemplate,
    /// The query, in order. What has no value is left out.
    pub query: Vec<(String, Template)>,
    /// Headers, in lower case. What has no value is left out.
    pub headers: Vec<(String, Template)>,
    /// The body.
    pub body: Body,
}

/// What a request carries.
#[derive(Clone, PartialEq, Debug)]
pub enum Body {
    /// Nothing.
    None,
    /// JSON.
    Json(Template),
    /// `application/x-www-form-urlencoded`, nested as the service's [`Nesting`] says.
    Form(Vec<(String, Template)>),
    /// GraphQL over JSON: a fixed document of one operation, and that a query where the method only reads. An answer
    /// with `errors` is a failure.
    GraphQl {
        /// The document.
        document: String,
        /// Its variables.
        variables: Vec<(String, Template)>,
    },
}

/// How an answer is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Answer {
    /// As JSON. No body at all is null.
    #[default]
    Json,
    /// As a text: the result is a string.
    Text,
    /// As bytes, with the upstream's media type.
    Binary,
}

/// How lists and objects stand in a query or a form. The fields of an object are `a[b]=1` in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Nesting {
    /// `a=1&a=2`
    #[default]
    Repeat,
    /// `a=1,2`
    Comma,
    /// `a[]=1&a[]=2`
    Brackets,
    /// `a[0]=1&a[1]=2`
    Indices,
}

/// How a refusal is recognised and told. A status of 400 or more always is one.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Failing {
    /// An answer with a good status is a refusal too where this holds.
    pub when: Option<Condition>,
    /// Where the upstream's code stands; the first that is there counts.
    pub code: Vec<Pointer>,
    /// Where its words stand; the first that is there counts.
    pub message: Vec<Pointer>,
    /// Codes that mean: too many calls.
    pub rate_limited: Vec<String>,
    /// Codes that mean: the credential is not good, or not good enough.
    pub unauthorized: Vec<String>,
    /// Codes that mean: there is no such thing.
    pub not_found: Vec<String>,
}

/// A value at a place of an answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Condition {
    /// The place.
    pub at: Pointer,
    /// What it equals.
    pub equals: Value,
}

/// A JSON pointer (RFC 6901); empty for the whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pointer(pub String);

impl Pointer {
    /// The value at this place.
    #[must_use]
    pub fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.pointer(&self.0)
    }
}

/// What one service or method may use up. What is left out is taken from the service, then from Belljar's own defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Of one call, repeats included.
    pub timeout: Option<Duration>,
    /// Bytes of one answer.
    pub response: Option<u64>,
    /// Bytes of one call's arguments.
    pub arguments: Option<u64>,
    /// Requests under way at once.
    pub concurrency: Option<u32>,
    /// Requests a minute.
    pub per_minute: Option<u32>,
}
