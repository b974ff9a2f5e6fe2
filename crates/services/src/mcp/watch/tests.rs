use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use rustix::process::{Gid, Uid, geteuid};

use super::*;

/// As a user that is not root, whose programs may be of a kind that nobody may look into.
#[test]
fn threat_080_who_cannot_be_counted_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    for path in [folder.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o111)).unwrap();
    }
    let path = folder.path().to_owned();
    let looked_after = std::thread::spawn(move || {
        rustix::thread::set_no_new_privs(true).unwrap();
        if geteuid().is_root() {
            let (user, group) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        }
        let mut command = Command::new(program);
        command.arg("60");
        sys::child::enclose(&mut command, &[]);
        let mut child = command.spawn().unwrap();
        let session = Pid::from_child(&child);
        let _watched = Watched::new("x", session, &path, 0).unwrap();
        child.wait().unwrap().signal()
    });
    assert_eq!(looked_after.join().unwrap(), Some(9));
}

#[test]
fn files_are_found_among_what_is_mapped() {
    let folder = Path::new("/tmp/x");
    let of = |line: &str| removed(line.as_bytes(), folder);
    let start = "7f00-7f01 rw-s 00000000 fd:1b 42                         ";
    assert_eq!(of(&format!("{start}/tmp/x/a b (deleted)")), Some((0xfd, 0x1b, 42)));
    assert_eq!(of(&format!("{start}/tmp/x/a b")), None);
    assert_eq!(of(&format!("{start}/usr/lib/a (deleted)")), None);
    assert_eq!(of("7f00-7f01 rw-p 00000000 00:00 0 "), None);
}
