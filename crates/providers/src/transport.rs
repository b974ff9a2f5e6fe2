//! The ways to a model: HTTP, or a script.
