//! Outside APIs, as methods that an agent may call.
//!
//! A [`Catalogue`] is read from folders of definitions; [`Services`] executes it. A call names a service, a method and
//! arguments. Only what is registered dispatches. Arguments are checked against the method's schema, become a request that
//! can reach nothing but the service's own address and path, and get their credential at the last moment, from
//! [`secret::Source`]. What comes back is data of an untrusted party: bounded in bytes and time, checked to be what was
//! declared, and freed of the credential should the upstream repeat it. A failure is a [`Failure`]: a status, a reason
//! code, words, and what to do next.
//!
//! Who may call what is not decided here: the caller asks the policy first.

mod answer;
mod arguments;
mod audited;
mod body;
mod client;
pub mod contract;
mod credentials;
mod definition;
mod exchange;
mod failure;
mod gate;
mod graphql;
pub mod import;
mod mcp;
mod pages;
mod plan;
mod refusal;
mod request;
mod retry;
mod schema;
mod script;
mod select;
mod services;
mod settings;
mod sql;
mod types;
mod urls;
mod withhold;

pub use answer::{Answer, Media};
pub use client::{ClientError, Trust, TrustError};
pub use definition::{
    Access, Action, Answer as Output, Argument, Auth, Body, Catalogue, ClientPlace, Command, Condition, CursorPlace,
    Engine, Exchange, Failing, Fixture, Grant, Http, Kind, Limits, Method, Mistake, Nesting, Next, Pages, Part,
    PathTemplate, Piece, Pointer, Recorded, Request, Script, Server, Service, Sql, Statement, Template, Tool, Unfit,
};
pub use failure::{Code, Failure};
pub use graphql::{Operation, Unparsed};
pub use plan::Problem;
pub use schema::Schema;
pub use services::{Call, Changes, Services};
pub use settings::{Bound, ServiceSettings};
pub use sql::{DatabaseSettings, TransportSecurity};
pub use types::PRELUDE;
