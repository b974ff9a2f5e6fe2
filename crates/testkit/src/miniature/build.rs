//! Making the miniature: beside its place, then into it by one rename.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use domain::Timestamp;
use serde_json::json;

use super::Miniature;
use super::plan::{Entry, Plan};
use crate::command::try_run;

/// The Node that comes from the package registry when the machine's own is too old.
const NODE_VERSION: &str = "24.21.0";
const OLDEST_NODE: u32 = 22;
/// When a registry that gave no Node is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(30 * 60);
/// How long packing some hundred megabytes may take.
const LONG: Duration = Duration::from_secs(120);

/// Gives the miniature that belongs to this machine's programs, made now unless it is there.
pub(super) fn make(kept: &Path) -> Result<Miniature, String> {
    let lock =
        File::create(kept.join("lock")).map_err(|error| format!("open the lock in {}: {error}", kept.display()))?;
    lock.lock()
        .map_err(|error| format!("wait for another test that makes it: {error}"))?;

    let plan = Plan::of_this_machine(&node(kept)?)?;
    let digest = plan.digest()?;
    let images = kept.join("images");
    let folder = images.join(&digest);
    if !folder.exists() {
        std::fs::create_dir_all(&images).map_err(|error| format!("make {}: {error}", images.display()))?;
        let half =
            tempfile::tempdir_in(kept).map_err(|error| format!("make a folder in {}: {error}", kept.display()))?;
        fill(half.path(), &plan)?;
        describe(half.path(), &digest)?;
        std::fs::set_permissions(half.path(), Permissions::from_mode(0o755))
            .and_then(|()| std::fs::rename(half.path(), &folder))
            .map_err(|error| format!("move the finished one to {}: {error}", folder.display()))?;
    }
    let layer = std::fs::read_to_string(folder.join(LAYER).join("id"));
    let layer = layer.map_err(|error| format!("read the layer's name in {}: {error}", folder.display()))?;
    Ok(Miniature { digest, folder, layer })
}

/// Gives the layer of the clients, made now unless it is there: its name, and its folder.
pub(super) fn make_layer(kept: &Path, plan: &Plan) -> Result<(String, PathBuf), String> {
    let lock =
        File::create(kept.join("lock")).map_err(|error| format!("open the lock in {}: {error}", kept.display()))?;
    lock.lock()
        .map_err(|error| format!("wait for another test that makes it: {error}"))?;
    let (id, layers) = (plan.digest()?, kept.join("layers"));
    let folder = layers.join(&id);
    if !folder.exists() {
        std::fs::create_dir_all(&layers).map_err(|error| format!("make {}: {error}", layers.display()))?;
        let half =
            tempfile::tempdir_in(kept).map_err(|error| format!("make a folder in {}: {error}", kept.display()))?;
        fill(half.path(), plan)?;
        symlink(ROOT, half.path().join("files"))
            .and_then(|()| std::fs::set_permissions(half.path(), Permissions::from_mode(0o755)))
            .and_then(|()| std::fs::rename(half.path(), &folder))
            .map_err(|error| format!("move the finished one to {}: {error}", folder.display()))?;
    }
    Ok((id, folder))
}

const ROOT: &str = "rootfs";

fn fill(folder: &Path, plan: &Plan) -> Result<(), String> {
    let root = folder.join(ROOT);
    // Several programs may be one file; they stay one.
    let mut copied: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("write {path}: {error}")
    };
    for (path, entry) in &plan.0 {
        let path = root.join(path);
        let parent = path.parent().unwrap_or(&root);
        std::fs::create_dir_all(parent).map_err(failed(parent))?;
        match entry {
            Entry::Folder(mode, owner) => std::fs::create_dir_all(&path)
                .and_then(|()| std::os::unix::fs::chown(&path, Some(*owner), Some(*owner)))
                .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(*mode))),
            Entry::Link(target) => symlink(target, &path),
            Entry::Text(text) => std::fs::write(&path, text),
            Entry::Copy(from) => {
                let about = std::fs::metadata(from).map_err(failed(from))?;
                match copied.entry((about.dev(), about.ino())) {
                    std::collections::hash_map::Entry::Occupied(first) => std::fs::hard_link(first.get(), &path),
                    std::collections::hash_map::Entry::Vacant(first) => {
                        first.insert(path.clone());
                        std::fs::copy(from, &path).map(|_| ())
                    }
                }
            }
        }
        .map_err(failed(&path))?;
    }
    Ok(())
}

