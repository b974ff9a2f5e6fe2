//! The packages that ship with the project.

use std::path::Path;

use worker::Worker;

use crate::{Catalogue, contract};

/// The folder of the packages.
fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services")
}

fn catalogue() -> Catalogue {
    let (catalogue, mistakes) = Catalogue::load(&[folder()]);
    let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    catalogue
}

/// Reads statements as `belljar worker` does.
fn guard() -> Worker {
    let tests = std::env::current_exe().unwrap();
    Worker::new(worker::Config {
        program: tests.parent().unwrap().parent().unwrap().join("examples/guard"),
        arguments: Vec::new(),
        ..worker::Config::default()
    })
}

#[tokio::test]
async fn every_package_keeps_its_contract() {
    let worker = guard();
    let mut wrong = Vec::new();
    for service in catalogue().services() {
        for played in contract::play(service, &worker).await.unwrap() {
            let Some(fixture) = &played.fixture else {
                wrong.push(format!("{}.{} has no fixture", service.name, played.method));
                continue;
            };
            let place = format!("{}.{}: {fixture}", service.name, played.method);
            wrong.extend(played.wrong.iter().map(|wrong| format!("{place}: {wrong}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
