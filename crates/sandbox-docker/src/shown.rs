//! How the engine is shown what is ours: by its place on the machine, or as a part of a volume.
//!
//! A host agent in a container sees other folders than the engine. What both see is a named volume: with the data directory as
//! its mount, and `run` in it, all that a sandbox is shown is a subpath of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bollard::service::{Mount, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig};
use containers::attempt::Attempt;
use containers::record::make_folder;
use sandbox::ProviderError;

use crate::engine::{Engine, is};

/// By which way the engine is shown folders and files.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// It sees what the host agent sees.
    ByPlace,
    /// It sees a volume.
    In(Volume),
}

/// A volume of the engine whose mount is the data directory.
#[derive(Clone, Debug)]
pub struct Volume {
    name: String,
    /// Where it is mounted here.
    here: PathBuf,
    /// Where the engine has it.
    there: PathBuf,
}

impl Volume {
    /// The volume of this name, for a host agent with these folders.
    ///
    /// # Errors
    /// [`ProviderError::Machine`] where the engine has none, or where it is not what is mounted at the data directory.
    pub fn find(engine: &Engine, name: &str, here: &Path, run: &Path) -> Result<Self, ProviderError> {
        let lacks = |lacks: String| ProviderError::Machine { lacks };
        if !run.starts_with(here) {
            return Err(lacks(format!(
                "sandbox.run is {}, where the engine sees nothing: with sandbox.docker_volume it is a folder in {}",
                run.display(),
                here.display()
            )));
        }
        if engine.about().root_uid != 0 {
            return Err(lacks(
                "this engine maps users, and what is in a volume cannot be shown to each sandbox as its own: switch userns-remap \
                 off, or run the host agent on the machine itself, without sandbox.docker_volume"
                    .into(),
            ));
        }
        let found = engine.ask(
            || format!("ask Docker's engine for the volume {name}"),
            async |docker| match docker.inspect_volume(name).await {
                Err(error) if is(&error, 404) => Ok(None),
                found => found.map(Some),
            },
        )?;
        let there = match found {
            Some(found) => PathBuf::from(found.mountpoint),
            None => {
                return Err(lacks(format!(
                    "Docker's engine has no volume {name}, which sandbox.docker_volume names: docker volume create {name}"
                )));
            }
        };
        let table = fs::read_to_string("/proc/self/mountinfo").attempt(|| "read /proc/self/mountinfo".into())?;
        let place = here.canonicalize().attempt(|| format!("find {}", here.display()))?;
        let root = mounted_at(&table, &place).unwrap_or_default();
        if !same_end(Path::new(root), &there) {
            return Err(lacks(format!(
                "{} is not the mount of the volume {name}: the host agent is to run in a container that has it there \
                 (docker run --volume {name}:{} …)",
                here.display(),
                here.display()
            )));
        }
        Ok(Self {
            name: name.to_owned(),
            here: here.to_owned(),
            there,
        })
    }

    /// Puts a copy of a program into the volume, in place of the one before.
    pub(crate) fn take_in(&self, program: &Path, run: &Path) -> Result<PathBuf, ProviderError> {
        make_folder(run, 0o711)?;
        let (place, beside) = (run.join("belljar-runtime"), run.join("belljar-runtime.new"));
        fs::copy(program, &beside)
            .and_then(|_| fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)))
            .and_then(|()| fs::rename(&beside, &place))
            .attempt(|| format!("copy {} to {}", program.display(), place.display()))?;
        Ok(place)
    }

    fn subpath<'p>(&self, path: &'p Path) -> Result<&'p Path, ProviderError> {
        let inside = path.strip_prefix(&self.here);
        inside.map_err(|_| ProviderError::Machine {
            lacks: format!(
                "{} is not in {}, and the engine sees nothing else of the host agent's folders",
                path.display(),
                self.here.display()
            ),
        })
    }

    /// Where the engine has what is here.
    fn there(&self, path: &Path) -> Result<PathBuf, ProviderError> {
        Ok(self.there.join(self.subpath(path)?))
    }

    /// An overlay that the engine mounts, for as long as there is a container that shows it.
    pub(crate) fn overlay(
        &self,
        lower: &[PathBuf],
        upper: &Path,
        work: &Path,
        place: &str,
    ) -> Result<Mount, ProviderError> {
        let lower = lower.iter().rev().map(|folder| self.there(folder));
        let lower = lower.collect::<Result<Vec<_>, _>>()?;
        let lower: Vec<String> = lower.iter().map(|folder| folder.display().to_string()).collect();
        // What is written must be understood without what is below: it may become a layer.
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=off,metacopy=off,nosuid,nodev",
            lower.join(":"),
            self.there(upper)?.display(),
            self.there(work)?.display()
        );
        let options = [
            ("type", "overlay".to_owned()),
            ("device", "overlay".to_owned()),
            ("o", options),
        ];
        Ok(Mount {
            typ: Some(MountType::VOLUME),
            target: Some(place.to_owned()),
            volume_options: Some(MountVolumeOptions {
                no_copy: Some(true),
                driver_config: Some(MountVolumeOptionsDriverConfig {
                    name: Some("local".into()),
                    options: Some(options.map(|(name, value)| (name.to_owned(), value)).into()),
                }),
                ..MountVolumeOptions::default()
            }),
            ..Mount::default()
        })
    }
}

