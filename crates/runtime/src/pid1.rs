//! The first process of a sandbox.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;

use calls::FilterError;
use lifecycle::Tasks;
use link::client::Client;
use redirect::{Redirect, RedirectError};
use rustix::process::{DumpableBehavior, getpid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, set_name};
use sandbox::capture::{DNS_ADDRESS, DNS_ADDRESS_V6, DNS_PORT, TCP_PORT};
use sandbox::inside::{LINK_DIRECTORY, LINK_SOCKET, LISTED_ARGUMENT, LISTED_NAME, LISTS_ARGUMENT, MISREAD, UNLISTED};
use sys::listed::{Listed, look};

use crate::capture::Capture;
use crate::hands::Hands;
use crate::orders::Orders;
use crate::outbox::outbox;
use crate::program::{FAILED, event_loop};
use crate::reaper::Reaper;
use crate::sync::Keeper;

/// All that PID 1 may do beyond what any user may: become the user, and end the user's processes.
const RIGHTS: CapabilitySet = CapabilitySet::KILL
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// PID 1 could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Pid1Error {
    #[error(
        "this process has the id {0} and not 1: it would kill what is not its own, so it runs only as the first process \
         of a sandbox"
    )]
    NotFirst(i32),
    #[error("cannot keep other processes from this one's memory")]
    Dumpable(#[source] io::Error),
    #[error(
        "the list of system calls was left out by what started this sandbox, which must not begin without it: another OCI runtime \
         is to make sandboxes (apt-get install runc)"
    )]
    Unlisted,
    #[error(
        "what started this sandbox gets rules of the list of system calls about some bits of an argument wrong, and lets through \
         what they refuse: another OCI runtime is to make sandboxes (apt-get install runc)"
    )]
    Misread,
    #[error("the list of system calls was left to this process, and it cannot give it to itself")]
    List(#[source] FilterError),
    #[error("cannot say that the list of system calls holds")]
    Name(#[source] io::Error),
    #[error("the network was left to this process, and it cannot be sealed")]
    Network(#[source] RedirectError),
    #[error("cannot start the event loop")]
    EventLoop(#[source] io::Error),
    #[error("cannot be told of the death of children")]
    Reaper(#[source] io::Error),
}

impl Pid1Error {
    /// How PID 1 ends of it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Unlisted => UNLISTED,
            Self::Misread => MISREAD,
            _ => FAILED,
        }
    }
}

/// Lives as PID 1. Returns only where it could not begin. The word says what it does about the list of system calls.
pub(crate) fn run(about_the_list: Option<&OsStr>) -> Result<(), Pid1Error> {
    if !getpid().is_init() {
        return Err(Pid1Error::NotFirst(getpid().as_raw_nonzero().get()));
    }
    match about_the_list.and_then(OsStr::to_str) {
        Some(LISTED_ARGUMENT) => require_list()?,
        Some(LISTS_ARGUMENT) => {
            calls::give_to_this_process().map_err(Pid1Error::List)?;
            require_list()?;
        }
        _ => {}
    }
    // The token will be in this memory: no core dump, no ptrace, no /proc/1/mem, not even for another root inside.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| Pid1Error::Dumpable(error.into()))?;
    // Before anything is read: what listens afterwards is all there is, and nobody in here can change it.
    let redirect = Redirect {
        tcp_port: TCP_PORT,
        resolver_v4: DNS_ADDRESS,
        resolver_v6: DNS_ADDRESS_V6,
        resolver_port: DNS_PORT,
    };
    redirect::lay_and_give_up(&redirect, RIGHTS).map_err(Pid1Error::Network)?;
    let event_loop = event_loop(1).map_err(Pid1Error::EventLoop)?;
    event_loop.block_on(live())
}

/// Looks whether the list of system calls holds, and says so to whoever watches from outside.
fn require_list() -> Result<(), Pid1Error> {
    match look() {
        Listed::Missing => return Err(Pid1Error::Unlisted),
        Listed::Misread => return Err(Pid1Error::Misread),
        Listed::Held => {}
    }
    set_name(LISTED_NAME).map_err(|error| Pid1Error::Name(error.into()))
}

async fn live() -> Result<(), Pid1Error> {
    let tasks = Tasks::new();
    let reaper = Reaper::start(&tasks).map_err(Pid1Error::Reaper)?;
    let (outbox, outgoing) = outbox();
    let client = Client::new(Path::new(LINK_DIRECTORY).join(LINK_SOCKET), &tasks);
    let sync = Keeper::new(&client, &reaper, &tasks);
    let hands = Arc::new(Hands::start(&reaper, &outbox, sync.filled(), &tasks));
    let capture = Capture::start(&client);
    Orders::new(&client, &hands, &sync, capture, &outbox, &tasks)
        .obey(outgoing)
        .await;
    Ok(())
}
