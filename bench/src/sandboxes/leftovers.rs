//! What sandboxes leave behind: everything of the machine that was not there before and does not go away.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use sandbox::SandboxProvider;

use super::Room;
use crate::report::Measure;
use crate::sample::{Sample, WARM_UPS, scaled};

/// A thread of the kernel, in the flags of a process.
const OF_THE_KERNEL: u64 = 0x0020_0000;

/// How often is looked whether what is left goes away, a second between: what others do on the machine does.
const LOOKS: usize = 10;

/// Of what is left, so many are shown.
const SHOWN: usize = 20;

impl Room {
    pub(super) async fn destroying(&self) -> anyhow::Result<Vec<Measure>> {
        let host = self.installation.host_id().context("the host agent does not run")?;
        let folders = [
            self.installation.path("run"),
            self.installation.path("data"),
            "/run".into(),
        ];
        self.destroy_some(WARM_UPS).await?;
        let before = Things::of_machine(&folders)?;
        let open = descriptors(host)?;
        let destroy = self.destroy_some(scaled(1_000)).await?;
        let opened = descriptors(host)?.saturating_sub(open);
        let left = before.left(&folders).await?;
        for thing in left.iter().take(SHOWN) {
            eprintln!("bench: left over: {thing}");
        }
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let (left, opened) = (left.len() as f64, opened as f64);
        let what = format!("left on the machine by {} creates and destroys", destroy.len());
        Ok(vec![
            Measure::value("S9", what, "things", left).at_most(0.0, None),
            Measure::value("S9", "  more open in the host agent", "files", opened).at_most(0.0, None),
            Measure::times("S9", "destroy", &destroy).at_most(60.0, None),
        ])
    }

    /// How long it took to remove each of some sandboxes, which had all processes that one has.
    async fn destroy_some(&self, count: usize) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for _ in 0..count {
            let tenant = self.create().await?;
            tenant.settled().await?;
            tenant.linked.close();
            let began = Instant::now();
            self.host.destroy(tenant.id).await?;
            sample.add(began.elapsed());
            self.host.remove_disk(tenant.session).await?;
        }
        Ok(sample)
    }
}

/// Mounts in every namespace, namespaces, control groups, loop devices and processes of the machine, and files in some folders;
/// each in words that no other has.
struct Things {
    all: BTreeSet<String>,
    /// Processes by their numbers.
    processes: BTreeMap<u32, Process>,
}

struct Process {
    parent: u32,
    name: String,
    /// When it was started, as the kernel counts.
    began: u64,
}

impl Things {
    fn of_machine(folders: &[PathBuf]) -> anyhow::Result<Self> {
        let (mut all, mut processes) = (BTreeSet::new(), BTreeMap::new());
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir("/proc").context("cannot list the machine's processes")? {
            let process = entry?.path();
            let number = process.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let Some(number) = number {
                // One may end while it is looked at.
                if let Some(found) = there(Process::at(&process))?.flatten() {
                    processes.insert(number, found);
                    for namespace in shown(namespaces(&process))?.unwrap_or_default() {
                        if namespace.starts_with("mnt:") && seen.insert(namespace.clone()) {
                            let mounts = shown(fs::read_to_string(process.join("mountinfo")))?.unwrap_or_default();
                            all.extend(mounts.lines().map(|mount| format!("mount in {namespace}: {mount}")));
                        }
                        all.insert(format!("namespace {namespace}"));
                    }
                }
            }
        }
        for device in fs::read_dir("/sys/block").context("cannot list the machine's disks")? {
            let device = device?.path();
            if let Some(file) = there(fs::read_to_string(device.join("loop/backing_file")))? {
                all.insert(format!("loop device {} of {}", device.display(), file.trim()));
            }
        }
        below(Path::new("/sys/fs/cgroup"), "control group", true, &mut all)?;
        for folder in folders {
            below(folder, "file", false, &mut all)?;
        }
        Ok(Self { all, processes })
    }

    /// What is there now, and was not there before.
    fn made_since(&self, folders: &[PathBuf]) -> anyhow::Result<BTreeSet<String>> {
        let now = Self::of_machine(folders)?;
        let mut new = &now.all - &self.all;
        for (number, process) in &now.processes {
            if self.is_new(*number, process) && !self.is_of_others(*number, &now) {
                new.insert(format!("process {number}: {}", process.name));
            }
        }
        Ok(new)
    }

