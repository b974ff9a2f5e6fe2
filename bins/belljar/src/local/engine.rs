//! Whether Docker's engine makes sandboxes.

use std::path::Path;

use containers::disk::holds_subvolumes;
use host::doctor::{Finding, Verdict};
use images::ImageFolder;
use sandbox::{ImageDigest, ProviderError};
use sandbox_docker::{Engine, Volume};

use crate::config::Settings;

/// Asks the engine what it is, and has it run the image's shell.
pub(super) fn try_engine(
    socket: &Path,
    volume: Option<&str>,
    image: Option<&ImageDigest>,
    settings: &Settings,
) -> Finding {
    let (verdict, says, mend) = match tried(socket, volume, image, settings) {
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let mend =
                "look at its message; `journalctl --unit docker` says more, and `provider = \"oci\"` needs no engine";
            (
                Verdict::Lacking,
                format!("{error}{}", cause.unwrap_or_default()),
                Some(mend),
            )
        }
        Ok(None) => (
            Verdict::Lacking,
            "the image that sandboxes are made from is not built".to_owned(),
            Some("belljar image build"),
        ),
        Ok(Some(about)) if volume.is_some() => (
            Verdict::Warning,
            format!(
                "Docker's engine {} runs the image and shows it a part of the volume; root in a sandbox is root of the engine's \
                 machine with few rights",
                about.version
            ),
            Some("for more between sandboxes and a machine, `provider = \"oci\"` on a machine with Linux"),
        ),
        Ok(Some(about)) if about.root_uid == 0 => (
            Verdict::Warning,
            format!(
                "Docker's engine {} runs the image; root in a sandbox is root of this machine with few rights, as the engine \
                 does not map users",
                about.version
            ),
            Some(
                "let it: \"userns-remap\": \"default\" in /etc/docker/daemon.json, and restart it; or use `provider = \"oci\"`",
            ),
        ),
        Ok(Some(about)) => (
            Verdict::Fine,
            format!(
                "Docker's engine {} runs the image, and maps root of a sandbox to user {}",
                about.version, about.root_uid
            ),
            None,
        ),
    };
    Finding {
        what: "engine",
        verdict,
        says,
        mend: mend.map(str::to_owned),
    }
}

/// What disks are like that an engine is shown as parts of a volume.
pub(super) fn disks_in(volume: &str, data: &Path) -> Finding {
    let (verdict, says, mend) = match holds_subvolumes(data) {
        Ok(true) => (
            Verdict::Fine,
            format!("session disks are btrfs subvolumes with a quota, in the volume {volume}"),
            None,
        ),
        Ok(false) => (
            Verdict::Warning,
            format!(
                "session disks are folders in the volume {volume}, without a limit: sandbox.disk does not hold, one session can fill \
                 the volume for all, and forks copy"
            ),
            Some("keep the engine's volumes on btrfs, where each disk has its limit; Docker Desktop does not"),
        ),
        Err(error) => (
            Verdict::Lacking,
            error.to_string(),
            Some("mount the volume at the data directory"),
        ),
    };
    Finding {
        what: "disk",
        verdict,
        says,
        mend: mend.map(str::to_owned),
    }
}

fn tried(
    socket: &Path,
    volume: Option<&str>,
    image: Option<&ImageDigest>,
    settings: &Settings,
) -> Result<Option<sandbox_docker::About>, ProviderError> {
    let data = &settings.server.data;
    let engine = Engine::connect(socket, volume.is_some())?;
    let volume = volume.map(|name| Volume::find(&engine, name, data, &settings.sandbox.run));
    let volume = volume.transpose()?;
    let Some(digest) = image else {
        return Ok(None);
    };
    let images = ImageFolder::open(data.join("images"));
    sandbox_docker::try_image(&engine, &images, digest, data, volume.as_ref())?;
    Ok(Some(engine.about().clone()))
}
