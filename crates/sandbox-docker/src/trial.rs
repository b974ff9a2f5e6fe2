//! Whether an engine can run an image of ours.

use std::path::Path;

use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions};
use bollard::service::{ContainerCreateBody, HostConfig};
use containers::filtered::trial::{self, Heard};
use containers::filtered::{misread, unfiltered};
use containers::library::Library;
use containers::seccomp::{self, Masks};
use sandbox::{ImageDigest, ProviderError};

use crate::engine::Engine;
use crate::image::GivenImages;
use crate::maker::MAKER;
use crate::shown::{Shown, Volume};

/// Has the engine run the image's shell in a container without a network, with the list of system calls, and removes that
/// again. The engine keeps the image. With a volume, a part of it is mounted. Blocks.
///
/// # Errors
/// What the engine says against it; [`ProviderError::Machine`] where it does not apply the list, or gets it wrong; [`ProviderError::ImageMissing`] where the image in this data directory is not whole.
pub fn try_image(
    engine: &Engine,
    library: &dyn Library,
    digest: &ImageDigest,
    data: &Path,
    volume: Option<&Volume>,
) -> Result<(), ProviderError> {
    let images = GivenImages::of(data);
    let image = library.image(digest)?;
    images.offer(engine, &image)?;
    let part = volume.map(|volume| Shown::In(volume.clone()).mount(&data.join("images"), "/mnt", true));
    let part = part.transpose()?;
    let list = trial::with_probe(seccomp::profile_with_rules()?, Masks::AsSpecified);
    let name = format!("belljar-doctor-{}", std::process::id());
    let container = ContainerCreateBody {
        image: Some(images.name(&image.base)),
        user: Some("0:0".into()),
        entrypoint: Some(vec!["/bin/sh".into()]),
        cmd: Some(vec!["-c".into(), trial::SCRIPT.into()]),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            readonly_rootfs: Some(true),
            security_opt: Some(vec!["no-new-privileges".into(), format!("seccomp={list}")]),
            mounts: part.map(|part| vec![part]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let attempt = || "have Docker's engine run the image's shell".to_owned();
    let ran = engine.ask(attempt, async |docker| {
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        docker.create_container(Some(options), container).await?;
        docker.start_container(&name, None::<StartContainerOptions>).await
    });
    let ended = ran.and_then(|()| engine.exit_code(&name));
    let said = engine.last_words(&name);
    engine.remove(&name)?;
    let code = ended?;
    if code != 0 {
        return Err(ProviderError::failed(
            attempt(),
            format!("it ended with {code}: {said}"),
        ));
    }
    match trial::heard(&said)? {
        Heard::Held => Ok(()),
        Heard::Unfiltered => Err(unfiltered(MAKER)),
        Heard::Misread => Err(misread(MAKER)),
    }
}
