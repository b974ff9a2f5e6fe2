//! The image as other tools know it: an OCI image layout.

use std::path::Path;

use serde_json::{Value, json};

use crate::BuildError;
use crate::layer::Blob;
use crate::recipe::Recipe;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// What every provider starts a sandbox with, as an OCI image configuration.
pub(crate) fn configuration(recipe: &Recipe, layer: &Blob) -> Value {
    let wanted = &recipe.wanted;
    let environment: Vec<String> = wanted
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    json!({
        "created": format!("{}T00:00:00Z", wanted.date),
        "architecture": match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        },
        "os": "linux",
        "config": {
            "Env": environment,
            "User": format!("{0}:{0}", wanted.user.id),
            "WorkingDir": wanted.user.folder,
            "Labels": { "org.opencontainers.image.title": recipe.name(), "org.opencontainers.image.description": recipe.description() },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", layer.hex)] },
    })
}

/// Writes the layout round a layer that is in its place already, and gives the image's digest: its manifest's.
pub(crate) fn write(folder: &Path, recipe: &Recipe, configuration: &Value, layer: &Blob) -> Result<Blob, BuildError> {
    let configuration = store(folder, configuration)?;
    let manifest = store(
        folder,
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &configuration),
            "layers": [descriptor(LAYER, layer)],
        }),
    )?;
    let mut entry = descriptor(MANIFEST, &manifest);
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": recipe.name() });
    put(
        folder,
        "index.json",
        &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] }),
    )?;
    put(folder, "oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
    Ok(manifest)
}

/// Where blobs lie in a layout.
pub(crate) const BLOBS: &str = "blobs/sha256";

fn descriptor(kind: &str, blob: &Blob) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", blob.hex), "size": blob.bytes })
}

fn store(folder: &Path, value: &Value) -> Result<Blob, BuildError> {
    let blob = Blob::of(value.to_string().as_bytes());
    put(&folder.join(BLOBS), &blob.hex, value)?;
    Ok(blob)
}

fn put(folder: &Path, name: &str, value: &Value) -> Result<(), BuildError> {
    let path = folder.join(name);
    std::fs::write(&path, value.to_string()).map_err(BuildError::file("write", &path))
}
