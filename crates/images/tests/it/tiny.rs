//! A tiny image takes seconds, and has everything that a large one has.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use images::{BuildError, ImageFolder, OutsideError, Progress, Rebuild, Recipe};
use serde_json::Value;

const TINY: &str = r#"
    description = "One package."
    date = 2026-01-01
    remove = ["/usr/share/initramfs-tools", "/not/there/at/all"]

    [debian]
    suite = "trixie"
    variant = "extract"
    packages = ["busybox-static"]
    leave_out = ["/usr/share/doc/*"]

    [user]
    name = "agent"
    id = 1000
    folder = "/workspace"

    [environment]
    PATH = "/usr/bin:/bin"

    [folders]
    "/tmp" = { mode = "1777" }

    [files]
    "/etc/motd" = "hello\n"

    [copies]
    "/skills" = "../skills"

    [links]
    "/bin" = "usr/bin"
    "/usr/bin/cat" = "busybox"
    "/usr/bin/ls" = "busybox"
    "/usr/bin/sh" = "busybox"
"#;

/// Tests that build wait for each other: together they would only be slower.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Workshop {
    folder: tempfile::TempDir,
    images: ImageFolder,
}

impl Workshop {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images = ImageFolder::open(folder.path().join("images"));
        Self { folder, images }
    }

    fn recipe(&self, text: &str) -> Recipe {
        let folder = self.folder.path().join("tiny");
        let skill = self.folder.path().join("skills/greet");
        for folder in [&folder, &skill] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(skill.join("SKILL.md"), "say hello").unwrap();
        std::fs::write(folder.join("image.toml"), text).unwrap();
        Recipe::read(&folder).unwrap()
    }

    fn kept(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join("images")).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir() && !path.ends_with("layers"))
            .collect()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_recipe_becomes_an_image_the_same_each_time_and_only_when_it_changed() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let workshop = Workshop::new();
    let recipe = workshop.recipe(TINY);
    let mut stages = Vec::new();
    let mut lines = 0;
    let first = workshop
        .images
        .build(&recipe, Rebuild::WhenChanged, &mut |progress| match progress {
            Progress::Stage(stage) => stages.push(stage.to_owned()),
            Progress::Line(_) => lines += 1,
        })
        .unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)));
    assert_eq!(stages, ["packages of Debian", "files of the recipe", "layer"]);
    assert!(lines > 5, "{lines} lines of progress");

    // What a sandbox needs is there.
    let root = first.folder.join("rootfs");
    let said = testkit::run(std::process::Command::new("chroot").arg(&root).args([
        "/bin/sh",
        "-c",
        "cat /etc/motd; ls -ld /workspace /tmp",
    ]));
    assert!(said.starts_with("hello\ndrwxrwxrwt"), "{said}");
    assert!(said.contains("drwxr-xr-x    2 agent    agent"), "{said}");
    assert!(
        !root.join("etc/apt/sources.list").exists(),
        "the image tells which mirror it came from"
    );
    assert_eq!(std::fs::read_dir(root.join("dev")).map_or(0, Iterator::count), 0);
    assert_eq!(json(&first.folder.join("config.json"))["config"]["User"], "1000:1000");

    // The layout leads from its index to the layer, by content.
    let layout = first.folder.join("oci");
    let blob = |digest: &Value| layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"));
    let entry = json(&layout.join("index.json"))["manifests"][0].clone();
    assert_eq!(entry["digest"], format!("sha256:{}", first.digest));
    let manifest = json(&blob(&entry["digest"]));
    let layer = blob(&manifest["layers"][0]["digest"]);
    let sum = testkit::run(std::process::Command::new("sha256sum").arg(&layer));
    assert!(sum.starts_with(layer.file_name().unwrap().to_str().unwrap()), "{sum}");
    assert_eq!(
        json(&blob(&manifest["config"]["digest"])),
        json(&first.folder.join("config.json"))
    );

    // Unchanged, it is not built again; built again, it is the same to the byte.
    let silent = &mut |progress: Progress<'_>| panic!("{progress:?}");
    assert_eq!(
        workshop.images.build(&recipe, Rebuild::WhenChanged, silent).unwrap(),
        first
    );
    let again = workshop.images.build(&recipe, Rebuild::Always, &mut |_| {}).unwrap();
    assert_eq!(again.digest, first.digest);
    assert!(again.built > first.built);
    assert_eq!(workshop.images.list().unwrap(), std::slice::from_ref(&again));

    // A changed recipe is another image; the old one is collected once nobody uses it.
    let changed = workshop.recipe(&TINY.replace("hello", "good day"));
    let second = workshop
        .images
        .build(&changed, Rebuild::WhenChanged, &mut |_| {})
        .unwrap();
    assert_ne!(second.digest, first.digest);
    assert_eq!(workshop.images.newest("tiny").unwrap().as_ref(), Some(&second));
    assert_eq!(
        workshop.images.collect(std::slice::from_ref(&first.digest)).unwrap(),
        []
    );
    assert_eq!(workshop.images.collect(&[]).unwrap(), [again]);
    assert_eq!(workshop.kept(), [second.folder]);
}

#[test]
fn a_build_that_fails_leaves_nothing_and_says_what_the_program_said() {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let workshop = Workshop::new();
    let recipe = workshop.recipe(&TINY.replace("busybox-static", "no-such-package-anywhere"));
    let error = workshop
        .images
        .build(&recipe, Rebuild::WhenChanged, &mut |_| {})
        .unwrap_err();
    let BuildError::Outside {
        source: OutsideError::Failed { said, .. },
        ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(said.contains("no-such-package-anywhere"), "{said}");
    assert_eq!(workshop.kept(), Vec::<PathBuf>::new());
    assert_eq!(workshop.images.list().unwrap(), []);
}

#[test]
fn what_a_killed_build_left_is_no_image_and_goes() {
    let workshop = Workshop::new();
    let images = workshop.folder.path().join("images");
    let half = images.join("half-x");
    std::fs::create_dir_all(half.join("rootfs")).unwrap();
    // Even one that got as far as its description has not got its name.
    std::fs::write(half.join("image.json"), "{}").unwrap();
    std::fs::create_dir_all(images.join("0".repeat(64)).join("rootfs")).unwrap();
    assert_eq!(workshop.images.list().unwrap(), []);
    assert_eq!(workshop.images.collect(&[]).unwrap(), []);
    assert!(!half.exists());
}