impl Shown {
    /// A folder or file of ours, at a place inside.
    pub(crate) fn mount(&self, from: &Path, place: &str, read_only: bool) -> Result<Mount, ProviderError> {
        let mount = Mount {
            target: Some(place.to_owned()),
            read_only: Some(read_only),
            ..Mount::default()
        };
        Ok(match self {
            Self::ByPlace => Mount {
                typ: Some(MountType::BIND),
                source: Some(from.display().to_string()),
                ..mount
            },
            Self::In(volume) => Mount {
                typ: Some(MountType::VOLUME),
                source: Some(volume.name.clone()),
                volume_options: Some(MountVolumeOptions {
                    // Else an empty folder would be given what the image has there.
                    no_copy: Some(true),
                    subpath: Some(volume.subpath(from)?.display().to_string()),
                    ..MountVolumeOptions::default()
                }),
                ..mount
            },
        })
    }
}

/// Which folder of its file system is mounted at a place.
fn mounted_at<'t>(mountinfo: &'t str, place: &Path) -> Option<&'t str> {
    // The last is the one that is seen.
    mountinfo.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let root = fields.next()?;
        (Path::new(fields.next()?) == place).then_some(root)
    })
}

/// Whether two paths lead to one volume, each as seen from somewhere else: `…/NAME/_data`.
fn same_end(one: &Path, other: &Path) -> bool {
    let end = |path: &Path| -> Vec<_> { path.iter().rev().take(2).map(ToOwned::to_owned).collect() };
    end(one) == end(other) && end(one).len() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        Volume {
            name: "belljar".into(),
            here: "/var/lib/belljar".into(),
            there: "/var/lib/docker/volumes/belljar/_data".into(),
        }
    }

    #[test]
    fn what_is_in_the_volume_is_shown_as_a_part_of_it() {
        let link = Path::new("/var/lib/belljar/run/sandboxes/1/link");
        let mount = Shown::In(volume()).mount(link, "/run/link", true).unwrap();
        assert_eq!(
            serde_json::to_value(&mount).unwrap(),
            serde_json::json!({
                "Type": "volume", "Source": "belljar", "Target": "/run/link", "ReadOnly": true,
                "VolumeOptions": { "NoCopy": true, "Subpath": "run/sandboxes/1/link" },
            })
        );
    }

    #[test]
    fn what_is_elsewhere_is_not_shown() {
        let elsewhere = Shown::In(volume()).mount(Path::new("/etc"), "/run/link", true);
        assert!(
            elsewhere
                .unwrap_err()
                .to_string()
                .contains("/etc is not in /var/lib/belljar")
        );
    }

    #[test]
    fn an_overlay_is_of_folders_as_the_engine_has_them() {
        let folder = |name: &str| volume().here.join(name);
        let overlay = volume().overlay(
            &[folder("low"), folder("high")],
            &folder("upper"),
            &folder("work"),
            "/knowledge",
        );
        let overlay = serde_json::to_value(overlay.unwrap()).unwrap();
        assert_eq!(
            overlay.get("Source"),
            None,
            "a volume of the container's own goes with it"
        );
        let there = "/var/lib/docker/volumes/belljar/_data";
        assert_eq!(
            overlay["VolumeOptions"]["DriverConfig"]["Options"]["o"],
            format!(
                "lowerdir={there}/high:{there}/low,upperdir={there}/upper,workdir={there}/work,redirect_dir=off,metacopy=off,\
                 nosuid,nodev"
            )
        );
    }

    #[test]
    fn a_volume_is_known_by_what_is_mounted() {
        let table = "40 1 254:1 /docker/volumes/other/_data /var/lib/belljar rw - ext4 /dev/vda1 rw\n\
                     41 1 254:1 /docker/volumes/belljar/_data /var/lib/belljar rw - ext4 /dev/vda1 rw\n\
                     42 1 254:1 / / rw - ext4 /dev/vda1 rw\n";
        let there = Path::new("/var/lib/docker/volumes/belljar/_data");
        let root = mounted_at(table, Path::new("/var/lib/belljar")).unwrap();
        assert!(same_end(Path::new(root), there));
        assert!(!same_end(Path::new(mounted_at(table, Path::new("/")).unwrap()), there));
        assert_eq!(mounted_at(table, Path::new("/var/lib")), None);
        assert!(!same_end(Path::new("/docker/volumes/other/_data"), there));
    }
}
