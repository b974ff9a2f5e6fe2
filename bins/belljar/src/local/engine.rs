//! Whether Docker's engine makes sandboxes.

use std::path::Path;

use host::doctor::{Finding, Verdict};
use images::ImageFolder;
use sandbox::{ImageDigest, ProviderError};
use sandbox_docker::Engine;

/// Asks the engine what it is, and has it run the image's shell.
pub(super) fn try_engine(socket: &Path, image: Option<&ImageDigest>, data: &Path) -> Finding {
    let (verdict, says, mend) = match tried(socket, image, data) {
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

fn tried(
    socket: &Path,
    image: Option<&ImageDigest>,
    data: &Path,
) -> Result<Option<sandbox_docker::About>, ProviderError> {
    let engine = Engine::connect(socket)?;
    let Some(digest) = image else {
        return Ok(None);
    };
    let images = ImageFolder::open(data.join("images"));
    sandbox_docker::try_image(&engine, &images, digest, data)?;
    Ok(Some(engine.about().clone()))
}
