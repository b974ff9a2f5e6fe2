//! Images that are given out and taken in.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use containers::library::Library;
use images::ImageFolder;
use serde_json::{Value, json};
use testkit::DockerEngine;

use crate::workshop::{LOOK, PLENTY, TAKE_AWAY, Workshop, words};

#[test]
fn what_comes_back_is_what_was_given_out() {
    let workshop = Workshop::new();
    let first = workshop.committed(
        &workshop.base,
        "echo > gone && mkdir -p app/anew && echo old > app/anew/old && ln -s ../x app/link && echo one > app/one \
         && ln app/one app/twin && chmod 750 app/one && chown -R 1000:1000 app",
    );
    let image = workshop.committed(&first.digest, TAKE_AWAY);
    let archive = workshop.path("image.tar");
    workshop.images.export("miniature", &archive).unwrap();
    let again = workshop.images.export("miniature", &archive).unwrap_err();
    assert!(words(&again).contains("exists"), "{}", words(&again));
    let listed = testkit::run(Command::new("tar").arg("--list").arg("--file").arg(&archive));
    assert!(
        listed.contains("oci-layout\n") && listed.contains("manifest.json\n"),
        "{listed}"
    );

    let elsewhere = ImageFolder::open(workshop.path("elsewhere"));
    let came = elsewhere
        .import(&archive, "came")
        .unwrap_or_else(|error| panic!("{}", words(&error)));
    let (ours, theirs) = (
        workshop.images.image(&image.digest).unwrap(),
        elsewhere.image(&came.digest).unwrap(),
    );
    let ids =
        |image: &containers::library::Image| -> Vec<_> { image.layers.iter().map(|layer| layer.id.clone()).collect() };
    assert_eq!(ids(&ours), ids(&theirs));
    let before = workshop.shown(&workshop.images, &image.digest, LOOK);
    assert_eq!(workshop.shown(&elsewhere, &came.digest, LOOK), before);
    assert!(
        before.contains("app/anew/new") && !before.contains("old") && !before.contains("gone"),
        "{before}"
    );

    let engine = DockerEngine::of_this_process();
    let docker = |arguments: &[&str]| {
        let mut command = Command::new("docker");
        command
            .arg("--host")
            .arg(format!("unix://{}", engine.socket().display()));
        testkit::run(command.args(arguments))
    };
    docker(&["load", "--input", archive.to_str().unwrap()]);
    let look = format!("cd /knowledge && {LOOK}");
    let said = docker(&["run", "--rm", "--network=none", "miniature:latest", "sh", "-c", &look]);
    assert_eq!(said, before);
    let saved = workshop.path("saved.tar");
    docker(&["save", "--output", saved.to_str().unwrap(), "miniature:latest"]);
    let back = ImageFolder::open(workshop.path("back"));
    let came = back
        .import(&saved, "back")
        .unwrap_or_else(|error| panic!("{}", words(&error)));
    assert_eq!(workshop.shown(&back, &came.digest, LOOK), before);
}

#[test]
fn layers_may_be_compressed() {
    let workshop = Workshop::new();
    let layout = workshop.path("bare");
    fs::create_dir(&layout).unwrap();
    pack(
        &workshop,
        &layout,
        "mkdir knowledge && seq 100000 > knowledge/numbers && mkdir knowledge/folder",
    );
    let plain = workshop.images.import(&layout, "plain").unwrap();
    let before = workshop.shown(&workshop.images, &plain.digest, LOOK);
    for compressor in ["gzip --no-name", "zstd"] {
        let packed = workshop.path(compressor);
        compress(&layout, &packed, compressor);
        let other = ImageFolder::open(workshop.path(&format!("elsewhere by {compressor}")));
        let came = other
            .import(&packed, "came")
            .unwrap_or_else(|error| panic!("{compressor}: {}", words(&error)));
        assert_eq!(workshop.shown(&other, &came.digest, LOOK), before, "{compressor}");
    }
}

