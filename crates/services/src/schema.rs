//! JSON Schemas, as far as a definition needs them: checked when they are read, and kept as they were written.

use serde_json::Value;

/// A JSON Schema (2020-12) that stands alone: its references are local, `#/…`.
#[derive(Clone, PartialEq, Debug)]
pub struct Schema(Value);

impl Schema {
    /// The schema as it was written.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0
    }
}
