//! The description is made from the code, and committed.

use std::path::Path;

/// `BLESS=1 cargo test -p http-api` writes both anew.
#[test]
fn the_committed_description_is_the_codes_own() {
    let json = serde_json::to_string_pretty(&http_api::description()).unwrap() + "\n";
    for (name, made) in [("api.json", json), ("api.md", http_api::manual())] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "{} differs from the code: run BLESS=1 cargo test -p http-api",
            path.display()
        );
    }
}

#[test]
fn every_operation_says_what_it_does_and_asks_for_a_token() {
    let description = serde_json::to_value(http_api::description()).unwrap();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()),
                "{method} {path}"
            );
            assert_eq!(operation["security"].is_array(), path != "/healthz", "{method} {path}");
        }
    }
}

#[test]
fn every_type_that_is_named_is_described() {
    let description = serde_json::to_value(http_api::description()).unwrap();
    let text = description.to_string();
    let named = text
        .split("\"#/components/schemas/")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    for name in named {
        assert!(
            description["components"]["schemas"][name].is_object(),
            "{name} is named and not described"
        );
    }
}
