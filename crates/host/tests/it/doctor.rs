//! The doctor, on this machine.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use containers::overlay::leave_mount_namespace;
use host::doctor::{Finding, Machine, Verdict, examine};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_bind_recursive, mount_remount};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Doctors see each other's traces: one at a time.
static TURN: Mutex<()> = Mutex::new(());

fn write_program(path: &Path, text: &str) {
    // By a process of its own: what another test starts meanwhile does not hold it open.
    let write = r#"printf %s "$2" > "$1" && chmod 755 "$1""#;
    testkit::run(
        std::process::Command::new("sh")
            .args(["-c", write, "sh"])
            .arg(path)
            .arg(text),
    );
}

struct Ward {
    _turn: MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
    _images: tempfile::TempDir,
    machine: Machine,
}

impl Ward {
    /// A machine that has everything.
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        // As images are kept: what an image shows as its own is a link.
        let images = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = images.path().join(&testkit::miniature().digest);
        std::fs::create_dir_all(&image).unwrap();
        for name in ["rootfs", "config.json"] {
            symlink(testkit::miniature().folder.join(name), image.join(name)).unwrap();
        }
        let runtime = images.path().join("belljar-runtime");
        write_program(&runtime, "#!/bin/sh\necho belljar-runtime 0.0.0\n");
        let machine = Machine {
            data: folder.path().join("data/not/there/yet"),
            user: Some("nobody".to_owned()),
            command: Some("runc".into()),
            runtime: vec!["/nowhere/belljar-runtime".into(), runtime],
            image: Some(image),
            ports: vec!["127.0.0.1:0".parse().unwrap()],
            path: std::env::var_os("PATH").unwrap(),
        };
        Self {
            _turn: turn,
            folder,
            _images: images,
            machine,
        }
    }

    /// Takes programs off the machine, as far as the doctor sees.
    fn without(mut self, names: &[&str]) -> Self {
        let programs = self.folder.path().join("programs");
        std::fs::create_dir_all(&programs).unwrap();
        for folder in std::env::split_paths(&self.machine.path) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if !names.iter().any(|lacking| name == *lacking) {
                    // The first of a name is the one that counts.
                    let _ = symlink(entry.path(), programs.join(name));
                }
            }
        }
        self.machine.path = programs.into();
        self
    }

    fn findings(&self) -> Vec<Finding> {
        examine(&self.machine)
    }

    /// What a thread finds that was changed before: whatever it starts is changed as well, and nobody else.
    fn findings_after(&self, change: impl FnOnce() + Send) -> Vec<Finding> {
        let examined = std::thread::scope(|scope| {
            let examining = scope.spawn(|| {
                change();
                self.findings()
            });
            examining.join()
        });
        examined.unwrap()
    }

    /// What can be seen of the doctor from here: mounts, disks, groups, folders.
    fn traces(&self) -> Vec<String> {
        let ours = self.folder.path().to_str().unwrap();
        let name = format!("belljar-doctor-{}", std::process::id());
        let is_ours = |text: &str| text.contains(ours) || text.contains(&name);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut traces: Vec<String> = mounts.lines().filter(|line| is_ours(line)).map(str::to_owned).collect();
        for device in std::fs::read_dir("/sys/block").unwrap().flatten() {
            let shows = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            traces.extend(is_ours(&shows).then_some(shows));
        }
        let folders = std::fs::read_dir("/sys/fs/cgroup")
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        for folder in folders.chain(["/sys/fs/cgroup", "/tmp", "/run"].map(PathBuf::from)) {
            let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let names = names.map(|entry| entry.path().display().to_string());
            traces.extend(names.filter(|path| path.contains(&name)));
        }
        traces
    }

    fn finding(&self, what: &str) -> Finding {
        self.findings()
            .into_iter()
            .find(|finding| finding.what == what)
            .unwrap()
    }
}

