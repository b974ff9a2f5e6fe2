//! `belljar image gc` beside a control plane: what somebody's files lie on stays, and without an answer all stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};
use testkit::miniature;

use crate::installation::Installation;

const NAME: &str = "several";

const JOB: &str = r#"
steps:
  - when: { turn: 1 }
    tools:
      - name: write
        input: { path: notes, content: kept }
  - when: { turn: 2 }
    text: "Written."
"#;

/// Takes in another image of the name that sandboxes are made of: the miniature's files, and a variable of its own.
fn take_in(belljar: &Installation, variant: &str) -> String {
    let layout = belljar.path(variant);
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("make a folder");
    let store = |value: &Value| {
        let path = layout.join("value");
        fs::write(&path, value.to_string()).expect("write a file");
        let said = testkit::run(Command::new("sha256sum").arg(&path));
        let digits = said.split(' ').next().expect("a sum").to_owned();
        fs::rename(path, blobs.join(&digits)).expect("name a file");
        json!({ "digest": format!("sha256:{digits}") })
    };
    let text = fs::read_to_string(miniature().folder.join("config.json")).expect("read the configuration");
    let mut configuration: Value = serde_json::from_str(&text).expect("the configuration");
    configuration["config"]["Labels"] = json!({ "variant": variant });
    let layer = format!("sha256:{}", miniature().layer);
    configuration["rootfs"] = json!({ "type": "layers", "diff_ids": [layer] });
    // Whoever takes it in has the layer already.
    let manifest = json!({ "config": store(&configuration), "layers": [{ "digest": layer }] });
    let index = json!({ "manifests": [store(&manifest)] });
    fs::write(layout.join("index.json"), index.to_string()).expect("write the index");
    let layout = layout.to_str().expect("a path in UTF-8");
    let told = belljar.locally(&["image", "import", layout, "--name", NAME, "--json"], "");
    let told: Value = serde_json::from_str(&told).expect("an image");
    told["digest"].as_str().expect("its digest").to_owned()
}

/// The same, and waits until new sandboxes are made of it.
fn change_to(belljar: &Installation, variant: &str) -> String {
    let digest = take_in(belljar, variant);
    belljar.replace_serve();
    digest
}

fn lines(text: &str) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).expect("a line of JSON");
    text.lines().map(line).collect()
}

fn images(belljar: &Installation) -> BTreeSet<String> {
    let listed = lines(&belljar.locally(&["image", "list", "--json"], ""));
    let digests = listed.iter().map(|image| image["digest"].as_str().expect("a digest"));
    digests.map(str::to_owned).collect()
}

/// Removes what nobody uses; what that was.
fn collect(belljar: &Installation) -> BTreeSet<String> {
    let removed = lines(&belljar.locally(&["image", "gc", "--json"], ""));
    let digests = removed.iter().map(|image| image["digest"].as_str().expect("a digest"));
    digests.map(str::to_owned).collect()
}

/// The id of the session with this key.
fn id_of(belljar: &Installation, key: &str) -> String {
    let all = belljar.sessions();
    let found = all.iter().find(|session| session["key"] == key);
    found.expect("the session")["id"].as_str().expect("its id").to_owned()
}

/// What the sandbox of each session was made of.
fn made_of(belljar: &Installation) -> BTreeMap<String, String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sandboxes = lines(&belljar.done(&["sandbox", "list", "--json"]));
    let pairs = sandboxes.iter().map(|row| (word(&row["session"]), word(&row["image"])));
    pairs.collect()
}

/// What is said where nothing may be removed.
fn refused(belljar: &Installation) -> String {
    let before = images(belljar);
    let output = belljar.local_command(&["image", "gc"]).output().expect("run belljar");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(images(belljar), before);
    String::from_utf8(output.stderr).expect("belljar prints UTF-8")
}

