//! A model that plays a file: for demonstrations, tests and measurements without a key. docs/scripted.md describes the
//! format.

/// A script, read and checked.
#[derive(Debug)]
pub struct Script {}

/// Why a file is no script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {}
