//! From files to definitions: every key is known, every value is what it should be, and all mistakes are told at once.

mod auth;
mod fixtures;
mod http;
mod mcp;
mod method;
mod pages;
mod schemas;
mod script;
mod service;
mod sql;
mod table;
#[cfg(test)]
mod tests;
mod uses;

pub(crate) use service::read;
pub(crate) use table::is_identifier;
