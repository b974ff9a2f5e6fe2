//! The image as other tools know it: an OCI image layout.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use sandbox::ImageDigest;
use serde_json::{Value, json};

use crate::BuildError;
use crate::layer::Blob;
use crate::library::{ARCHIVE, CONFIGURATION, Draft, LAYERS, LAYOUT, ROOT, write as put};
use crate::recipe::Recipe;
use crate::stored::lowest;

pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Where blobs lie in a layout.
pub(crate) const BLOBS: &str = "blobs/sha256";

/// What every provider starts a sandbox with, as an OCI image configuration without its layers.
pub(crate) fn configuration(recipe: &Recipe) -> Value {
    let wanted = &recipe.wanted;
    let environment: Vec<String> = wanted
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    json!({
        "created": format!("{}T00:00:00Z", wanted.date),
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": environment,
            "User": format!("{0}:{0}", wanted.user.id),
            "WorkingDir": wanted.user.folder,
            "Labels": { "org.opencontainers.image.title": recipe.name(), "org.opencontainers.image.description": recipe.description() },
        },
    })
}

/// What OCI calls this machine's processor.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes an image's folder, but for the layers' own blobs, and gives its digest: its manifest's.
pub(crate) fn write(folder: &Path, draft: &Draft) -> Result<Blob, BuildError> {
    let layout = folder.join(LAYOUT);
    let blobs = layout.join(BLOBS);
    fs::create_dir_all(&blobs).map_err(BuildError::file("make the folder", &blobs))?;
    let ids: Vec<String> = draft
        .layers
        .iter()
        .map(|layer| format!("sha256:{}", layer.hex))
        .collect();
    let mut configuration = draft.configuration.clone();
    configuration["rootfs"] = json!({ "type": "layers", "diff_ids": ids });
    if let Some(configuration) = configuration.as_object_mut() {
        // It would have to tell of each layer.
        configuration.remove("history");
    }
    put(&folder.join(CONFIGURATION), &configuration.to_string())?;
    let configuration = store(&blobs, &configuration)?;
    let layers: Vec<Value> = draft.layers.iter().map(|layer| descriptor(LAYER, layer)).collect();
    let manifest = store(
        &blobs,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &configuration),
            "layers": layers,
        }),
    )?;
    let mut entry = descriptor(MANIFEST, &manifest);
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": draft.name });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] });
    put(&layout.join("index.json"), &index.to_string())?;
    put(
        &layout.join("oci-layout"),
        &json!({ "imageLayoutVersion": "1.0.0" }).to_string(),
    )?;
    if let Some(layer) = draft.layers.first() {
        let link = folder.join(ROOT);
        symlink(lowest(&layer.digest()), &link).map_err(BuildError::file("make the link", &link))?;
    }
    let usual = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder, usual).map_err(BuildError::file("set the mode of", folder))?;
    Ok(manifest)
}

/// Where the archive of a layer is, from among a layout's blobs.
pub(crate) fn archive(id: &ImageDigest) -> String {
    format!("../../../../{LAYERS}/{id}/{ARCHIVE}")
}

/// The layers of the image in a layout that we wrote, from the lowest.
pub(crate) fn layers(layout: &Path) -> io::Result<Vec<ImageDigest>> {
    let read = |path: &Path| Ok::<Value, io::Error>(serde_json::from_slice(&fs::read(path)?)?);
    let index = read(&layout.join("index.json"))?;
    let manifest = digest(&index["manifests"][0])?;
    let manifest = read(&layout.join(BLOBS).join(manifest.as_str()))?;
    let layers = manifest["layers"].as_array().into_iter().flatten();
    layers.map(digest).collect()
}

/// What a descriptor names.
pub(crate) fn digest(descriptor: &Value) -> io::Result<ImageDigest> {
    let digits = descriptor["digest"]
        .as_str()
        .and_then(|digest| digest.strip_prefix("sha256:"));
    digits.unwrap_or_default().parse().map_err(io::Error::other)
}

fn descriptor(kind: &str, blob: &Blob) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", blob.hex), "size": blob.bytes })
}

fn store(blobs: &Path, value: &Value) -> Result<Blob, BuildError> {
    let text = value.to_string();
    let blob = Blob::of(text.as_bytes());
    put(&blobs.join(&blob.hex), &text)?;
    Ok(blob)
}