/// The folder with the archive of all files, and a link to them.
pub(super) const LAYER: &str = "layer";

/// Makes an image of a root file system.
fn describe(folder: &Path, digest: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("describe the image in {}: {error}", folder.display());
    let layer = folder.join(LAYER);
    let archive = layer.join("layer.tar");
    std::fs::create_dir(&layer)
        .and_then(|()| symlink("../rootfs", layer.join("files")))
        .map_err(failed)?;
    let mut tar = Command::new("tar");
    tar.args(["--create", "--numeric-owner", "--directory"])
        .arg(folder.join(ROOT));
    try_run(LONG, tar.arg("--file").arg(&archive).arg("."))?;
    let said = try_run(LONG, Command::new("sha256sum").arg(&archive))?;
    let id = said.split(' ').next().unwrap_or_default();
    std::fs::write(layer.join("id"), id).map_err(failed)?;
    let about = json!({
        "digest": digest,
        "name": "miniature",
        "recipe": "",
        "built": Timestamp::now(),
        "base_layers": 1,
        "bytes": std::fs::metadata(&archive).map_err(failed)?.len(),
        "layers": [id],
    });
    std::fs::write(folder.join("image.json"), about.to_string()).map_err(failed)?;
    let config = json!({
        "architecture": "miniature",
        "os": "linux",
        "config": {
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "HOME=/home/agent",
                "LANG=C.UTF-8",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ],
            "User": "1000:1000",
            "WorkingDir": "/workspace",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{id}")] },
    });
    std::fs::write(folder.join("config.json"), config.to_string()).map_err(failed)
}

/// A Node that is new enough: this machine's own, or the registry's, kept.
fn node(kept: &Path) -> Result<PathBuf, String> {
    let own = Path::new("/usr/bin/node");
    if node_version(own).is_some_and(|version| version >= OLDEST_NODE) {
        return own
            .canonicalize()
            .map_err(|error| format!("follow {}: {error}", own.display()));
    }
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => {
            return Err(format!(
                "the package registry has no Node for {other}: install Node 22 or newer as {}",
                own.display()
            ));
        }
    };
    let package = format!("node-linux-{architecture}");
    let place = kept.join(format!("node-{NODE_VERSION}"));
    let program = place.join("node_modules").join(&package).join("bin/node");
    let failed = kept.join("node-failed");
    // A registry that does not answer must not hold up every test: one attempt for all, and a short one.
    let tried = std::fs::metadata(&failed).and_then(|file| file.modified());
    let is_new = tried.is_ok_and(|tried| tried.elapsed().is_ok_and(|since| since < TRY_AGAIN));
    if node_version(&program).is_none() && !is_new {
        let mut npm = Command::new("npm");
        npm.args([
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--fetch-retries=1",
            "--fetch-timeout=60000",
        ]);
        npm.arg("--prefix").arg(&place).arg(format!("{package}@{NODE_VERSION}"));
        if let Err(problem) = try_run(Duration::from_secs(120), &mut npm) {
            std::fs::write(&failed, problem).map_err(|error| format!("write {}: {error}", failed.display()))?;
        }
    }
    match node_version(&program) {
        Some(_) => Ok(program),
        None => Err(format!(
            "have a Node of version {OLDEST_NODE} or newer: {} is older or not there, and the package registry gave none: {}",
            own.display(),
            std::fs::read_to_string(&failed).unwrap_or_default()
        )),
    }
}

fn node_version(program: &Path) -> Option<u32> {
    let text = try_run(Duration::from_secs(20), Command::new(program).arg("--version")).ok()?;
    text.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}