#[test]
fn a_registry_takes_the_layout() {
    for program in ["skopeo", "docker-registry"] {
        let started = Command::new(program).arg("--version").output();
        assert!(
            started.is_ok(),
            "{program} is not here: `scripts/prepare tests` installs it"
        );
    }
    let workshop = Workshop::new();
    let layout = workshop.path("bare");
    fs::create_dir(&layout).unwrap();
    pack(&workshop, &layout, "mkdir -p knowledge && echo > knowledge/gone");
    let base = workshop.images.import(&layout, "bare").unwrap();
    let image = workshop.committed(&base.digest, TAKE_AWAY);
    let address = format!("127.0.0.1:{}", testkit::free_port());
    let config = workshop.path("registry.yml");
    let text = json!({
        "version": "0.1",
        "storage": { "filesystem": { "rootdirectory": workshop.path("registry") } },
        "http": { "addr": address },
    });
    fs::write(&config, text.to_string()).unwrap();
    let mut registry = Command::new("docker-registry");
    let mut registry = registry
        .arg("serve")
        .arg(&config)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    testkit::eventually("the registry to listen", || std::net::TcpStream::connect(&address).ok());
    let there = format!("docker://{address}/bare:latest");
    let ours = format!("oci:{}", image.folder.join("oci").display());
    let back = format!("oci:{}", workshop.path("back").display());
    let copy = |from: &str, to: &str| {
        let mut skopeo = Command::new("skopeo");
        skopeo.args([
            "copy",
            "--insecure-policy",
            "--preserve-digests",
            "--src-tls-verify=false",
            "--dest-tls-verify=false",
        ]);
        skopeo.args([from, to]).output().unwrap()
    };
    let pushed = copy(&ours, &there);
    let pulled = copy(&there, &back);
    registry.kill().unwrap();
    registry.wait().unwrap();
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    let elsewhere = ImageFolder::open(workshop.path("elsewhere"));
    let came = elsewhere
        .import(&workshop.path("back"), "bare")
        .unwrap_or_else(|error| panic!("{}", words(&error)));
    let [ours, theirs] = [(&workshop.images, &image.digest), (&elsewhere, &came.digest)]
        .map(|(images, digest)| workshop.shown(images, digest, LOOK));
    assert_eq!(ours, theirs);
}

/// The same layout with its layers compressed.
fn compress(layout: &Path, to: &Path, compressor: &str) {
    testkit::run(Command::new("cp").arg("--archive").arg(layout).arg(to));
    let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let blob = |descriptor: &Value| {
        to.join("blobs")
            .join(descriptor["digest"].as_str().unwrap().replace(':', "/"))
    };
    let put = |path: &Path| {
        let said = testkit::run(Command::new("sha256sum").arg(path));
        let digits = said.split(' ').next().unwrap().to_owned();
        fs::rename(path, to.join("blobs/sha256").join(&digits)).unwrap();
        json!({ "digest": format!("sha256:{digits}") })
    };
    let index = read(to.join("index.json"));
    let mut manifest = read(blob(&index["manifests"][0]));
    for layer in manifest["layers"].as_array_mut().unwrap() {
        let packed = to.join("packed");
        let mut command = Command::new("sh");
        command
            .args(["-c", "$0 < $1 > $2", compressor])
            .arg(blob(layer))
            .arg(&packed);
        testkit::run(&mut command);
        *layer = put(&packed);
    }
    let path = to.join("manifest");
    fs::write(&path, manifest.to_string()).unwrap();
    let manifest = put(&path);
    fs::write(to.join("index.json"), json!({ "manifests": [manifest] }).to_string()).unwrap();
}

