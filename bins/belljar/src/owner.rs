//! Whom the control plane's part of the data directory belongs to, and going on as them.
//!
//! Whoever took the control plane over can put links into that folder. So root never opens anything there: what a command of
//! root has to do there is done by the folder's owner, in a process that cannot become root again.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path};
use std::process::Command;

use anyhow::{Context, bail};

use crate::config::{Loaded, Settings};
use crate::places;
use crate::system_user::SystemUser;

/// Says that root is needed, where this is somebody else.
pub(crate) fn must_be_root(why: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("{why}: run this as root, with sudo");
    }
    Ok(())
}

/// Says that this is for root and for whom the control plane's folder belongs to, where this is somebody else.
pub(crate) fn must_be_owner(settings: &Settings) -> anyhow::Result<()> {
    let own = rustix::process::geteuid();
    let folder = places::control(settings);
    match fs::symlink_metadata(&folder) {
        Ok(about) if !own.is_root() && about.uid() != own.as_raw() => bail!(
            "{} belongs to the control plane's user, and to read or write it is for them and for root: run this with sudo",
            folder.display()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            bail!("{} is closed to this user: run this with sudo", folder.display())
        }
        _ => Ok(()),
    }
}

/// Whom the folder belongs to, where that is somebody else and this process is root.
pub(crate) fn other_than_root(settings: &Settings) -> anyhow::Result<Option<SystemUser>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let folder = places::control(settings);
    let about = match fs::symlink_metadata(&folder) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {}", folder.display())),
    };
    if !about.is_dir() {
        bail!("{} is no folder: find out who put it there", folder.display());
    }
    let owner = SystemUser {
        uid: about.uid(),
        gid: about.gid(),
    };
    Ok((owner.uid != 0).then_some(owner))
}

/// This program again, as that user and with no other group. The file is found by a way that needs no right to reach its folder.
pub(crate) fn again(loaded: &Loaded, user: SystemUser, words: &[OsString], json: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(std::env::current_exe().unwrap_or_else(|_| "belljar".into()));
    command.args(words);
    if json {
        command.arg("--json");
    }
    if let Some(file) = &loaded.file {
        command.arg("--config").arg(file);
    }
    // Root's groups are given up with its uid.
    command.current_dir("/").uid(user.uid).gid(user.gid);
    command
}

/// Whether a path leads through a folder of that user, who could have put a link there.
pub(crate) fn leads_through(path: &Path, user: SystemUser) -> bool {
    let mut so_far = std::path::PathBuf::new();
    path.components().any(|component| {
        so_far.push(component);
        let theirs = |about: std::io::Result<fs::Metadata>| about.is_ok_and(|about| about.uid() == user.uid);
        !matches!(component, Component::RootDir)
            && (theirs(fs::symlink_metadata(&so_far)) || theirs(fs::metadata(&so_far)))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn a_path_through_somebody_elses_folder_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, theirs) = (folder.path().join("own"), folder.path().join("theirs"));
        fs::create_dir_all(&own).expect("a folder");
        fs::create_dir_all(&theirs).expect("a folder");
        symlink(&own, theirs.join("link")).expect("a link");
        symlink(&theirs, own.join("other")).expect("a link");
        let user = SystemUser {
            uid: 12_345,
            gid: 12_345,
        };
        lchown(&theirs, Some(user.uid), Some(user.gid)).expect("theirs");
        assert!(!leads_through(&own.join("copy"), user));
        assert!(leads_through(&theirs.join("copy"), user));
        assert!(leads_through(&theirs.join("link/copy"), user));
        assert!(leads_through(&own.join("other/copy"), user));
    }
}
