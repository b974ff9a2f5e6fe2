//! The image that ships with the project, whole: minutes, so only where BELLJAR_TEST_FULL says so.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use images::{ImageFolder, Rebuild, Recipe};
use testkit::PROMISES;

#[test]
fn the_base_recipe_is_sound() {
    let recipe = Recipe::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/base")).unwrap();
    assert_eq!(recipe.name(), "base");
}

#[test]
fn the_base_image_has_what_it_promises() {
    if std::env::var_os("BELLJAR_TEST_FULL").is_none() {
        println!("left to the full test: it takes minutes");
        return;
    }
    let recipe = Recipe::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/base")).unwrap();
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let images = ImageFolder::open(folder.path().join("images"));
    let image = images
        .build(&recipe, Rebuild::WhenChanged, &mut |progress| println!("{progress:?}"))
        .unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)));
    println!("{} bytes", image.bytes);
    for (command, start) in PROMISES {
        let said = in_container(folder.path(), &image.folder.join("rootfs"), command);
        assert!(said.starts_with(start), "{command}: {said}");
    }
    let again = images.build(&recipe, Rebuild::Always, &mut |_| {}).unwrap();
    assert_eq!(again.digest, image.digest, "the same packages gave another image");
}

/// Runs a command as the image's user in a container of its own, with nothing of this machine but the kernel.
fn in_container(folder: &Path, root: &Path, script: &str) -> String {
    let bundle = tempfile::tempdir_in(folder).unwrap();
    testkit::run(Command::new("runc").arg("spec").current_dir(bundle.path()));
    let path = bundle.path().join("config.json");
    let mut spec: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(root.with_file_name("config.json")).unwrap()).unwrap();
    // It is a link to the files of the image's layer.
    let files = root.canonicalize().unwrap();
    spec["root"] = serde_json::json!({ "path": files, "readonly": true });
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["bash", "-c", script]);
    spec["process"]["env"] = config["config"]["Env"].clone();
    spec["process"]["user"] = serde_json::json!({ "uid": 1000, "gid": 1000 });
    let temporary =
        serde_json::json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"] });
    spec["mounts"].as_array_mut().unwrap().push(temporary);
    std::fs::write(&path, spec.to_string()).unwrap();
    let name = format!(
        "belljar-test-{}",
        bundle
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_start_matches('.')
    );
    testkit::run_within(
        Duration::from_secs(60),
        Command::new("runc").arg("run").arg(name).current_dir(bundle.path()),
    )
}
