//! Images that nobody uses, and removing them. Only the control plane knows who uses which.

use anyhow::{Context, anyhow, bail};
use causes::with_causes;
use cli::{Client, ClientError, harmless};
use images::{Broken, Generation, ImageFolder};
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
    if let Some(broken) = images.meant_broken(image)? {
        return remove_broken(settings, &images, &broken, json);
    }
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
        let image = format!("{} {}", generation.name, generation.digest);
        return Err(in_use(settings, &image, &generation.digest)?);
    }
    for generation in meant {
        images.remove(&generation.digest)?;
        removed(&generation, json)?;
    }
    Ok(())
}

/// Removes an image of which nothing is known but its digest, if nobody uses that.
fn remove_broken(settings: &Settings, images: &ImageFolder, broken: &Broken, json: bool) -> anyhow::Result<()> {
    let digest = &broken.digest;
    if used_images(settings)?.contains(digest) {
        return Err(in_use(settings, digest.as_str(), digest)?);
    }
    images.remove(digest)?;
    if json {
        return Ok(cli::line(json!({ "digest": digest }))?);
    }
    Ok(cli::line(format_args!("removed {digest}"))?)
}

/// That an image stays, and for whom.
fn in_use(settings: &Settings, image: &str, digest: &ImageDigest) -> anyhow::Result<anyhow::Error> {
    let uses = uses(settings, digest).context(UNKNOWN)?.join("\n  ");
    Ok(anyhow!(
        "{image} is in use, and nothing was removed:\n  {uses}\n`belljar archive` puts a session's files away, `belljar snapshot rm` and \
         `belljar sandbox rm` remove what lies on it"
    ))
}

/// Says which images cannot be used, why, and what to do; in JSON as lines of their own.
pub(super) fn tell_of_broken(images: &ImageFolder, json: bool) -> anyhow::Result<()> {
    for Broken { digest, error } in images.broken()? {
        let why = with_causes(&error).to_string();
        if json {
            cli::line(json!({ "digest": digest, "broken": why }))?;
            continue;
        }
        let why = harmless(&why);
        cli::note(format_args!(
            "image {digest} cannot be used: {why}\n  `sudo belljar image rm {digest}` removes it; building it, or taking it in, anew mends \
             it. Until then no layer of any image is removed, as it may be one of its."
        ));
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