#[test]
fn what_an_earlier_release_built_shares_its_layer_when_it_is_built_on() {
    let workshop = Workshop::new();
    let archive = workshop.path("image.tar");
    let made = workshop.committed(&workshop.base, "echo words > file");
    workshop.images.export(made.digest.as_str(), &archive).unwrap();
    // As it was: one layer, in the image's own folder, and no list.
    let place = workshop.path("earlier");
    let earlier = ImageFolder::open(&place);
    let came = earlier.import(&archive, "base").unwrap();
    let [lowest, ..] = &*earlier.image(&came.digest).unwrap().layers else {
        panic!("no layer")
    };
    let folder = place.join(came.digest.as_str());
    fs::remove_file(folder.join("rootfs")).unwrap();
    fs::rename(&lowest.files, folder.join("rootfs")).unwrap();
    let mut manifest: Value = json!({ "layers": [{ "digest": format!("sha256:{}", lowest.id) }] });
    manifest["config"] = json!({});
    let blobs = folder.join("oci/blobs/sha256");
    fs::write(blobs.join(came.digest.as_str()), manifest.to_string()).unwrap();
    fs::remove_file(blobs.join(lowest.id.as_str())).unwrap();
    fs::rename(&lowest.archive, blobs.join(lowest.id.as_str())).unwrap();
    fs::remove_dir_all(place.join("layers")).unwrap();
    let about = json!({ "digest": came.digest, "name": "base", "recipe": "key", "built": came.built, "bytes": 5 });
    fs::write(folder.join("image.json"), about.to_string()).unwrap();

    assert_eq!(
        earlier.image(&came.digest).unwrap().layers[0].files,
        folder.join("rootfs")
    );
    let upper = File::open(workshop.upper("echo new > new")).unwrap();
    let made = earlier.commit(&came.digest, Some(upper.as_fd()), PLENTY).unwrap();
    assert_eq!(workshop.shown(&earlier, &made.digest, "cat new"), "new\n");
    assert_eq!(earlier.image(&came.digest).unwrap().layers.len(), 1);

    // As whoever is killed just before the list is written leaves it.
    fs::write(folder.join("image.json"), about.to_string()).unwrap();
    let upper = File::open(workshop.upper("echo new > new")).unwrap();
    let again = earlier.commit(&came.digest, Some(upper.as_fd()), PLENTY);
    let again = again.unwrap_or_else(|error| panic!("{}", words(&error)));
    assert_eq!(again.base, Some(came.digest.clone()));
    assert!(
        fs::metadata(folder.join("rootfs/bin/sh")).is_ok(),
        "what reads the image's own folder finds it no more"
    );
    earlier.remove(&came.digest).unwrap();
    assert_eq!(workshop.shown(&earlier, &made.digest, "cat new"), "new\n");
}

#[test]
fn an_image_that_knows_nothing_of_sandboxes_gets_their_places() {
    let workshop = Workshop::new();
    let layout = workshop.path("bare");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    pack(
        &workshop,
        &layout,
        "mkdir -p bin etc && echo x > bin/sh && echo mine > etc/hosts && ln -s /elsewhere tmp",
    );
    let came = workshop
        .images
        .import(&layout, "bare")
        .unwrap_or_else(|error| panic!("{}", words(&error)));
    let image = workshop.images.image(&came.digest).unwrap();
    assert_eq!(
        image.configuration["config"],
        json!({ "Env": ["PATH=/bin"], "User": "1000" }),
        "an engine would obey the rest"
    );
    assert_eq!((image.layers.len(), image.base_layers), (2, 2));
    let files = &image.layers[1].files;
    let workspace = fs::metadata(files.join("workspace")).unwrap();
    assert_eq!((workspace.uid(), workspace.gid()), (1000, 1000));
    assert_eq!(fs::symlink_metadata(files.join("tmp")).unwrap().mode(), 0o41777);
    assert!(files.join("etc/resolv.conf").is_file() && !files.join("etc/hosts").exists());
}

/// Puts an image of one layer, with the files that a script makes, into a layout.
pub(crate) fn pack(workshop: &Workshop, layout: &Path, make: &str) {
    let files = workshop.upper(make);
    let layer = layout.join("layer");
    let mut tar = Command::new("tar");
    testkit::run(
        tar.args(["--create", "--numeric-owner", "--directory"])
            .arg(&files)
            .arg("--file")
            .arg(&layer)
            .arg("."),
    );
    describe(layout, &[layer]);
}

