//! The user of this machine as whom the control plane runs, and what is theirs.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};

use crate::config::Settings;
use crate::places;

/// A user of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SystemUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Makes what the control plane needs: its user, and its part of the data directory.
pub(crate) fn prepare(settings: &Settings) -> anyhow::Result<SystemUser> {
    let name = &settings.server.user;
    let user = match find_user(name)? {
        Some(user) => user,
        None => make_user(name, &settings.server.data)?,
    };
    let own = places::control(settings);
    places::make_folder(&own, 0o700)?;
    // And what is in it: a store that root restored is the control plane's all the same.
    let entries = fs::read_dir(&own).with_context(|| format!("cannot read {}", own.display()))?;
    let files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    for path in files.iter().chain([&own]) {
        give(path, user).with_context(|| format!("cannot give {} to {name}", path.display()))?;
    }
    Ok(user)
}

/// Gives a file to a user who may have made it: whoever took the control plane over could leave a link here, or a second name
/// of a file that is not theirs.
fn give(path: &Path, user: SystemUser) -> anyhow::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let about = rustix::fs::fstat(&file)?;
    if (about.st_uid, about.st_gid) == (user.uid, user.gid) {
        return Ok(());
    }
    if about.st_nlink > 1 && FileType::from_raw_mode(about.st_mode) != FileType::Directory {
        bail!("it has another name elsewhere, which would be theirs too: remove the one that should not be");
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::fs::chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    Ok(())
}

fn make_user(name: &str, home: &Path) -> anyhow::Result<SystemUser> {
    let made = std::process::Command::new("useradd")
        .args([
            "--system",
            "--user-group",
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            "--home-dir",
        ])
        .arg(home)
        .arg(name)
        .output()
        .context("cannot run useradd")?;
    if !made.status.success() {
        bail!(
            "cannot make the user {name}: {}",
            String::from_utf8_lossy(&made.stderr).trim()
        );
    }
    find_user(name)?.with_context(|| format!("useradd made no user {name}"))
}

/// The user of that name in /etc/passwd, where this machine's own users are.
pub(crate) fn find_user(name: &str) -> anyhow::Result<Option<SystemUser>> {
    let users = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    Ok(users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next() == Some(name);
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        found.then_some(SystemUser { uid, gid })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        assert_eq!(
            find_user("root").expect("readable"),
            Some(SystemUser { uid: 0, gid: 0 })
        );
        assert_eq!(find_user("roo").expect("readable"), None);
    }

    #[test]
    fn only_what_has_one_name_is_given_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let (secret, theirs) = (folder.path().join("secret"), folder.path().join("store.db"));
        fs::write(&secret, "root's own").expect("a file");
        let owner =
            |path: &Path| std::os::unix::fs::MetadataExt::uid(&fs::symlink_metadata(path).expect("it is there"));
        let user = SystemUser {
            uid: 12_345,
            gid: 12_345,
        };
        fs::hard_link(&secret, &theirs).expect("a second name");
        assert!(give(&theirs, user).is_err());
        fs::remove_file(&theirs).expect("no second name");
        std::os::unix::fs::symlink(&secret, &theirs).expect("a link");
        give(&theirs, user).expect("the link itself");
        assert_eq!((owner(&secret), owner(&theirs)), (0, 12_345));
        fs::remove_file(&theirs).expect("no link");
        fs::write(&theirs, "a copy that root restored").expect("a file");
        give(&theirs, user).expect("a file");
        assert_eq!(owner(&theirs), 12_345);
    }
}
