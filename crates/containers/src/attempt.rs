//! Errors that say what was tried.

use std::error::Error;

use sandbox::ProviderError;

/// Says of a failure what was tried, and on what.
pub trait Attempt<T> {
    /// The same, with what was tried.
    ///
    /// # Errors
    /// [`ProviderError::Failed`] where it failed.
    fn attempt(self, attempt: impl FnOnce() -> String) -> Result<T, ProviderError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Attempt<T> for Result<T, E> {
    fn attempt(self, attempt: impl FnOnce() -> String) -> Result<T, ProviderError> {
        self.map_err(|error| ProviderError::failed(attempt(), error))
    }
}

/// What is gone already needs no removing.
///
/// # Errors
/// What went wrong otherwise.
pub fn unless_missing(result: std::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
