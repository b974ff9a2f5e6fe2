//! Which role this process has.

use std::ffi::OsString;
use std::process::{self, ExitCode};
use std::time::Duration;
use std::{io, panic};

use causes::with_causes;
use tokio::runtime::{Builder, Runtime};

use crate::{hands, log, pid1, sync};

/// How a role ends that went wrong.
pub(crate) const FAILED: u8 = 1;

/// Plays the role that the first argument names, until it ends.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    end_at_a_panic();
    let role = arguments.next();
    let ended = match role.as_ref().and_then(|role| role.to_str()) {
        Some("supervise") => return tools::supervise(),
        Some(sandbox::inside::RUNTIME_ARGUMENT) => {
            log::to_stderr();
            let about_the_list = arguments.next();
            pid1::run(about_the_list.as_deref()).map_err(|error| (with_causes(&error), error.code()))
        }
        Some(sync::ROLE) => sync::run().map_err(|error| (with_causes(&error), FAILED)),
        Some(hands::ROLE) => hands::run().map_err(|error| (with_causes(&error), FAILED)),
        Some("--version") => {
            println!("belljar-runtime {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        _ => {
            eprintln!(
                "belljar-runtime is started by Belljar, as the first process of a sandbox (`belljar-runtime pid1`)."
            );
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err((reason, code)) => {
            eprintln!("belljar-runtime: {reason}");
            ExitCode::from(code)
        }
    }
}

/// Has a panic end the process, however it was built: whoever depends on it sees that at once, instead of half of it going on.
fn end_at_a_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        process::abort();
    }));
}

/// An event loop with so many threads for what blocks. One is there from the beginning and stays: in a sandbox whose processes
/// are used up no other can be had, and a loop without any would have to give up.
pub(crate) fn event_loop(blocking_threads: usize) -> io::Result<Runtime> {
    let event_loop = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .thread_stack_size(256 << 10)
        .thread_keep_alive(Duration::from_secs(u64::from(u32::MAX)))
        .build()?;
    drop(event_loop.spawn_blocking(|| {}));
    Ok(event_loop)
}
