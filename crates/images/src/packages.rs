//! The part of an image that comes from Debian's packages.

mod sources;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::files::remove_all;
use crate::outside::{ENDING_WITH_US, Outside, Patience};
use crate::recipe::{Debian, Variant};
use crate::{BuildError, Progress};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const PATIENCE: Patience = Patience {
    deadline: Duration::from_secs(20 * 60),
    quiet: Duration::from_secs(90),
    attempts: 3,
};

/// Makes `root` from the packages of a recipe.
///
/// mmdebstrap runs in a mount and process namespace of its own: whatever becomes of it, no mount and no process is left.
pub(crate) fn install(
    wanted: &Debian,
    epoch: u64,
    root: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), BuildError> {
    if !Path::new(KEYRING).exists() {
        return Err(BuildError::Keyring { path: KEYRING.into() });
    }
    let variant = match wanted.variant {
        Variant::Essential => "essential",
        Variant::Extract => "extract",
    };
    let mut arguments: Vec<OsString> = ENDING_WITH_US
        .into_iter()
        .chain(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .chain(["sh", "-c", "umask 022; exec \"$@\"", "sh"])
        .chain(["mmdebstrap", "--verbose", "--mode=root", "--format=directory"])
        .map(OsString::from)
        .collect();
    let mut option = |option: String| arguments.push(option.into());
    option(format!("--variant={variant}"));
    option(format!("--include={}", wanted.packages.join(",")));
    option(format!("--keyring={KEYRING}"));
    for own in apt_options() {
        option(format!("--aptopt={own}"));
    }
    // apt's own patience with a registry comes before ours.
    for ours in ["Retries \"3\"", "http::Timeout \"30\"", "https::Timeout \"30\""] {
        option(format!("--aptopt=Acquire::{ours}"));
    }
    for pattern in &wanted.leave_out {
        option(format!("--dpkgopt=path-exclude={pattern}"));
    }
    arguments.extend([OsString::from(&wanted.suite), root.into()]);
    // Without a source the program knows itself where Debian is.
    arguments.extend(sources::of_this_machine(&wanted.suite).into_iter().map(OsString::from));

    let mmdebstrap = Outside {
        stage: "install Debian's packages",
        name: "mmdebstrap",
        package: "mmdebstrap",
        arguments,
        environment: vec![("SOURCE_DATE_EPOCH", epoch.to_string().into())],
    };
    mmdebstrap.run(PATIENCE, progress, || remove_all(root))
}

/// How this machine's apt reaches its registries: proxies, certificates, and what it believes of dates.
fn apt_options() -> Vec<String> {
    let wanted = ["Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Force"];
    let Ok(output) = Command::new("apt-config").arg("dump").output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| wanted.iter().any(|start| line.starts_with(start)) && !line.ends_with(" \"\";"))
        .map(|line| line.trim_end_matches(';').to_owned())
        .collect()
}