#[test]
fn a_machine_that_has_everything_is_fine_and_stays_as_it_was() {
    let ward = Ward::new();
    for finding in ward.findings() {
        // Whether images can be built, and how much is free, is the machine's own affair.
        if !["image building", "space", "memory"].contains(&finding.what) {
            assert_eq!(finding.verdict, Verdict::Fine, "{finding:?}");
        }
    }
    assert_eq!(
        std::fs::read_dir(ward.folder.path()).unwrap().count(),
        0,
        "the doctor left files"
    );
    let mut left = Vec::new();
    testkit::eventually("the kernel to let go of what the doctor made", || {
        left = ward.traces();
        left.is_empty().then_some(())
    });
}

#[test]
fn what_is_not_installed_is_named_with_the_command_that_mends_it() {
    let ward = Ward::new().without(&["runc", "mkfs.btrfs", "npm"]);
    let findings = ward.findings();
    let finding = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap();
    for (what, verdict, mend) in [
        ("container", Verdict::Lacking, "apt-get install runc"),
        ("disk", Verdict::Warning, "apt-get install btrfs-progs"),
        ("image building", Verdict::Warning, "apt-get install npm"),
    ] {
        let finding = finding(what);
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert!(finding.mend.as_ref().unwrap().contains(mend), "{finding:?}");
    }
    assert_eq!(finding("overlay").verdict, Verdict::Fine);
    assert!(finding("disk").says.contains("ext4"), "{:?}", finding("disk"));
}

#[test]
fn a_program_that_is_there_and_fails_is_not_taken_for_one_that_works() {
    let ward = Ward::new().without(&["runc"]);
    let runc = ward.folder.path().join("programs/runc");
    std::fs::write(&runc, "#!/bin/sh\necho 'Error: Operation not supported' >&2; exit 1\n").unwrap();
    testkit::run(std::process::Command::new("chmod").arg("755").arg(&runc));
    let finding = ward.finding("container");
    assert_eq!(finding.verdict, Verdict::Lacking);
    assert!(finding.says.contains("Operation not supported"), "{finding:?}");
}

#[test]
fn of_an_oci_runtime_that_is_named_by_its_path_it_is_said_what_to_do_about_that() {
    let mut ward = Ward::new();
    let place = ward.folder.path().join("runtimes");
    std::fs::create_dir(&place).unwrap();
    let program = place.join("mine");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    let forbidden = format!("chmod +x {}", program.display());
    for (command, says, mend) in [
        (place.join("nothing"), "is not there", "sandbox.runtime"),
        ("no-such-runtime".into(), "is not in PATH", "sandbox.runtime"),
        (place.clone(), "is a folder", "sandbox.runtime"),
        (program, "may not be executed", &*forbidden),
    ] {
        ward.machine.command = Some(command.clone());
        let finding = ward.finding("container");
        assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
        assert!(
            finding.says.contains(says) && finding.says.contains(&*command.to_string_lossy()),
            "{finding:?}"
        );
        let advice = finding.mend.as_ref().unwrap();
        assert!(
            advice.contains(mend) && !advice.contains(&format!("install {}", command.display())),
            "{finding:?}"
        );
    }
}

/// An OCI runtime that was built without seccomp: it does as it is told, but for that.
const WITHOUT_FILTER: &str = r#"#!/bin/sh
for word in "$@"; do
    [ ! -f "$word/config.json" ] || python3 -c '
import json, sys
told = json.load(open(sys.argv[1]))
del told["linux"]["seccomp"]
json.dump(told, open(sys.argv[1], "w"))' "$word/config.json"
done
exec runc "$@"
"#;