#[test]
fn images_go_when_nothing_lies_on_them_and_the_control_plane_says_so() {
    let belljar = Installation::prepare(JOB, "");
    let miniature = &miniature().digest;
    let path = belljar.path("belljar.toml");
    let config = fs::read_to_string(&path).expect("read the configuration");
    fs::write(&path, config.replace(miniature.as_str(), NAME)).expect("write the configuration");
    belljar.start_host();

    let under_disk = change_to(&belljar, "disk");
    belljar.done(&["run", "--session", "disk", "write"]);
    let under_snapshot = change_to(&belljar, "snapshot");
    belljar.done(&["run", "--session", "snapshot", "write"]);
    belljar.done(&["snapshot", "save", "snapshot", "--name", "kept"]);
    let archived = id_of(&belljar, "snapshot");
    belljar.done(&["archive", "snapshot"]);
    belljar.remove_sandboxes();
    let under_generation = take_in(&belljar, "generation");
    let knowledge = json!({
        "refresh": { "secs": 3600, "nanos": 0 }, "time": { "secs": 60, "nanos": 0 }, "repositories": [],
        "build": ["echo one > built"], "ready": "test -s built", "egress": [],
    });
    let place = belljar
        .data()
        .join("images")
        .join(&under_generation)
        .join("knowledge.json");
    fs::write(place, knowledge.to_string()).expect("write a file");
    belljar.replace_serve();
    belljar.done(&["image", "refresh"]);
    belljar.done(&["run", "--session", "generation", "write"]);
    let generation = made_of(&belljar)[&id_of(&belljar, "generation")].clone();
    let under_sandbox = change_to(&belljar, "sandbox");
    belljar.done(&["run", "--session", "sandbox", "write"]);
    let unused = take_in(&belljar, "unused");
    let newest = change_to(&belljar, "newest");
    let all = images(&belljar);
    let everything = [
        &under_disk,
        &under_snapshot,
        &under_generation,
        &under_sandbox,
        &unused,
        &newest,
        &generation,
    ];
    assert!(
        everything.iter().all(|digest| all.contains(*digest)) && all.len() == 8,
        "{all:?}"
    );

    // Nobody answers; somebody answers who is not asked.
    belljar.stop_serve();
    let words = refused(&belljar);
    assert!(
        words.contains("nothing was removed") && words.contains("belljar up"),
        "{words}"
    );
    let listener = TcpListener::bind(("127.0.0.1", belljar.port())).expect("listen in its place");
    let other = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        let mut head = BufReader::new(connection.try_clone().expect("the same"))
            .lines()
            .map_while(Result::ok);
        head.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        connection.write_all(answer.as_bytes()).expect("answer");
    });
    let words = refused(&belljar);
    assert!(words.contains("nothing was removed"), "{words}");
    other.join().expect("the other answered");
    belljar.start_serve();

    // One that somebody needs stays, and it is said who; one that nobody does goes, though it is the newest of its name.
    let rm = |image: &str| {
        let output = belljar
            .local_command(&["image", "rm", image])
            .output()
            .expect("run belljar");
        let words = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), words)
    };
    for (image, who) in [
        (&under_disk, "the files of session disk"),
        (&under_snapshot, "snapshot kept of session snapshot"),
        (&newest, "the next sandboxes are made of it"),
        (&generation, "the control plane removes it"),
    ] {
        let (code, words) = rm(image);
        assert_eq!(code, Some(1), "{words}");
        assert!(words.contains(who), "{words}");
    }
    let (code, words) = rm(NAME);
    assert!(code == Some(1) && words.contains("nothing was removed"), "{words}");
    assert_eq!(rm("nothing").0, Some(1));
    assert_eq!(images(&belljar), all);
    let (code, words) = rm(&unused[..12]);
    assert_eq!((code, words), (Some(0), format!("removed {NAME} {unused}\n")));
    let all = images(&belljar);
    assert!(!all.contains(&unused));

    // What was built on an image has its layers, and does not need it.
    let wanted = BTreeSet::from([under_generation]);
    assert_eq!(collect(&belljar), wanted);
    assert_eq!(images(&belljar), &all - &wanted);
    assert_eq!(collect(&belljar), BTreeSet::new());

    belljar.done(&["snapshot", "restore", &archived, "kept"]);
    let kept = [
        (id_of(&belljar, "disk"), under_disk),
        (archived, under_snapshot),
        (id_of(&belljar, "generation"), generation),
        (id_of(&belljar, "sandbox"), under_sandbox),
    ];
    for (session, _) in &kept {
        assert_eq!(belljar.file(session, "notes"), "kept");
    }
    let built = belljar.done(&["sandbox", "exec", "generation", "cat", "/knowledge/built"]);
    assert_eq!(built.trim(), "one");
    assert_eq!(made_of(&belljar), kept.into());
    belljar.done(&["run", "--session", "new", "write"]);
    assert_eq!(made_of(&belljar)[&id_of(&belljar, "new")], newest);
}

#[test]
fn an_image_whose_description_is_garbage_hinders_no_other_and_goes_by_its_digest() {
    let belljar = Installation::prepare(JOB, "");
    let broken = take_in(&belljar, "broken");
    let whole = take_in(&belljar, "whole");
    let place = belljar.data().join("images").join(&broken);
    fs::write(place.join("image.json"), "\u{1b}[2J garbage").expect("spoil it");
    let said = |arguments: &[&str]| {
        let output = belljar.local_command(arguments).output().expect("run belljar");
        let text = |bytes| String::from_utf8(bytes).expect("belljar prints UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, listed, words) = said(&["image", "list"]);
    assert!(code == Some(0) && listed.contains(&whole[..12]), "{listed} {words}");
    for part in [&*broken, "image.json", &format!("image rm {broken}"), "no layer"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let rows = lines(&belljar.locally(&["image", "list", "--json"], ""));
    let row = rows.iter().find(|row| row["digest"] == *broken).expect("a line of it");
    assert!(
        row["broken"].as_str().is_some_and(|why| why.contains("image.json")),
        "{row}"
    );

    // What is built or taken in is as it is elsewhere, and removed as ever; the layers wait.
    let (code, _, words) = said(&["image", "rm", &whole]);
    assert_eq!(code, Some(0), "{words}");
    let (code, _, words) = said(&["image", "gc"]);
    assert!(code == Some(0) && words.contains(&broken), "{words}");
    let (code, _, words) = said(&["image", "export", &broken, "/nowhere/archive"]);
    assert!(code == Some(1) && words.contains("image.json"), "{words}");
    let (code, removed, words) = said(&["image", "rm", &broken[..12]]);
    assert_eq!((code, removed), (Some(0), format!("removed {broken}\n")), "{words}");
    assert!(!place.exists());
    assert_eq!(images(&belljar), BTreeSet::from([miniature().digest.clone()]));
}
