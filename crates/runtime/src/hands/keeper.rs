//! Starts hands, listens to them, and replaces them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use causes::with_causes;
use channel::{Descriptors, Lines};
use protocol::{FromHands, ToControl, ToHands};
use rustix::process::Pid;
use sandbox::inside::{GROUP_ID, USER_ID};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tracing::warn;

use super::LONGEST;
use super::handle::{ORDERS, Shared};
use crate::gateway::backoff;

/// Hands that live this long were no failed start.
const LIVED: Duration = Duration::from_secs(5);

/// Hands could not be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot make a pair of sockets for the hands")]
    Socket(#[source] io::Error),
    #[error("cannot find this program's own file")]
    Program(#[source] io::Error),
    #[error("cannot run {} as the user {USER_ID}:{GROUP_ID}", program.display())]
    Run {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Keeps hands, for ever.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut failures = 0;
    let mut replaced = false;
    loop {
        let began = Instant::now();
        match start(&shared) {
            Ok(socket) => {
                let reason = attend(&shared, socket, replaced).await;
                warn!(reason, "the hands are lost and will be replaced");
            }
            Err(error) => warn!(error = with_causes(&error), "cannot start the hands"),
        }
        // What they started dies with them, and so do they if they only closed their socket.
        shared.reaper.kill_everything();
        shared.reaper.hands_died().await;
        shared.reaper.swept().await;
        shared.end();
        replaced = true;
        failures = if began.elapsed() < LIVED { failures + 1 } else { 0 };
        if failures > 1 {
            tokio::time::sleep(backoff(failures)).await;
        }
    }
}

/// The same file as this process, as the sandbox's user: its socket is its standard input, and of ours it has
/// nothing else but the log, until it has begun.
fn start(shared: &Shared) -> Result<UnixStream, StartError> {
    let (near, far) = std::os::unix::net::UnixStream::pair().map_err(StartError::Socket)?;
    near.set_nonblocking(true).map_err(StartError::Socket)?;
    let near = UnixStream::from_std(near).map_err(StartError::Socket)?;
    let program = std::env::current_exe().map_err(StartError::Program)?;
    let child = Command::new(&program)
        .arg(super::ROLE)
        .uid(USER_ID)
        .gid(GROUP_ID)
        .current_dir("/")
        .stdin(OwnedFd::from(far))
        .stdout(Stdio::null())
        .spawn()
        .map_err(|source| StartError::Run { program, source })?;
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        shared.reaper.keep(pid);
    }
    Ok(near)
}

/// Passes orders in and answers out, until the hands are lost; says why they are.
async fn attend(shared: &Shared, socket: UnixStream, replaced: bool) -> String {
    let socket = Arc::new(socket);
    let (orders, ordered) = mpsc::channel(ORDERS);
    shared.begin(orders);
    tokio::select! {
        error = listen(shared, &socket, replaced) => error,
        error = speak(&socket, ordered) => error,
        () = shared.reaper.hands_died() => "their process died".to_owned(),
        () = shared.replace.notified() => "they did not answer in time".to_owned(),
    }
}

async fn listen(shared: &Shared, socket: &Arc<UnixStream>, replaced: bool) -> String {
    let mut lines = Lines::new(Arc::clone(socket), LONGEST, Descriptors::Taken);
    loop {
        let said = match lines.read::<FromHands>().await {
            Ok(Some(said)) => said,
            Ok(None) => return "they closed their socket".to_owned(),
            Err(error) => return with_causes(&error),
        };
        let descriptor = match said {
            FromHands::File { opened: true, .. } => lines.descriptor(),
            _ => None,
        };
        let ready = said == FromHands::Ready;
        let ended = matches!(
            said,
            FromHands::Result { .. } | FromHands::Rested | FromHands::BackgroundEnded { .. }
        );
        shared.hear(said, descriptor).await;
        if ready && replaced {
            shared.outbox.mention(ToControl::HandsReplaced);
        }
        if ended {
            // Should somebody have killed its supervisor, what that stood over is ours.
            shared.reaper.sweep();
        }
    }
}

async fn speak(socket: &UnixStream, mut ordered: mpsc::Receiver<ToHands>) -> String {
    while let Some(order) = ordered.recv().await {
        if let Err(error) = channel::write(socket, &order, None).await {
            return with_causes(&error);
        }
    }
    "nobody gives them orders".to_owned()
}
