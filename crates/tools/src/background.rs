//! Programs that belong to no call: they go on when the call that started them is over, for a time.

use std::path::Path;
use std::time::Duration;

use causes::with_causes;
use lifecycle::Stop;
use tokio::time::Instant;

use crate::Tools;
use crate::process::{Program, Running};

const SHELL: &str = "/bin/sh";

/// A program in the background. Dropped, it is killed with all that is beneath it.
#[derive(Debug)]
pub struct Background(Running);

impl Tools {
    /// Starts a command of the shell in the workspace, in the environment that `exec` has. What it writes to its output is
    /// thrown away. To be called within a tokio runtime.
    ///
    /// # Errors
    /// Why it could not be started.
    pub fn start_in_background(&self, command: &str) -> Result<Background, String> {
        let started = self.launcher.start(&Program {
            path: Path::new(SHELL),
            arguments: &["-c".to_owned(), command.to_owned()],
            environment: &self.launcher.environment(),
            input: false,
            confinement: None,
        });
        started.map(Background).map_err(|error| with_causes(&error))
    }
}

impl Background {
    /// Waits until it has ended, its time is up, or `stop`. When it returns, every process of it is dead.
    pub async fn finish(self, time: Duration, stop: &Stop) {
        // What cannot be killed here dies with its supervisor, which nobody holds any more.
        let _ = self
            .0
            .finish(Path::new(SHELL), Instant::now() + time, stop, |_| {})
            .await;
    }
}
