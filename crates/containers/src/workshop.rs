//! What sandboxes are made with, whoever makes the container.

use std::fs::{self, File, Permissions};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox::{ProviderError, SandboxSpec, capture, inside};

use crate::Config;
use crate::asleep::Asleep;
use crate::attempt::{Attempt, unless_missing};
use crate::confinement::HOSTNAME;
use crate::disk::Pool;
use crate::ids::Ids;
use crate::library::Library;
use crate::maker::{Maker, Order};
use crate::process::Process;
use crate::record::{Folder, make_folder};
use crate::words::Words;

/// What sandboxes are made with.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) ids: Ids,
    pub(crate) asleep: Asleep,
    pub(crate) maker: Arc<dyn Maker>,
    pub(crate) library: Arc<dyn Library>,
    files: Vec<(&'static str, PathBuf)>,
}

impl Workshop {
    pub(crate) fn open(
        config: Config,
        library: Arc<dyn Library>,
        maker: Arc<dyn Maker>,
    ) -> Result<Self, ProviderError> {
        make_folder(&config.run, 0o711)?;
        if config.run.to_string_lossy().contains([':', ',', '\\']) {
            return Err(ProviderError::Machine {
                lacks: format!(
                    "{} holds a colon, comma or backslash, which an overlay cannot take",
                    config.run.display()
                ),
            });
        }
        if !config.runtime.is_file() {
            return Err(ProviderError::Machine {
                lacks: format!(
                    "the program {} is not there: it comes with belljar",
                    config.runtime.display()
                ),
            });
        }
        Ok(Self {
            pool: Pool::open(&config)?,
            ids: Ids::from(config.first_uid),
            asleep: Asleep::new(config.data.join("asleep")),
            files: write_files(&config.run.join("files"))?,
            maker,
            library,
            config,
        })
    }

    /// Makes everything of a sandbox whose folder and link are there, and starts it.
    pub(crate) fn make(
        &self,
        spec: &SandboxSpec,
        folder: &Folder,
        link: BorrowedFd<'_>,
        words: &Words,
        root_uid: u32,
        kept: Option<&Path>,
    ) -> Result<Process, ProviderError> {
        let image = self.library.image(&spec.image)?;
        self.maker.make(&Order {
            spec,
            folder,
            link,
            words,
            root_uid,
            image: &image,
            disk: &|| self.pool.disk(spec.session, spec.limits.disk_bytes),
            disk_folder: self.pool.folder(spec.session),
            runtime: &self.config.runtime,
            files: &self.files,
            kept,
        })
    }

    /// The programs that processes depend on which can be kept; none where they cannot be. A program that was replaced is
    /// another, whatever is in it.
    pub(crate) fn programs(&self) -> Result<Option<String>, ProviderError> {
        let Some(keeper) = self.maker.keeper() else {
            return Ok(None);
        };
        let runtime = &self.config.runtime;
        let stamp = stamp(runtime).attempt(|| format!("look at {}", runtime.display()))?;
        Ok(Some(format!("{keeper}; runtime {stamp}")))
    }
}

/// Tells one file from another that takes its place, and from itself when it was written to.
///
/// # Errors
/// Where it cannot be looked at.
pub fn stamp(file: &Path) -> std::io::Result<String> {
    let about = fs::metadata(file)?;
    Ok(format!(
        "{:x}-{:x}-{}.{}-{}.{}",
        about.ino(),
        about.len(),
        about.mtime(),
        about.mtime_nsec(),
        about.ctime(),
        about.ctime_nsec()
    ))
}

/// A new listening socket in the sandbox's link directory; the one before is dead from then on.
pub(crate) fn listen(folder: &Folder, root_uid: u32) -> Result<UnixListener, ProviderError> {
    let link = folder.link();
    make_folder(&link, 0o700)?;
    let socket = link.join(inside::LINK_SOCKET);
    let beside = link.join("new.sock");
    let attempt = || format!("listen on {}", socket.display());
    unless_missing(fs::remove_file(&beside)).attempt(attempt)?;
    let listener = UnixListener::bind(&beside).attempt(attempt)?;
    listener.set_nonblocking(true).attempt(attempt)?;
    fs::set_permissions(&beside, Permissions::from_mode(0o600)).attempt(attempt)?;
    for path in [&beside, &link] {
        chown(path, Some(root_uid), Some(root_uid)).attempt(attempt)?;
    }
    // Nobody finds the socket before it is theirs, or ever finds none.
    fs::rename(&beside, &socket).attempt(attempt)?;
    Ok(listener)
}

/// The files that are the same in every sandbox.
fn write_files(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>, ProviderError> {
    make_folder(folder, 0o755)?;
    let hosts = format!("127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost {HOSTNAME}\n");
    let resolver = format!("nameserver {}\noptions timeout:10 attempts:1\n", capture::DNS_ADDRESS);
    let mut files = Vec::new();
    for (place, name, text) in [
        ("/etc/hosts", "hosts", hosts),
        ("/etc/resolv.conf", "resolv.conf", resolver),
    ] {
        let path = folder.join(name);
        let attempt = || format!("write {}", path.display());
        fs::write(&path, text).attempt(attempt)?;
        let file = File::open(&path).attempt(attempt)?;
        file.set_permissions(Permissions::from_mode(0o644)).attempt(attempt)?;
        files.push((place, path));
    }
    Ok(files)
}
