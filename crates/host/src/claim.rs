//! Whose sandboxes a host agent keeps.
//!
//! A control plane removes what is there and nobody's, and only its own store tells it what is somebody's. So a host agent
//! works for one installation: the first one that comes. The others are refused before they can give an order.
//!
//! This keeps two control planes apart that do not mean to meet. It is no wall: who may open the socket may say any id.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use domain::InstallationId;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

/// More than an id takes.
const LONGEST: u64 = 64;

/// The file that names the installation, below the data directory of the host agent.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    file: PathBuf,
}

impl Claim {
    pub(crate) const fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// Admits the installation that this host agent works for, which is the first that comes. An error is for the other side,
    /// in words. Blocks.
    pub(crate) fn admit(&self, installation: InstallationId) -> Result<(), String> {
        let file = self.file.display();
        let holder = self
            .holder_or(installation)
            .map_err(|error| format!("it cannot find out from {file} whose sandboxes it keeps: {error}"))?;
        if holder == installation {
            return Ok(());
        }
        Err(format!(
            "it keeps the sandboxes of another installation ({holder}; this one is {installation}): run a host agent for \
             this one, with a `server.data` and a `sandbox.run` of its own. If the other one is gone for good, remove {file}: \
             then its sandboxes are removed, and the disks of its sessions may be"
        ))
    }

    /// Admits one that cannot say whose it is: only where nobody is admitted yet. Blocks.
    pub(crate) fn admit_nameless(&self) -> Result<(), String> {
        match self.holder() {
            Ok(None) => Ok(()),
            Ok(Some(holder)) => Err(format!(
                "it keeps the sandboxes of an installation ({holder}), and a control plane of an earlier release does not say \
                 of which it is: run the release that the host agent has"
            )),
            Err(error) => Err(format!(
                "it cannot find out from {} whose sandboxes it keeps: {error}",
                self.file.display()
            )),
        }
    }

    fn holder_or(&self, installation: InstallationId) -> io::Result<InstallationId> {
        loop {
            if let Some(holder) = self.holder()? {
                return Ok(holder);
            }
            match self.write(installation) {
                // Somebody else was faster.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                written => written?,
            }
        }
    }

    /// Whose it is, if it is somebody's. What else the file may hold is not repeated: the answer goes to the other side.
    fn holder(&self) -> io::Result<Option<InstallationId>> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = fs::File::options()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(&self.file);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        let holder = text.trim().parse();
        holder
            .map(Some)
            .map_err(|_| io::Error::other("what it holds is not the id of an installation"))
    }

    /// Whole or not at all, and nobody's is overwritten.
    fn write(&self, installation: InstallationId) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let mut file = NamedTempFile::new_in(folder)?;
        writeln!(file, "{installation}")?;
        file.as_file().sync_all()?;
        file.persist_noclobber(&self.file)?;
        fs::File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_installation_is_admitted_for_good_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("installation");
        let (first, second) = (InstallationId::new(), InstallationId::new());
        Claim::new(file.clone()).admit(first).unwrap();
        let refused = Claim::new(file.clone()).admit(second).unwrap_err();
        assert!(
            refused.contains(&first.to_string()) && refused.contains(&second.to_string()),
            "{refused}"
        );
        Claim::new(file.clone()).admit(first).unwrap();
        let refused = Claim::new(file.clone()).admit_nameless().unwrap_err();
        assert!(refused.contains(&first.to_string()), "{refused}");
        // Whose machine it is may decide otherwise.
        fs::remove_file(&file).unwrap();
        Claim::new(file.clone()).admit_nameless().unwrap();
        Claim::new(file).admit(second).unwrap();
    }

    #[test]
    fn of_many_that_come_at_once_one_is_admitted() {
        let folder = tempfile::tempdir().unwrap();
        let claim = Claim::new(folder.path().join("installation"));
        let coming: Vec<_> = (0..16)
            .map(|_| {
                let claim = claim.clone();
                std::thread::spawn(move || claim.admit(InstallationId::new()).is_ok())
            })
            .collect();
        let admitted = coming.into_iter().map(|coming| coming.join().unwrap());
        assert_eq!(admitted.filter(|admitted| *admitted).count(), 1);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "something was left behind"
        );
    }

    #[test]
    fn a_file_that_names_nobody_admits_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("installation");
        fs::write(&file, "half an i").unwrap();
        let refused = Claim::new(file).admit(InstallationId::new()).unwrap_err();
        assert!(refused.contains("is not the id of an installation"), "{refused}");
    }
}
