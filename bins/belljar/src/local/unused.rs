//! Images that nobody uses, and removing them. Only the control plane knows who uses which.

use anyhow::{Context, bail};
use cli::{Client, ClientError};
use images::Generation;
use sandbox::ImageDigest;
use serde_json::json;

use super::{own_token, own_url};
use crate::config::Settings;
use crate::{places, process, wiring};

/// Why nothing goes where nobody says who uses it.
const UNKNOWN: &str = "nothing was removed, because the control plane did not say which images sandboxes, disks and snapshots lie on \
                       (is it running? `belljar up` starts it)";

/// The images that must stay. Only the control plane knows which those are; where there never was one, nothing uses any.
pub(super) fn used_images(settings: &Settings) -> anyhow::Result<Vec<ImageDigest>> {
    let mut used: Vec<_> = wiring::image(settings).into_iter().collect();
    let own = places::control(settings);
    if !own
        .try_exists()
        .with_context(|| format!("cannot look at {}", own.display()))?
    {
        return Ok(used);
    }
    let asked = || -> anyhow::Result<Vec<String>> {
        let client = Client::new(&own_url(settings), own_token(settings)?)?;
        Ok(process::runtime()?.block_on(cli::used_images(&client))?)
    };
    let told = asked().context(UNKNOWN)?;
    for digest in told {
        used.push(
            digest
                .parse()
                .context("the control plane named something that is no image")?,
        );
    }
    Ok(used)
}

/// Removes the images that somebody means, if nobody uses any of them.
pub(super) fn remove(settings: &Settings, image: &str, json: bool) -> anyhow::Result<()> {
    let images = wiring::images(settings);
    let mut meant = images.meant(image)?;
    if let [built] = meant.as_slice()
        && built.base.is_some()
    {
        bail!(
            "{image} was built on another image (`belljar image generations`): the control plane removes it when nobody uses it"
        );
    }
    // What was built on one of them has its layers, and is the control plane's to remove.
    meant.retain(|generation| generation.base.is_none());
    let used = used_images(settings)?;
    if let Some(generation) = meant.iter().find(|generation| used.contains(&generation.digest)) {
        let uses = uses(settings, &generation.digest).context(UNKNOWN)?;
        bail!(
            "{} {} is in use, and nothing was removed:\n  {}\n`belljar archive` puts a session's files away, `belljar snapshot rm` and \
             `belljar sandbox rm` remove what lies on it",
            generation.name,
            generation.digest,
            uses.join("\n  ")
        );
    }
    for generation in meant {
        images.remove(&generation.digest)?;
        removed(&generation, json)?;
    }
    Ok(())
}

/// Who uses an image, in words.
fn uses(settings: &Settings, digest: &ImageDigest) -> anyhow::Result<Vec<String>> {
    if wiring::image(settings).is_ok_and(|wanted| wanted == *digest) && !places::control(settings).exists() {
        return Ok(vec!["the next sandboxes are made of it (sandbox.image)".to_owned()]);
    }
    let client = Client::new(&own_url(settings), own_token(settings)?)?;
    Ok(process::runtime()?.block_on(cli::image_uses(&client, digest.as_str()))?)
}

/// Tells of an image that is gone.
pub(super) fn removed(image: &Generation, json: bool) -> Result<(), ClientError> {
    if json {
        return cli::line(json!(image));
    }
    cli::line(format_args!("removed {} {}", image.name, image.digest.as_str()))
}
