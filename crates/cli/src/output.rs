//! What is printed. Whoever reads it may stop in the middle, as `head` does: the command then ends, and says nothing of it.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::ClientError;

/// Prints a line that was asked for.
///
/// # Errors
/// Nobody reads it, or it could not be written.
pub fn line(words: impl Display) -> Result<(), ClientError> {
    writeln!(io::stdout(), "{words}").map_err(output)
}

/// Prints a line about what is done. Nobody is hurt where it cannot be written.
pub fn note(words: impl Display) {
    let _ = writeln!(io::stderr(), "{words}");
}

/// Why something could not be printed.
#[must_use]
pub fn output(source: io::Error) -> ClientError {
    if source.kind() == ErrorKind::BrokenPipe {
        return ClientError::Closed;
    }
    ClientError::File {
        attempt: "write to",
        path: "the output".into(),
        source,
    }
}