#[test]
fn an_oci_runtime_that_filters_no_system_calls_is_named() {
    let mut ward = Ward::new();
    let command = ward.folder.path().join("unfiltered");
    std::fs::write(&command, WITHOUT_FILTER).unwrap();
    testkit::run(std::process::Command::new("chmod").arg("755").arg(&command));
    ward.machine.command = Some(command);
    let findings = ward.findings();
    let finding = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap();
    // Nothing else shows it.
    for what in ["system call filter", "container", "image"] {
        assert_eq!(finding(what).verdict, Verdict::Fine, "{:?}", finding(what));
    }
    let calls = finding("list of system calls");
    assert_eq!(calls.verdict, Verdict::Lacking, "{calls:?}");
    assert!(calls.says.contains("unfiltered starts programs without"), "{calls:?}");
    assert!(calls.mend.as_ref().unwrap().contains("sandbox.runtime"), "{calls:?}");
}

/// As youki does: of a rule about bits of an argument it takes the mask for the value.
const EXCHANGES: &str = r#"#!/bin/sh
[ "$*" != --version ] || { echo "SAYS"; exit; }
for word in "$@"; do
    [ ! -f "$word/config.json" ] || python3 -c '
import json, sys
told = json.load(open(sys.argv[1]))
for rule in told["linux"]["seccomp"]["syscalls"]:
    for told_of in rule.get("args", []):
        if told_of["op"] == "SCMP_CMP_MASKED_EQ":
            told_of["value"], told_of["valueTwo"] = told_of["valueTwo"], told_of["value"]
json.dump(told, open(sys.argv[1], "w"))' "$word/config.json"
done
exec runc "$@"
"#;

/// What is found of one that does, or does not, and says that it is this version.
fn of_one_that_says(script: &str, version: &str) -> Finding {
    let mut ward = Ward::new();
    let command = ward.folder.path().join("exchanges");
    write_program(&command, &script.replace("SAYS", version));
    ward.machine.command = Some(command);
    ward.finding("list of system calls")
}

#[test]
fn an_oci_runtime_that_exchanges_mask_and_value_is_named() {
    let finding = of_one_that_says(EXCHANGES, "runc version 1.1.5");
    assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
    assert!(finding.says.contains("bits of an argument"), "{finding:?}");
}

#[test]
fn an_oci_runtime_that_is_known_to_exchange_them_is_told_them_exchanged() {
    let finding = of_one_that_says(EXCHANGES, "youki version: 0.7.0");
    assert_eq!(finding.verdict, Verdict::Fine, "{finding:?}");
    let repaired = "#!/bin/sh\n[ \"$*\" != --version ] || { echo 'SAYS'; exit; }\nexec runc \"$@\"\n";
    let finding = of_one_that_says(repaired, "youki version: 0.7.0");
    assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
    assert!(finding.says.contains("bits of an argument"), "{finding:?}");
}

#[test]
fn a_file_system_that_cannot_map_ids_is_named() {
    let mut ward = Ward::new();
    // Files of the kernel's own, where nothing can be made.
    ward.machine.data = "/proc/self".into();
    let finding = ward.finding("ids");
    assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
    assert!(finding.says.contains("/proc"), "{finding:?}");
}

#[test]
fn what_the_configuration_names_and_is_not_there_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ward = Ward::new();
    ward.machine.ports = vec![taken.local_addr().unwrap()];
    ward.machine.user = Some("no-such-user".to_owned());
    ward.machine.runtime = vec!["/no/such/program".into()];
    ward.machine.image = None;
    let findings = ward.findings();
    for (what, says, mend) in [
        ("port", "is taken", "listen"),
        ("user", "no-such-user", "useradd"),
        ("runtime", "/no/such/program", "comes with belljar"),
        ("image", "not built", "belljar image build"),
    ] {
        let finding = findings.iter().find(|finding| finding.what == what).unwrap();
        assert_ne!(finding.verdict, Verdict::Fine, "{finding:?}");
        assert!(
            finding.says.contains(says) && finding.mend.as_ref().unwrap().contains(mend),
            "{finding:?}"
        );
    }
}

