//! Folders of installations, and what tests that were killed have left in them.
//!
//! Each folder holds a file that its test keeps locked while it lives. Whoever makes a folder looks first for those whose
//! test is gone, has a Belljar of their own adopt what lives there, and takes it down.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use testkit::{eventually, eventually_asked};

use crate::processes;
use crate::program::belljar;

const PLACE: &str = "/var/tmp";
const PREFIX: &str = "belljar-e2e-";
const LOCK: &str = "lock";

/// A folder of a test that lives. It is unmounted and removed with the value.
pub(crate) struct Held {
    path: PathBuf,
    _lock: File,
}

impl Held {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        unmount_below(&self.path);
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A new folder; before the first of this process, what others left is cleared away.
pub(crate) fn new_folder() -> Held {
    static CLEARED: Once = Once::new();
    // Nobody may find a folder that is not locked yet.
    let all = File::create(Path::new(PLACE).join("belljar-e2e.lock")).expect("make a lock");
    all.lock().expect("wait for other tests");
    CLEARED.call_once(|| {
        for entry in fs::read_dir(PLACE).expect("list a folder").flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                clear(&entry.path());
            }
        }
    });
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(PLACE);
    let path = folder.expect("make a folder").keep();
    let lock = File::create(path.join(LOCK)).expect("make a lock");
    lock.lock().expect("lock what nobody knows yet");
    Held { path, _lock: lock }
}

/// Takes down an installation whose test is gone.
fn clear(folder: &Path) {
    let Ok(lock) = File::open(folder.join(LOCK)) else {
        return;
    };
    if lock.try_lock().is_err() {
        return;
    }
    println!("clearing {}, which a test that was killed has left", folder.display());
    let held = Held {
        path: folder.to_owned(),
        _lock: lock,
    };
    let name = folder.to_string_lossy();
    processes::running(&[&name]).into_iter().for_each(processes::kill);
    eventually("the processes of a test that was killed to end", || {
        processes::running(&[&name]).is_empty().then_some(())
    });
    if fs::exists(folder.join("run/sandboxes")).unwrap_or_default() {
        adopt_and_remove(folder);
    }
    first_processes(folder).into_iter().for_each(processes::kill);
    drop(held);
}

/// Starts both processes once more: the host agent adopts the sandboxes, and the control plane has them removed.
fn adopt_and_remove(folder: &Path) {
    let start = |role: &str| {
        let mut command = Command::new(belljar());
        command.arg(role).arg("--config").arg(folder.join("belljar.toml"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start belljar")
    };
    let configuration = fs::read_to_string(folder.join("belljar.toml")).unwrap_or_default();
    let address = configuration
        .lines()
        .find_map(|line| line.strip_prefix("listen = \"")?.strip_suffix('"'));
    let url = format!("http://{}", address.unwrap_or_default());
    let command = |arguments: &[&str]| {
        let token = fs::read_to_string(folder.join("data/control/admin-token")).unwrap_or_default();
        let mut command = Command::new(belljar());
        command.args(arguments).stdin(Stdio::null());
        command.env("BELLJAR_URL", &url).env("BELLJAR_TOKEN", token.trim());
        command
    };
    let mut both = [start("host"), start("serve")];
    eventually_asked("an answer, or the end of who could give one", || {
        let answered = command(&["sandbox", "list"])
            .output()
            .expect("run belljar")
            .status
            .success();
        let mut ended = both.iter_mut().map(std::process::Child::try_wait);
        (answered || ended.any(|end| end.is_ok_and(|end| end.is_some()))).then_some(())
    });
    remove_sandboxes(command);
    for mut child in both {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Removes the sandboxes of whoever is asked by `command`. Frozen ones too, which no signal ends.
pub(crate) fn remove_sandboxes(command: impl Fn(&[&str]) -> Command) {
    let _ = command(&["sandbox", "rm", "--all", "--yes"])
        .output()
        .expect("run belljar");
}

/// Does away with the sandboxes of an installation whose host agent is gone, and with all that these folders hold but what the
/// control plane has.
pub(crate) fn wipe(installation: &Path, folders: &[&Path]) {
    first_processes(installation).into_iter().for_each(processes::kill);
    eventually("the sandboxes of a machine that is gone to end", || {
        first_processes(installation).is_empty().then_some(())
    });
    let sandboxes = fs::read_dir(installation.join("run/sandboxes"));
    for sandbox in sandboxes.into_iter().flatten().flatten() {
        let groups = format!("*/belljar/{}*", sandbox.file_name().display());
        let find = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &groups, "-delete"];
        // They are busy until the last of their processes is buried.
        eventually("the groups of a machine that is gone to be removed", || {
            let output = Command::new("find").args(find).output().expect("run find");
            output.status.success().then_some(())
        });
    }
    for folder in folders {
        unmount_below(folder);
        for entry in fs::read_dir(folder).expect("list a folder").flatten() {
            if entry.file_name() == "control" {
                continue;
            }
            let path = entry.path();
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.unwrap_or_else(|error| panic!("remove {}: {error}", path.display()));
        }
    }
}

/// The first processes of an installation's sandboxes: those that see its link directories.
pub(crate) fn first_processes(folder: &Path) -> Vec<u32> {
    let path = folder.to_string_lossy().into_owned();
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    processes::first_in_sandboxes()
        .into_iter()
        .filter(|id| {
            let mounts = fs::read_to_string(format!("/proc/{id}/mountinfo")).unwrap_or_default();
            mounts.contains(&path) || name.as_ref().is_some_and(|name| mounts.contains(name))
        })
        .collect()
}

/// Takes down what is mounted below a folder, the last first.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    for point in points
        .into_iter()
        .rev()
        .filter(|point| Path::new(point).starts_with(folder))
    {
        let _ = Command::new("umount").args(["--lazy", point]).status();
    }
}
