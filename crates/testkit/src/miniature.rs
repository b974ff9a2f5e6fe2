//! A small root file system for sandboxes in tests, put together from this machine's own programs, and a Node of version 22 or
//! later at `/usr/local/bin/node`: the machine's own, or the package registry's.
//!
//! It is an image of one layer, as crate `images` keeps them but for its OCI layout. It is made once and kept beside the
//! compiler's output, under a name that follows from what is in it.

mod build;
mod plan;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::clients;

/// The miniature root file system.
#[derive(Debug)]
pub struct Miniature {
    /// 64 hexadecimal digits that name exactly this content.
    pub digest: String,
    /// The image folder: holds `rootfs`, `config.json`, `image.json`, and the folder of its layer; it is named after the digest.
    /// Nobody writes into it.
    pub folder: PathBuf,
    /// 64 hexadecimal digits that name its layer.
    pub layer: String,
}

impl Miniature {
    /// The root file system itself.
    #[must_use]
    pub fn rootfs(&self) -> PathBuf {
        self.folder.join("rootfs")
    }

    /// Puts it into a folder of images, as links named after the digest, and after the layer.
    pub fn install(&self, images: &Path) {
        let layers = images.join("layers");
        std::fs::create_dir_all(&layers).unwrap_or_else(|error| panic!("make {}: {error}", layers.display()));
        let links = [
            (layers.join(&self.layer), self.folder.join(build::LAYER)),
            (images.join(&self.digest), self.folder.clone()),
        ];
        for (link, to) in links {
            match std::os::unix::fs::symlink(&to, &link) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("link {} to {}: {error}", link.display(), to.display()),
            }
        }
    }
}

/// The miniature root file system: made by whoever asks first, on this machine, ever; the others get the same.
pub fn miniature() -> &'static Miniature {
    static MINIATURE: OnceLock<Miniature> = OnceLock::new();
    MINIATURE.get_or_init(|| {
        let kept = kept_folder();
        std::fs::create_dir_all(&kept).unwrap_or_else(|error| panic!("make {}: {error}", kept.display()));
        build::make(&kept).unwrap_or_else(|problem| panic!("make the miniature root file system: {problem}"))
    })
}

/// Puts an image into a folder of images: what the image with this digest there has, and the [`clients`](crate::clients); those of
/// the distribution where it is the miniature. Its list of authorities has those who sign for the servers. Gives its digest. It is for containers of this machine: there is no archive of it.
///
/// # Panics
/// When it cannot be made.
pub fn install_clients(images: &Path, base: &str) -> String {
    let made = || -> Result<String, String> {
        let mut plan = plan::Plan::of_clients(base == miniature().digest)?;
        plan.trust(&images.join(base).join("rootfs"), &clients::authority())?;
        let (layer, folder) = build::make_layer(&kept_folder(), &plan)?;
        let digest = hex::encode(Sha256::digest(format!("{base} {layer}")));
        let image = images.join(&digest);
        let failed = |error: std::io::Error| format!("write {}: {error}", image.display());
        let read = |name| -> Result<serde_json::Value, String> {
            let text = std::fs::read(images.join(base).join(name)).map_err(failed)?;
            serde_json::from_slice(&text).map_err(|error| failed(error.into()))
        };
        let (mut about, mut config) = (read("image.json")?, read("config.json")?);
        about["digest"] = digest.as_str().into();
        let layers = [
            (&mut about["layers"], layer.clone()),
            (&mut config["rootfs"]["diff_ids"], format!("sha256:{layer}")),
        ];
        for (list, layer) in layers {
            list.as_array_mut()
                .ok_or("an image without a list of layers")?
                .push(layer.into());
        }
        about["base_layers"] = about["layers"].as_array().map_or(0, Vec::len).into();
        std::fs::create_dir_all(&image).map_err(failed)?;
        for (name, content) in [("image.json", about), ("config.json", config)] {
            std::fs::write(image.join(name), content.to_string()).map_err(failed)?;
        }
        for (link, to) in [
            (image.join("rootfs"), images.join(base).join("rootfs")),
            (images.join("layers").join(&layer), folder),
        ] {
            std::os::unix::fs::symlink(to, link).map_err(failed)?;
        }
        Ok(digest)
    };
    made().unwrap_or_else(|problem| panic!("make an image with the clients: {problem}"))
}

/// `testkit` in the compiler's output folder, which is the one above the running test that bears the cache mark.
pub(crate) fn kept_folder() -> PathBuf {
    let program = std::env::current_exe().expect("ask which program runs");
    let output = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    output.map_or_else(
        || std::env::temp_dir().join("belljar-testkit"),
        |output| output.join("testkit"),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn its_programs_run_in_it() {
        let root = miniature().rootfs();
        let script = "set -e; echo hello | grep -c hell; git --version; find /workspace -maxdepth 0; id -un 1000; \
                      python3 -c 'import json, socket, sqlite3, ssl; print(json.dumps(1))'";
        let enter = r#"mount --bind /dev "$0/dev" && exec chroot "$0" /bin/sh -c "$1""#;
        let mut command = std::process::Command::new("unshare");
        let said = crate::run(command.args(["--mount", "sh", "-c", enter]).arg(root).arg(script));
        assert!(said.starts_with("1\ngit version"), "{said}");
        assert!(said.ends_with("/workspace\nagent\n1\n"), "{said}");
    }

    #[test]
    fn its_node_is_new_enough() {
        let mut command = std::process::Command::new("chroot");
        command
            .arg(miniature().rootfs())
            .args(["/usr/local/bin/node", "-p", "parseInt(process.versions.node) >= 22"]);
        assert_eq!(crate::run(&mut command), "true\n");
    }

    #[test]
    fn the_workspace_is_the_users() {
        let workspace = std::fs::metadata(miniature().rootfs().join("workspace")).unwrap();
        assert_eq!((workspace.uid(), workspace.gid()), (1000, 1000));
    }

    #[test]
    fn installing_twice_is_installing_once() {
        let images = tempfile::tempdir().unwrap();
        miniature().install(images.path());
        miniature().install(images.path());
        assert!(images.path().join(&miniature().digest).join("rootfs/bin/sh").exists());
    }
}
