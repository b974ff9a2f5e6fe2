//! Images: one recipe becomes one root file system, for every kind of sandbox.
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
//! - [`Images`]: the folder of images: build, list, collect
//! - [`Generation`]: one dated build
//! - [`Progress`]: what to show while it takes its minutes

mod build;
mod copies;
mod error;
mod files;
mod layer;
mod layout;
mod library;
mod npm;
mod outside;
mod packages;
mod recipe;

pub use error::{BuildError, LibraryError};
pub use library::{Generation, Images, Rebuild};
pub use outside::{OutsideError, Progress};
pub use recipe::{Folder, Recipe, RecipeError, User};