    fn is_new(&self, number: u32, process: &Process) -> bool {
        self.processes
            .get(&number)
            .is_none_or(|known| known.began != process.began)
    }

    /// Whether a new process descends from one that was there before and is none of the bench's. One whose starter has ended
    /// is nobody else's.
    fn is_of_others(&self, number: u32, now: &Self) -> bool {
        let (mut next, mut of_others) = (number, false);
        while next != std::process::id() {
            match now.processes.get(&next) {
                Some(process) if next != 1 => {
                    of_others |= !self.is_new(next, process);
                    next = process.parent;
                }
                _ => return of_others,
            }
        }
        false
    }

    /// The same, as far as it stays.
    async fn left(&self, folders: &[PathBuf]) -> anyhow::Result<BTreeSet<String>> {
        let mut left = self.made_since(folders)?;
        for _ in 0..LOOKS {
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            left = &left & &self.made_since(folders)?;
        }
        Ok(left)
    }
}

impl Process {
    /// The one whose folder this is; nothing for a thread of the kernel.
    fn at(folder: &Path) -> io::Result<Option<Self>> {
        let stat = fs::read_to_string(folder.join("stat"))?;
        let (name, rest) = stat.rsplit_once(") ").unwrap_or_default();
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        let name = name.split_once(" (").unwrap_or_default().1;
        let of_the_kernel = number(6).is_some_and(|flags| flags & OF_THE_KERNEL != 0);
        let process = Self {
            parent: number(1).and_then(|parent| parent.try_into().ok()).unwrap_or_default(),
            name: name.to_owned(),
            began: number(19).unwrap_or_default(),
        };
        Ok((!of_the_kernel).then_some(process))
    }
}

fn namespaces(process: &Path) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(process.join("ns"))? {
        let namespace = fs::read_link(entry?.path())?;
        all.push(namespace.to_string_lossy().into_owned());
    }
    Ok(all)
}

/// Nothing of what is gone by now.
fn there<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        // The second is said of a process.
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(3) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Nothing of what is gone by now, nor of what a process shows to nobody: one that waits to be reaped has no namespaces any
/// more, and the first of the machine may hide its own.
fn shown<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match there(looked) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ) =>
        {
            Ok(None)
        }
        looked => looked,
    }
}

/// What is in a folder and below it, where it is there; folders alone, if they are wanted.
fn below(folder: &Path, kind: &str, folders_alone: bool, all: &mut BTreeSet<String>) -> anyhow::Result<()> {
    let listed = there(fs::read_dir(folder)).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in listed.into_iter().flatten() {
        let entry = entry?;
        let Some(is_folder) = there(entry.file_type())?.map(|kind| kind.is_dir()) else {
            continue;
        };
        if is_folder || !folders_alone {
            all.insert(format!("{kind} {}", entry.path().display()));
        }
        if is_folder {
            below(&entry.path(), kind, folders_alone, all)?;
        }
    }
    Ok(())
}

/// How many files a process has open.
fn descriptors(process: u32) -> anyhow::Result<usize> {
    let folder = format!("/proc/{process}/fd");
    let listed = fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))?;
    Ok(listed.count())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Ends with its value, also where the test fails.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_was_made_meanwhile_is_new_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        let before = Things::of_machine(&folders).unwrap();
        let child = Command::new("unshare")
            .args(["--net", "sleep", "98700003"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = Ended(child.unwrap());
        let forgotten = folder.path().join("forgotten");
        fs::write(&forgotten, "").unwrap();
        let own_network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let namespace = testkit::eventually("the network of the process", || {
            own_network(&child.0.id().to_string()).filter(|own| Some(own) != own_network("self").as_ref())
        });
        let begun = format!("process {}: ", child.0.id());
        let made = |new: &BTreeSet<String>| {
            [
                new.iter().any(|thing| thing.starts_with(&begun)),
                new.contains(&format!("namespace {}", namespace.display())),
                new.contains(&format!("file {}", forgotten.display())),
            ]
        };
        let new = before.made_since(&folders).unwrap();
        assert_eq!(made(&new), [true; 3], "{new:?}");
        drop(child);
        fs::remove_file(&forgotten).unwrap();
        // The kernel removes a network a while after its last process.
        testkit::eventually("all of it to be gone", || {
            (made(&before.made_since(&folders).unwrap()) == [false; 3]).then_some(())
        });
    }
}
