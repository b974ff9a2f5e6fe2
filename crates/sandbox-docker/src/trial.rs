//! Whether an engine can run an image of ours.

use std::path::Path;

use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions, WaitContainerOptions};
use bollard::service::{ContainerCreateBody, HostConfig};
use containers::library::Library;
use futures::TryStreamExt;
use sandbox::{ImageDigest, ProviderError};

use crate::engine::Engine;
use crate::image::Images;

/// Has the engine run the image's shell in a container without a network, which is removed again. The engine keeps the image.
/// Blocks.
///
/// # Errors
/// What the engine says against it; [`ProviderError::ImageMissing`] where the image in this data directory is not whole.
pub fn try_image(
    engine: &Engine,
    library: &dyn Library,
    digest: &ImageDigest,
    data: &Path,
) -> Result<(), ProviderError> {
    let images = Images::of(data);
    let image = library.image(digest)?;
    images.offer(engine, &image)?;
    let name = format!("belljar-doctor-{}", std::process::id());
    let container = ContainerCreateBody {
        image: Some(images.name(&image.base)),
        user: Some("0:0".into()),
        entrypoint: Some(vec!["/bin/sh".into()]),
        cmd: Some(vec!["-c".into(), "exit 0".into()]),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            readonly_rootfs: Some(true),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let ran = engine.ask(
        || "have Docker's engine run the image's shell".into(),
        async |docker| {
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            docker.create_container(Some(options), container).await?;
            docker.start_container(&name, None::<StartContainerOptions>).await?;
            let ended: Vec<_> = docker
                .wait_container(&name, None::<WaitContainerOptions>)
                .try_collect()
                .await?;
            Ok(ended)
        },
    );
    engine.remove(&name)?;
    ran.map(drop)
}
