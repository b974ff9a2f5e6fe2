//! The packages that ship with the project.

use std::path::Path;

use worker::Worker;

use crate::{Catalogue, Kind, contract};

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

/// Where each vendor's API is, and what it demands of every request. The server that plays the recorded answers stands somewhere
/// else, and would not miss either.
#[test]
fn every_package_asks_its_vendor_where_and_as_they_say() {
    let notion = ("notion-version", "2022-06-28");
    let github = ("x-github-api-version", "2022-11-28");
    let vendors = [
        ("billing", "https://api.stripe.com/v1", None),
        ("chat", "https://slack.com/api", None),
        ("code", "https://api.github.com", Some(github)),
        ("crm", "https://api.hubapi.com", None),
        ("docs", "https://api.notion.com/v1", Some(notion)),
        ("issues", "https://api.linear.app", None),
        ("support", "https://api.usepylon.com", None),
        ("tinybird", "https://api.tinybird.co/v0", None),
    ];
    let catalogue = catalogue();
    for (name, base_url, header) in vendors {
        let service = catalogue.services().find(|service| service.name == name).unwrap();
        let Kind::Http(http) = &service.kind else {
            panic!("{name} is no API")
        };
        assert_eq!(http.base_url, base_url, "{name}");
        if let Some((header, text)) = header {
            let said = (header.to_owned(), text.to_owned());
            assert!(http.headers.contains(&said), "{name}: {:?}", http.headers);
        }
    }
}
