//! What Docker's engine must be like, and what must be mounted, where it is shown parts of a volume.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use containers::Config;
use images::ImageFolder;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use sandbox::ProviderError;
use tempfile::TempDir;
use testkit::DockerEngine;

use crate::world::By;

/// Why a provider with this volume does not begin. Its `run` folder is below its data directory where `within`.
fn refused(engine: &DockerEngine, folder: &Path, volume: &str, within: bool) -> String {
    let mut config = Config::new(folder.join("data"), env!("CARGO_BIN_EXE_sandbox-standin"));
    config.run = folder.join(if within { "data/run" } else { "run" });
    let images = Arc::new(ImageFolder::open(config.data.join("images")));
    match sandbox_docker::open(&engine.socket(), Some(volume), config, images) {
        Err(ProviderError::Machine { lacks }) => lacks,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it begins"),
    }
}

#[test]
fn an_engine_that_mounts_no_part_of_a_volume_is_refused_in_words() {
    let engine = DockerEngine::of_this_process();
    let folder = TempDir::with_prefix("belljar-").unwrap();
    let lacks = refused(engine, folder.path(), "belljar", true);
    if lacks.contains("has no volume belljar") {
        println!("this machine's engine is 26 or later");
        return;
    }
    for words in ["Docker's engine 20.10", "must be 26 or later", "sandbox.docker_volume"] {
        assert!(lacks.contains(words), "{lacks}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made of it");
}

#[test]
fn a_volume_that_is_not_the_data_directory_is_refused_in_words() {
    if !By::DockerInVolume.is_here() {
        return;
    }
    let engine = DockerEngine::newer().unwrap();
    let folder = TempDir::with_prefix("belljar-").unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let lacks = |volume: &str, within| refused(engine, folder.path(), volume, within);
    assert!(lacks("belljar", false).contains("sandbox.run is"));
    assert!(lacks("none", true).contains("docker volume create none"));
    engine.volume("one");
    assert!(lacks("one", true).contains("is not the mount of the volume one"));
    mount_bind(engine.volume("other"), &data).unwrap();
    let other = lacks("one", true);
    unmount(&data, UnmountFlags::DETACH).unwrap();
    assert!(other.contains("is not the mount of the volume one"), "{other}");
}
