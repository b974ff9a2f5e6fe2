//! Whether an engine can run an image of ours.

use std::path::Path;

use bollard::errors::Error;
use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions, WaitContainerOptions};
use bollard::service::{ContainerCreateBody, HostConfig};
use containers::filtered::unfiltered;
use containers::library::Library;
use containers::seccomp;
use futures::TryStreamExt;
use sandbox::{ImageDigest, ProviderError};

use crate::engine::Engine;
use crate::image::GivenImages;
use crate::shown::{Shown, Volume};

/// Who makes containers, in the end.
const MAKER: &str = "the OCI runtime that Docker's engine uses";

/// Looks whether the kernel filters what it asks for.
const LOOK: &str =
    "while read -r key value; do [ \"$key $value\" != 'Seccomp: 2' ] || exit 0; done < /proc/self/status; exit 3";
/// How it ends where nothing is filtered.
const UNFILTERED: i64 = 3;

/// Has the engine run the image's shell in a container without a network, with the list of system calls, and removes that
/// again. The engine keeps the image. With a volume, a part of it is mounted. Blocks.
///
/// # Errors
/// What the engine says against it; [`ProviderError::Machine`] where it does not apply the list; [`ProviderError::ImageMissing`] where the image in this data directory is not whole.
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
    let name = format!("belljar-doctor-{}", std::process::id());
    let container = ContainerCreateBody {
        image: Some(images.name(&image.base)),
        user: Some("0:0".into()),
        entrypoint: Some(vec!["/bin/sh".into()]),
        cmd: Some(vec!["-c".into(), LOOK.into()]),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            readonly_rootfs: Some(true),
            security_opt: Some(vec![
                "no-new-privileges".into(),
                format!("seccomp={}", seccomp::profile_with_rules()?),
            ]),
            mounts: part.map(|part| vec![part]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let attempt = || "have Docker's engine run the image's shell".to_owned();
    let ran = engine.ask(attempt, async |docker| {
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        docker.create_container(Some(options), container).await?;
        docker.start_container(&name, None::<StartContainerOptions>).await?;
        let ended = docker.wait_container(&name, None::<WaitContainerOptions>);
        match ended.try_collect::<Vec<_>>().await {
            Err(Error::DockerContainerWaitError { code, .. }) => Ok(code),
            ended => ended.map(|_| 0),
        }
    });
    engine.remove(&name)?;
    match ran? {
        0 => Ok(()),
        UNFILTERED => Err(unfiltered(MAKER)),
        code => Err(ProviderError::failed(attempt(), format!("it ended with {code}"))),
    }
}