/// Finishes a layout of layers, from the lowest, which are moved to their places.
pub(crate) fn describe(layout: &Path, layers: &[PathBuf]) {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |path: &Path| {
        let said = testkit::run(Command::new("sha256sum").arg(path));
        let digits = said.split(' ').next().unwrap().to_owned();
        fs::rename(path, blobs.join(&digits)).unwrap();
        format!("sha256:{digits}")
    };
    let store = |value: Value| {
        let path = layout.join("value");
        fs::write(&path, value.to_string()).unwrap();
        put(&path)
    };
    let layers: Vec<_> = layers.iter().map(|layer| put(layer)).collect();
    let harmful = json!({ "Healthcheck": { "Test": ["CMD", "/evil"] }, "Volumes": { "/v": {} }, "Entrypoint": ["/evil"],
        "OnBuild": ["RUN /evil"], "Env": ["PATH=/bin"], "User": "1000" });
    let configuration = store(json!({ "os": "linux", "config": harmful, "history": [],
        "rootfs": { "type": "layers", "diff_ids": layers } }));
    let layers: Vec<_> = layers.iter().map(|layer| json!({ "digest": layer })).collect();
    let manifest = store(json!({ "config": { "digest": configuration }, "layers": layers }));
    fs::write(
        layout.join("index.json"),
        json!({ "manifests": [{ "digest": manifest }] }).to_string(),
    )
    .unwrap();
}

#[test]
fn an_image_that_is_here_already_keeps_its_name_and_what_it_was_made_of() {
    let workshop = Workshop::new();
    let layout = workshop.path("bare");
    fs::create_dir(&layout).unwrap();
    pack(&workshop, &layout, "mkdir knowledge && echo x > file");
    let base = workshop.images.import(&layout, "first").unwrap();
    let again = workshop.images.import(&layout, "first").unwrap();
    assert!(again.digest == base.digest && again.built >= base.built);
    let made = workshop.committed(&base.digest, "echo one > file");
    let archive = workshop.path("made.tar");
    workshop.images.export(made.digest.as_str(), &archive).unwrap();

    for (from, name) in [(&layout, "second"), (&archive, "second"), (&archive, "first")] {
        let error = workshop.images.import(from, name).unwrap_err();
        assert!(words(&error).contains("here already, as first"), "{}", words(&error));
    }
    let listed = workshop.images.list().unwrap();
    let find = |digest: &sandbox::ImageDigest| listed.iter().find(|image| image.digest == *digest).unwrap();
    assert_eq!(*find(&base.digest), again);
    assert_eq!(*find(&made.digest), made);
    assert_eq!(workshop.halves(), Vec::<PathBuf>::new());
}

#[test]
fn an_image_is_called_as_a_recipe_might_be() {
    let workshop = Workshop::new();
    let layout = workshop.path("bare");
    fs::create_dir(&layout).unwrap();
    pack(&workshop, &layout, "mkdir bin");
    let digest = "a".repeat(64) + "!";
    for name in ["", "../x", "a b", "-x", "Mine", &digest] {
        let error = workshop.images.import(&layout, name).unwrap_err();
        assert!(
            words(&error).contains("cannot be the name of an image"),
            "{}",
            words(&error)
        );
    }
    assert!(workshop.images.import(&layout, "mine-2").is_ok());
}

#[test]
fn a_layer_that_hides_all_below_it_does_so() {
    let workshop = Workshop::new();
    let layout = workshop.path("hiding");
    fs::create_dir(&layout).unwrap();
    let layers = [
        "mkdir knowledge && echo > knowledge/below",
        "mkdir knowledge && echo > knowledge/above && echo > .wh..wh..opq",
    ];
    let layers = layers.map(|make| {
        let (files, layer) = (
            workshop.upper(make),
            tempfile::tempdir_in(workshop.folder.path()).unwrap().keep(),
        );
        let layer = layer.join("layer");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--numeric-owner", "--directory"])
            .arg(&files)
            .arg("--file")
            .arg(&layer)
            .arg(".");
        testkit::run(&mut tar);
        layer
    });
    describe(&layout, &layers);
    for round in ["taken in", "here already"] {
        let came = workshop.images.import(&layout, "hiding").unwrap();
        assert_eq!(
            workshop.shown(&workshop.images, &came.digest, "ls"),
            "above\n",
            "{round}"
        );
    }
}