#[test]
fn a_runtime_that_does_not_run_is_none() {
    let mut ward = Ward::new();
    for (name, text) in [
        ("empty", ""),
        ("of_another_processor", "\x7fELF"),
        ("crashes", "#!/bin/sh\nkill -SEGV $$\n"),
        ("fails", "#!/bin/sh\necho belljar-runtime 0.0.0\nexit 1\n"),
        ("another", "#!/bin/sh\necho another 0.0.0\n"),
    ] {
        let program = ward.folder.path().join(name);
        write_program(&program, text);
        ward.machine.runtime = vec![program];
        let finding = ward.finding("runtime");
        assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
        assert!(finding.says.contains(name), "{finding:?}");
    }
}

#[test]
fn an_image_whose_programs_do_not_run_is_no_image() {
    let mut ward = Ward::new();
    let image = ward.folder.path().join("image");
    for folder in ["dev", "proc"] {
        std::fs::create_dir_all(image.join("rootfs").join(folder)).unwrap();
    }
    std::fs::write(image.join("config.json"), "{}").unwrap();
    ward.machine.image = Some(image);
    let finding = ward.finding("image");
    assert_eq!(finding.verdict, Verdict::Lacking);
    assert!(finding.says.contains("/bin/sh"), "{finding:?}");
}

/// Says that it is gVisor, and is not: it knows none of gVisor's options.
const SAYS_GVISOR: &str = r#"#!/bin/sh
[ "$*" != --version ] || { echo "SAYS"; exit; }
for word in "$@"; do
    shift
    case $word in --*=*) ;; *) set -- "$@" "$word" ;; esac
done
exec runc "$@"
"#;

#[test]
fn an_oci_runtime_that_only_says_that_it_is_gvisor_is_named() {
    let finding = of_one_that_says(SAYS_GVISOR, "runsc version release-20260905.0");
    assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
    assert!(finding.says.contains("this machine's kernel answers"), "{finding:?}");
}

#[test]
fn gvisor_makes_what_the_doctor_wants_to_see() {
    let runsc = std::path::Path::new("/opt/belljar-tests/bin/runsc");
    if std::env::var_os("BELLJAR_TEST_FULL").is_none() || !runsc.exists() {
        println!("runsc is built for the big tests alone, so it is not tried");
        return;
    }
    let mut ward = Ward::new();
    ward.machine.command = Some(runsc.into());
    for finding in ward.findings() {
        if ["container", "image", "list of system calls"].contains(&finding.what) {
            assert_eq!(finding.verdict, Verdict::Fine, "{finding:?}");
        }
    }
}

/// Sees that something lacks, why, and what is advised.
fn assert_lacking(findings: &[Finding], what: &str, says: &str, mend: &str) {
    let finding = findings.iter().find(|finding| finding.what == what).unwrap();
    assert_eq!(finding.verdict, Verdict::Lacking, "{finding:?}");
    assert!(
        finding.says.contains(says) && finding.mend.as_ref().is_some_and(|advice| advice.contains(mend)),
        "{finding:?}"
    );
}

#[test]
fn whoever_is_not_root_is_told_what_cannot_be_done_and_how_it_can() {
    let ward = Ward::new();
    // Whoever it is may work there.
    std::fs::set_permissions(ward.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let findings = ward.findings_after(|| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    });
    for (what, says, mend) in [
        ("root", "this is not root", "sudo belljar doctor"),
        ("overlay", "no mount namespace can be made", "`sudo belljar doctor`"),
        ("network", "no network namespace can be made", "`sudo belljar doctor`"),
        (
            "cgroups",
            "ermission denied",
            "as root, `mount -t cgroup2 none /sys/fs/cgroup`",
        ),
    ] {
        assert_lacking(&findings, what, says, mend);
    }
}

/// Has the kernel answer this thread's calls of one kind as one would that cannot do it.
fn have_refused(call: libc::c_long, rules: Vec<SeccompRule>, answer: Errno) {
    let answer = SeccompAction::Errno(answer.raw_os_error().unsigned_abs());
    let processor = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(BTreeMap::from([(call, rules)]), SeccompAction::Allow, answer, processor);
    seccompiler::apply_filter(&BpfProgram::try_from(filter.unwrap()).unwrap()).unwrap();
}

