use std::process::{Child, Command};

use domain::SandboxId;

use super::*;

/// A process in a group of its own, in the hierarchy of version 2 alone.
struct InGroup {
    child: Child,
    group: Group,
}

impl InGroup {
    fn start() -> Self {
        let machine = Hierarchies::of_this_machine("belljar-test").unwrap();
        let unified: Vec<_> = machine
            .all
            .into_iter()
            .filter(|one| one.controllers.is_none())
            .collect();
        assert!(!unified.is_empty(), "this machine has no cgroups of version 2");
        let hierarchies = Hierarchies {
            all: unified,
            parent: "belljar-test".into(),
        };
        let group = hierarchies.group(&SandboxId::new().to_string());
        let folder = group.unified.clone().unwrap();
        fs::create_dir_all(folder.join("inner")).unwrap();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        fs::write(folder.join("inner/cgroup.procs"), child.id().to_string()).unwrap();
        Self { child, group }
    }
}

#[test]
fn version_2_freezes_and_kills_what_is_frozen() {
    let mut process = InGroup::start();
    process.group.freeze().unwrap();
    assert!(process.group.is_frozen());
    process.group.thaw().unwrap();
    assert!(!process.group.is_frozen());
    process.group.freeze().unwrap();
    process.group.kill().unwrap();
    process.child.wait().unwrap();
    process.group.remove().unwrap();
    assert!(!process.group.exists());
}

#[test]
fn each_kind_of_machine_is_understood() {
    let v2 = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    assert_eq!(
        parse(v2),
        [Hierarchy {
            mounted: "/sys/fs/cgroup".into(),
            controllers: None
        }]
    );
    let hybrid = "\
        30 25 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n\
        31 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:6 - cgroup cgroup rw,cpu,cpuacct\n\
        32 25 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
        33 25 0:29 /part /elsewhere rw - cgroup cgroup rw,freezer\n\
        34 25 0:30 / /tmp rw - tmpfs none rw\n";
    let machine = Hierarchies {
        all: parse(hybrid),
        parent: "belljar".into(),
    };
    assert_eq!(machine.all.len(), 3);
    let id = SandboxId::new();
    let group = machine.group(&id.to_string());
    assert_eq!(
        group.freezer.unwrap(),
        PathBuf::from(format!("/sys/fs/cgroup/freezer/belljar/{id}"))
    );
    assert_eq!(
        group.processor.unwrap(),
        PathBuf::from(format!("/sys/fs/cgroup/cpu,cpuacct/belljar/{id}"))
    );
    assert_eq!(group.memory, None);
}

#[test]
fn folders_in_place_of_groups_are_removed_with_them() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let machine = Hierarchies {
        all: vec![Hierarchy {
            mounted: root.path().join("freezer"),
            controllers: Some(vec!["freezer".into()]),
        }],
        parent: "belljar".into(),
    };
    for controller in ["freezer", "hugetlb"] {
        fs::create_dir_all(root.path().join(controller).join("belljar/one")).unwrap();
        fs::create_dir_all(root.path().join(controller).join("belljar/other")).unwrap();
    }
    fs::write(root.path().join("hugetlb/belljar/one/cgroup.procs"), "1").unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::create_dir_all(elsewhere.path().join("belljar/one")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), root.path().join("link")).unwrap();
    machine.group("one").remove().unwrap();
    assert!(elsewhere.path().join("belljar/one").exists(), "a link was followed");
    for controller in ["freezer", "hugetlb"] {
        let of_it = |name| root.path().join(controller).join("belljar").join(name).exists();
        assert_eq!((of_it("one"), of_it("other")), (false, true), "{controller}");
    }
}
