//! All services there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mistake::Mistake;
use super::source::whole;
use super::{Service, read};

/// All services there are, by name.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    services: BTreeMap<String, Arc<Service>>,
}

impl Catalogue {
    /// Reads every definition below these folders, each in a folder of its own with a `service.toml`. One with a mistake
    /// is left out, and all its mistakes are told; the others can be used. A service of a later folder takes the place of
    /// one of the same name in an earlier.
    #[must_use]
    pub fn load<P: AsRef<Path>>(folders: &[P]) -> (Self, Vec<Mistake>) {
        let mut catalogue = Self::default();
        let mut mistakes = Vec::new();
        for folder in folders {
            match definitions(folder.as_ref()) {
                Ok(definitions) => {
                    for definition in definitions {
                        match read::read(&definition) {
                            Ok(service) => {
                                catalogue.services.insert(service.name.clone(), Arc::new(service));
                            }
                            Err(wrong) => mistakes.extend(wrong),
                        }
                    }
                }
                Err(error) => mistakes.push(whole(
                    folder.as_ref(),
                    format!("the folder of services cannot be read ({error})"),
                    "make it, or name another",
                )),
            }
        }
        (catalogue, mistakes)
    }

    /// Everything that is wrong with the definition in one folder.
    #[must_use]
    pub fn check(folder: &Path) -> Vec<Mistake> {
        read::read(folder).err().unwrap_or_default()
    }

    /// A catalogue of definitions that were checked before.
    pub(crate) fn of(services: impl IntoIterator<Item = Service>) -> Self {
        let services = services
            .into_iter()
            .map(|service| (service.name.clone(), Arc::new(service)));
        Self {
            services: services.collect(),
        }
    }

    /// The service of this name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// Every service, by name.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }
}

/// The folders below this one that hold a definition, in order.
fn definitions(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.join("service.toml").is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
