//! Images: what sandboxes of every kind are made of.
//!
//! A [`Recipe`] (`images/<name>/image.toml`) lists Debian packages, packages of the npm registry, and a few files. A build
//! makes the root file system beside its place, turns it into a layer whose bytes follow from its content alone, and only
//! then gives it the name of that content. So the same packages give the same image on every machine, what is half built
//! never counts, and a recipe that did not change is not built again.
//!
//! Registries are reached through their own clients, apt and npm, with the machine's own settings. No code of an npm
//! package runs while an image is made; Debian's maintainer scripts run confined to the new root.
//!
//! - [`Recipe`]: what is wanted
//! - [`ImageFolder`]: the folder of images: build, commit, import, export, list, remove, collect; what providers of containers have of it
//! - [`Generation`]: one dated image; [`Broken`]: one that cannot be used
//! - [`Progress`]: what to show while it takes its minutes

mod attributes;
mod bounds;
mod build;
mod commit;
mod copies;
mod error;
mod export;
mod files;
mod half;
mod import;
mod knowledge;
mod layer;
mod layout;
mod library;
mod merging;
mod npm;
mod outside;
mod packages;
mod recipe;
mod seam;
mod source;
mod stored;
mod taking;
mod twins;
mod unpacking;
mod whiteout;

pub use error::{BuildError, CommitError, ImportError, LibraryError};
pub use library::{Broken, Generation, ImageFolder, Rebuild};
pub use outside::{OutsideError, Progress};
pub use recipe::{Folder, Recipe, RecipeError, User};
