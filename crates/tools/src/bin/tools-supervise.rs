//! The supervisor of a tool's processes as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    tools::supervise()
}
