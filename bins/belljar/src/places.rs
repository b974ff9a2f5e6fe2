//! Where things are on this machine, as the configuration says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::config::Settings;

/// The control plane's own part of the data directory.
pub(crate) fn control(settings: &Settings) -> PathBuf {
    settings.server.data.join("control")
}

/// The store's file.
pub(crate) fn store(settings: &Settings) -> PathBuf {
    control(settings).join("store.db")
}

/// The first admin's token, for the command line of this machine's root.
pub(crate) fn first_token(settings: &Settings) -> PathBuf {
    control(settings).join("admin-token")
}

/// The encrypted store of secrets.
pub(crate) fn secrets(settings: &Settings) -> PathBuf {
    control(settings).join("secrets")
}

/// What services gave in place of configured secrets.
pub(crate) fn rotated(settings: &Settings) -> PathBuf {
    control(settings).join("rotated")
}

/// Which installation the host agent works for.
pub(crate) fn claim(settings: &Settings) -> PathBuf {
    settings.server.data.join("installation")
}

/// Where the host agent listens.
pub(crate) fn host_socket(settings: &Settings) -> PathBuf {
    settings.sandbox.run.join("host.sock")
}

/// Makes a folder and those above it, where they are missing, and gives it this mode.
pub(crate) fn make_folder(folder: &Path, mode: u32) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot make the folder {}", folder.display()))
}