#[test]
fn a_kernel_without_overlays_is_named() {
    // Of what this trial does, nothing else opens a file system.
    let findings = Ward::new().findings_after(|| have_refused(libc::SYS_fsopen, Vec::new(), Errno::NODEV));
    assert_lacking(&findings, "overlay", "No such device", "modprobe overlay");
    let ids = findings.iter().find(|finding| finding.what == "ids").unwrap();
    assert_eq!(ids.verdict, Verdict::Fine, "{ids:?}");
}

#[test]
fn a_kernel_without_nftables_is_named() {
    let findings = Ward::new().findings_after(|| {
        let is = |argument, value: libc::c_int| {
            let value = value.unsigned_abs().into();
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap()
        };
        let speaks = vec![is(0, libc::AF_NETLINK), is(2, libc::NETLINK_NETFILTER)];
        let rules = vec![SeccompRule::new(speaks).unwrap()];
        have_refused(libc::SYS_socket, rules, Errno::PROTONOSUPPORT);
    });
    assert_lacking(
        &findings,
        "network",
        "Protocol not supported",
        "modprobe --all nf_tables",
    );
}

#[test]
fn a_network_that_may_not_be_led_is_named() {
    let findings = Ward::new().findings_after(|| {
        let mut held = capabilities(None).unwrap();
        held.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, held).unwrap();
    });
    assert_lacking(
        &findings,
        "network",
        "Operation not permitted",
        "docker run --privileged",
    );
}

#[test]
fn a_network_whose_settings_are_fixed_is_named() {
    let mut ward = Ward::new();
    let fix = || {
        leave_mount_namespace().unwrap();
        mount_bind_recursive("/proc/sys", "/proc/sys").unwrap();
        mount_remount("/proc/sys", MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    };
    let mend = "`mount -o remount,bind,rw /proc/sys`";
    assert_lacking(&ward.findings_after(fix), "network", "Read-only file system", mend);
    // What an engine makes, it changes itself.
    ward.machine.command = None;
    let findings = ward.findings_after(fix);
    let network = findings.iter().find(|finding| finding.what == "network").unwrap();
    assert_eq!(network.verdict, Verdict::Fine, "{network:?}");
}

/// What is found has to say this, in a process that sees other mounts.
const SAYS: &str = "BELLJAR_TEST_DOCTOR_SAYS";

/// What a container without rights sees.
const FIX_GROUPS: &str = "awk '$5 ~ \"^/sys/fs/cgroup\" { print $5 }' /proc/self/mountinfo | \
                          while read -r at; do mount -o remount,bind,ro \"$at\"; done";

#[test]
fn cgroups_that_are_not_there_or_may_not_be_changed_are_named() {
    let ward = Ward::new();
    if let Ok(says) = std::env::var(SAYS) {
        assert_lacking(
            &ward.findings(),
            "cgroups",
            &says,
            "`mount -t cgroup2 none /sys/fs/cgroup`",
        );
        return;
    }
    for (change, says) in [
        (
            "umount --recursive --lazy /sys/fs/cgroup",
            "there is no cgroup controller memory",
        ),
        (
            "mount -t tmpfs none /sys/fs/cgroup",
            "there is no cgroup controller memory",
        ),
        (FIX_GROUPS, "Read-only file system"),
    ] {
        // A process, and no thread: a thread reads the table of its process's mounts.
        let mut again = std::process::Command::new("unshare");
        again.args(["--mount", "--propagation", "private", "sh", "-ec"]);
        again.args([&format!("{change}; exec \"$@\""), "sh"]);
        again.arg(std::env::current_exe().unwrap());
        let test = "doctor::cgroups_that_are_not_there_or_may_not_be_changed_are_named";
        again.args(["--exact", test, "--nocapture"]).env(SAYS, says);
        let said = testkit::run(&mut again);
        assert!(said.contains("1 passed"), "{change}: {said}");
    }
}
