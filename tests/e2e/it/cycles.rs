//! Many sessions come, work and are put away: of their sandboxes nothing is left, in either process or on the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use testkit::eventually_asked;

use crate::installation::Installation;
use crate::lots::is_full;
use crate::processes;

const JOB: &str = r#"
steps:
  - when: { turn: 1, text: make }
    tools:
      - name: exec
        input:
          code: |
            const { writeFile } = await import("node:fs/promises");
            await writeFile("made", "in this session");
            return "made";
  - when: { text: make }
    text: "Made."
"#;

/// What is opened once and kept open, such as connections that are used again: fewer than sessions come.
const KEPT_OPEN: usize = 16;

/// What this machine has of an installation.
#[derive(Debug)]
struct Machine {
    /// Open in the host agent and in the control plane.
    descriptors: [usize; 2],
    processes: usize,
    /// As the host agent sees them.
    mounts: usize,
    /// Below the folders of disks and of living sandboxes.
    files: BTreeSet<String>,
}

impl Machine {
    fn of(belljar: &Installation) -> Self {
        let folder = belljar.folder().to_string_lossy().into_owned();
        let [host, serve] = belljar.ids();
        let open = |id: u32| {
            fs::read_dir(format!("/proc/{id}/fd"))
                .expect("list descriptors")
                .count()
        };
        let mounts = fs::read_to_string(format!("/proc/{host}/mountinfo")).expect("read the mounts");
        let mut files = BTreeSet::new();
        for name in ["run", "data/pool", "data/disks", "data/asleep"] {
            gather(&belljar.path(name), &mut files);
        }
        Self {
            descriptors: [open(host), open(serve)],
            processes: processes::running(&[&folder]).len(),
            mounts: mounts.lines().filter(|line| line.contains(&folder)).count(),
            files,
        }
    }
}

/// Everything below a folder.
fn gather(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.insert(entry.path().to_string_lossy().into_owned());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            gather(&entry.path(), found);
        }
    }
}

/// The sandboxes that live, as the host agent notes them.
fn sandboxes(belljar: &Installation) -> BTreeSet<String> {
    let noted = fs::read_dir(belljar.path("run/sandboxes"))
        .into_iter()
        .flatten()
        .flatten();
    noted
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The groups of these sandboxes.
fn groups(sandboxes: &BTreeSet<String>) -> Vec<String> {
    let mut all = BTreeSet::new();
    for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        gather(&hierarchy.path().join("belljar"), &mut all);
    }
    gather(Path::new("/sys/fs/cgroup/belljar"), &mut all);
    let is_its = |group: &String| sandboxes.iter().any(|id| group.contains(id));
    all.into_iter().filter(is_its).collect()
}

#[test]
fn of_many_sessions_that_came_and_went_nothing_is_left() {
    let count = if is_full() { 1_000 } else { 20 };
    // Snapshots stay, on purpose.
    let belljar = Installation::start_with(JOB, "---\nrun_snapshots = 0\n");
    let mut seen = BTreeSet::new();
    let mut told = String::new();
    let mut cycle = |number: usize| {
        let session = format!("s-{number}");
        belljar.done(&["run", "--session", &session, "make files"]);
        assert_eq!(belljar.file(&session, "made"), "in this session");
        let living = sandboxes(&belljar);
        assert!(!groups(&living).is_empty(), "{living:?} have groups while they live");
        seen.extend(living);
        belljar.done(&["archive", &session]);
    };
    let all_are_gone = || {
        eventually_asked("the last session to be put away", || {
            sandboxes(&belljar).is_empty().then_some(())
        });
    };
    (0..5).for_each(&mut cycle);
    all_are_gone();
    let before = Machine::of(&belljar);
    (5..5 + count).for_each(&mut cycle);
    all_are_gone();
    assert!(seen.len() >= count, "each has a sandbox of its own");
    eventually_asked("all that sandboxes had to be gone", || {
        let after = Machine::of(&belljar);
        let left: Vec<_> = after.files.difference(&before.files).collect();
        let mut open = after.descriptors.iter().zip(before.descriptors);
        let is_gone = left.is_empty()
            && groups(&seen).is_empty()
            && after.mounts <= before.mounts
            && after.processes <= before.processes
            && open.all(|(after, before)| *after <= before + KEPT_OPEN);
        let (descriptors, processes, mounts) = (after.descriptors, after.processes, after.mounts);
        let left = format!("{left:?}, {processes} processes, {mounts} mounts, {descriptors:?} descriptors");
        if !is_gone && told != left {
            println!("left are {left}");
            told = left;
        }
        is_gone.then_some(())
    });
}
