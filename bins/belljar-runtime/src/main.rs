//! The program that is PID 1 in a sandbox, and, executed anew as the sandbox's user, its hands.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::main(std::env::args_os().skip(1))
}
