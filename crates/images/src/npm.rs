//! The part of an image that comes from the npm registry.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::files::remove_all;
use crate::outside::{ENDING_WITH_US, Outside, Patience};
use crate::{BuildError, Progress};

/// Where the packages are in the image.
const PREFIX: &str = "usr/local";

const PATIENCE: Patience = Patience {
    deadline: Duration::from_secs(10 * 60),
    quiet: Duration::from_secs(120),
    attempts: 3,
};

/// Puts packages into a root file system, each with its own dependencies, and links their programs.
///
/// npm checks every package against the registry's checksum, and is told to run nothing of theirs.
pub(crate) fn install(
    packages: &BTreeMap<String, String>,
    root: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), BuildError> {
    if packages.is_empty() {
        return Ok(());
    }
    let prefix = root.join(PREFIX);
    let modules = prefix.join("lib/node_modules");
    let mut arguments: Vec<OsString> = ENDING_WITH_US
        .into_iter()
        .chain(["sh", "-c", "umask 022; exec \"$@\"", "sh", "npm"])
        .chain("install --global --ignore-scripts --omit=dev --no-audit --no-fund --no-update-notifier".split(' '))
        .chain("--loglevel=http --fetch-retries=3 --fetch-timeout=60000 --prefix".split(' '))
        .map(OsString::from)
        .collect();
    arguments.push(prefix.into());
    arguments.extend(
        packages
            .iter()
            .map(|(name, version)| format!("{name}@{version}").into()),
    );
    let npm = Outside {
        stage: "install packages of the npm registry",
        name: "npm",
        package: "npm",
        arguments,
        environment: Vec::new(),
    };
    npm.run(PATIENCE, progress, || remove_all(&modules))
}
