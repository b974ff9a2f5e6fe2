//! The supervisor of a call's processes.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs a program and lets nothing of it outlive the call: the whole of a supervisor's `main`.
///
/// Arguments: `[--confine JSON] [--pass-input] -- PROGRAM ARGUMENT…`. This process adopts every descendant of the program;
/// when the program ends, or the other end of its own standard input is closed, it kills them all and exits, with the
/// program's code (128 + n after signal n).
pub fn supervise(_arguments: impl Iterator<Item = OsString>) -> ExitCode {
    ExitCode::FAILURE
}
