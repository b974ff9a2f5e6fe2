//! What this machine lacks for sandboxes, found out by trying.
//!
//! Nothing is concluded from a version or from a file that is there: each trial does for a moment what making a sandbox
//! does, on a small scale, and leaves nothing behind. Mounts and networks are made in namespaces of a thread that ends.

mod attempt;
mod cgroup;
mod container;
mod disk;
mod file_system;
mod network;
mod place;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

use self::attempt::Lack;

/// The machine as it is to be used.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The data directory. It need not be there yet.
    pub data: PathBuf,
    /// The user that `belljar serve` runs as; none where it is the same as the host agent's.
    pub user: Option<String>,
    /// The OCI runtime's command; none where an engine makes containers: then what only the former needs is not tried.
    pub command: Option<PathBuf>,
    /// Where the program that is PID 1 in every sandbox may be: the first that is there is taken.
    pub runtime: Vec<PathBuf>,
    /// The folder of the image that sandboxes are made from; none where it is not built yet.
    pub image: Option<PathBuf>,
    /// Where `belljar serve` is to listen, unless it does already.
    pub ports: Vec<SocketAddr>,
    /// Where programs are looked for, as in PATH.
    pub path: OsString,
}

/// What came of one trial.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was tried, in a few words.
    pub what: &'static str,
    /// How it went.
    pub verdict: Verdict,
    /// What was found, in a sentence.
    pub says: String,
    /// The command, or the deed, that mends it.
    pub mend: Option<String>,
}

/// How a trial went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should.
    Fine,
    /// Sandboxes run, and something is worse than it could be.
    Warning,
    /// Sandboxes do not run.
    Lacking,
}

type Trial = fn(&Machine) -> Result<String, Lack>;

/// Every trial, in the order in which they are reported.
const TRIALS: &[(&str, Trial)] = &[
    ("root", place::root),
    ("user", place::user),
    ("ids", file_system::ids),
    ("overlay", file_system::overlay),
    ("disk", disk::disk),
    ("space", place::space),
    ("memory", place::memory),
    ("network", network::network),
    ("cgroups", cgroup::cgroups),
    ("system call filter", container::filter),
    ("container", container::container),
    ("image", container::image),
    ("list of system calls", container::listed_calls),
    ("image building", place::building),
    ("runtime", place::runtime),
    ("port", place::ports),
];

/// Those that are about an OCI runtime and what is made for it. The rules of the network are laid by the runtime itself else.
const OF_OCI: [&str; 4] = ["overlay", "container", "image", "list of system calls"];

/// Tries everything that sandboxes need on this machine. Takes seconds and blocks; to be run as root.
#[must_use]
pub fn examine(machine: &Machine) -> Vec<Finding> {
    // Each in a thread of its own: a trial may change what its thread may do, for good.
    let tried = std::thread::scope(|scope| {
        let trials = TRIALS
            .iter()
            .filter(|(what, _)| machine.command.is_some() || !OF_OCI.contains(what))
            .map(|(what, trial)| (*what, scope.spawn(|| trial(machine))));
        // One after the other: a machine that is looked at should not be busy with being looked at.
        trials.map(|(what, trial)| (what, trial.join())).collect::<Vec<_>>()
    });
    let found = tried.into_iter().map(|(what, result)| match result {
        Ok(Ok(says)) => Finding {
            what,
            verdict: Verdict::Fine,
            says,
            mend: None,
        },
        Ok(Err(lack)) => lack.finding(what),
        Err(_) => Lack::lacking("the trial itself went wrong", "report this as a fault of Belljar").finding(what),
    });
    found.collect()
}
