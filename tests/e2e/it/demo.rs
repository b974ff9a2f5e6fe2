//! `make demo`, as a newcomer has it: from the programs on, with the image of the sandboxes and the control plane's own user.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::model_server::{Answer, ModelServer, Speech};
use testkit::{PROMISES, free_port};

use crate::leftovers;
use crate::processes;
use crate::program::{belljar, runtime};

/// Plays the demo twice, and twice with a model of somebody's, in mounts of its own, does what its last lines say, and tells who
/// the control plane was.
const STEPS: &str = r#"
set -euo pipefail
mkdir -p /run/belljar
mount -t tmpfs none /run/belljar
scripts/demo > "$OUT/first"
scripts/demo > "$OUT/second"
cp -r "$BELLJAR_DEMO_RESULTS" "$OUT/kept"
ANTHROPIC_API_KEY="$KEY" ANTHROPIC_BASE_URL="$MODELS" scripts/demo > "$OUT/anthropic"
OPENAI_API_KEY="$KEY" OPENAI_BASE_URL="$MODELS/v1" scripts/demo > "$OUT/openai"
pid=$(sed -n 's/^process \([0-9]*\),.*/\1/p' "$BELLJAR_DEMO_DATA/up.lock")
for process in "$pid" $(pgrep --parent "$pid"); do
  echo "$(tr '\0' ' ' < /proc/$process/cmdline | cut -d' ' -f2) $(stat --format %U /proc/$process)"
done > "$OUT/users"
eval "$(sed -n 's/^  export/export/p' "$OUT/openai")"
belljar sandbox list > "$OUT/sandboxes"
belljar run --session promises "Try what the image promises." > "$OUT/answer"
belljar get promises said.json "$OUT/said.json"
eval "$(sed -n 's/^Stop it: *//p' "$OUT/openai")"
tail --pid="$pid" -f /dev/null
eval "$(sed -n 's/^Remove it, stopped: *//p' "$OUT/openai")"
findmnt --noheadings --output TARGET | grep -F "$BELLJAR_DEMO_DATA" > "$OUT/left" || true
"#;

/// Has a shell run each script of the base image's promises, and keeps what each says.
const TRY: &str = r#"
const { spawnSync } = await import("node:child_process");
const said = SCRIPTS.map((script) => {
  const done = spawnSync("bash", ["-c", script], { encoding: "utf8", timeout: 60000 });
  return `${done.stdout}${done.stderr}${done.error ?? ""}`;
});
await writeToFile("said.json", JSON.stringify(said));
return said.length;
"#;

/// Whom the control plane runs as: not the user of an installation that this machine may have.
const USER: &str = "belljar-demo";

/// The demo's place, and what is taken away again.
struct Place {
    folder: tempfile::TempDir,
    /// There was no such user before.
    makes_user: bool,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("belljar-demo-").tempdir();
        let known = Command::new("id").arg(USER).output().expect("run id");
        Self {
            folder: folder.expect("make a folder"),
            makes_user: !known.status.success(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let lock = self.text("data/up.lock");
        if let Some((pid, _)) = lock.strip_prefix("process ").and_then(|lock| lock.split_once(',')) {
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{pid}")]).output();
        }
        leftovers::first_processes(self.folder.path())
            .into_iter()
            .for_each(processes::kill);
        if self.makes_user {
            let _ = Command::new("userdel").arg(USER).output();
        }
    }
}

/// Millimetres of rain by month, counted from the data.
fn rain(data: &Path) -> BTreeMap<String, f64> {
    let mut months = BTreeMap::new();
    for line in fs::read_to_string(data).expect("read the data").lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        *months.entry(cells[0][..7].to_owned()).or_default() += cells[1].parse::<f64>().expect("a number");
    }
    months
}

#[test]
fn a_newcomer_has_a_first_job_done_asks_on_and_leaves_nothing_behind() {
    let place = Place::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for program in [belljar(), runtime()] {
        let name = program.file_name().expect("a name");
        std::os::unix::fs::symlink(&program, place.folder.path().join(name)).expect("make a link");
    }
    // The control plane's user walks in.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.folder.path(), open).expect("open a folder");
    let runtime = tokio::runtime::Runtime::new().expect("make a runtime");
    let models = runtime.block_on(ModelServer::start());
    for _ in 0..2 {
        models.next(Answer::text("It rained a lot."));
    }
    let scripts = Value::from_iter(PROMISES.iter().map(|(script, _)| *script));
    let code = TRY.replace("SCRIPTS", &scripts.to_string());
    let tries = Speech::text("I try them.").call("call_1", "exec", &json!({ "code": code }));
    models.next(Answer::Say(tries));
    models.next(Answer::text("It has all of them."));
    let output = Command::new("setsid")
        .args(["unshare", "--mount", "bash", "-c", STEPS])
        .current_dir(&root)
        .env("OUT", place.folder.path())
        .env("BELLJAR_DEMO_DATA", place.path("data"))
        .env("BELLJAR_DEMO_RESULTS", place.path("results"))
        .env("BELLJAR_DEMO_PORT", free_port().to_string())
        .env("BELLJAR_DEMO_PROGRAMS", place.folder.path())
        .env("BELLJAR_SERVER_USER", USER)
        .env("MODELS", models.base_url())
        .env("KEY", models.key())
        .env_remove("ANTHROPIC_API_KEY")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .stdin(Stdio::null())
        .output()
        .expect("run the demo");
    let (first, second) = (place.text("first"), place.text("second"));
    let said = String::from_utf8_lossy(&output.stderr);
    let log = place.text("data/demo.log");
    assert!(output.status.success(), "{first}\n{second}\n{said}\n{log}");

    assert!(first.contains("The model is a scripted model"), "{first}");
    assert!(first.contains("It rained on **623** of 1461 days"), "{first}");
    assert!(said.contains("3 model calls"), "what it cost: {said}");
    let builds = said.matches("packages of Debian").count();
    assert_eq!(builds, 1, "the second time the image is there: {said}");
    for (name, model, asked) in [
        ("anthropic", "Claude", "claude-"),
        ("openai", "at http://127.0.0.1", "gpt-"),
    ] {
        let told = place.text(name);
        assert!(told.contains("It runs already, with another configuration"), "{told}");
        assert!(told.contains(model) && told.contains("It rained a lot."), "{told}");
        assert!(told.contains("The model wrote no report/monthly.csv"), "{told}");
        let received = models.received();
        let is_asked = |body: &Value| body["model"].as_str().is_some_and(|name| name.starts_with(asked));
        assert!(received.iter().any(|received| is_asked(&received.body)), "{name}");
    }
    models.assert_nothing_refused();
    assert!(
        place.text("answer").contains("It has all of them."),
        "{}",
        place.text("answer")
    );
    let said: Vec<String> = serde_json::from_str(&place.text("said.json")).expect("what the scripts said");
    assert_eq!(said.len(), PROMISES.len());
    for ((script, start), said) in PROMISES.iter().zip(said) {
        assert!(said.starts_with(start), "{script}: {said}");
    }
    let table = place.text("kept/monthly.csv");
    let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let column = rows
        .next()
        .expect("a header")
        .iter()
        .position(|name| *name == "rain_mm");
    let column = column.expect("a column");
    let drawn: BTreeMap<String, f64> = rows
        .map(|cells| (cells[0].to_owned(), cells[column].parse().expect("a number")))
        .collect();
    let counted = rain(&root.join("demo/seattle-weather.csv"));
    assert!(drawn.keys().eq(counted.keys()), "{drawn:?}");
    for (month, rain) in &counted {
        assert!(
            (rain - drawn[month]).abs() <= 0.051,
            "{month}: {rain} and {}",
            drawn[month]
        );
    }
    let chart = fs::read(place.path("kept/rain-and-warmth.png")).expect("read the chart");
    assert!(
        chart.starts_with(b"\x89PNG\r\n\x1a\n") && chart.len() > 2_000,
        "{}",
        chart.len()
    );

    let users = place.text("users");
    for part in ["up root".to_owned(), "host root".to_owned(), format!("serve {USER}")] {
        assert!(users.lines().any(|line| line == part), "{users}");
    }
    assert!(place.text("sandboxes").contains("demo-"), "{}", place.text("sandboxes"));
    assert_eq!(place.text("left"), "", "mounts are left");
    assert!(!place.path("data").exists(), "the data is gone");
}

/// What `scripts/prepare` says and how it ends where these programs, each with what it prints, stand in for cargo and rustup.
fn prepare_with(programs: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("make a folder");
    for place in ["/usr/bin", "/usr/sbin"] {
        for entry in fs::read_dir(place).expect("list programs").flatten() {
            if !["cargo", "rustup"].contains(&entry.file_name().to_string_lossy().as_ref()) {
                // The first of a name counts.
                let _ = std::os::unix::fs::symlink(entry.path(), folder.path().join(entry.file_name()));
            }
        }
    }
    for (name, prints) in programs {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{prints}'\n")).expect("write a program");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("let it run");
    }
    let output = Command::new("scripts/prepare")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .env("PATH", folder.path())
        .env_remove("BELLJAR_TEST_FULL")
        .output()
        .expect("run scripts/prepare");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn where_cargo_is_missing_or_too_old_the_command_that_mends_it_is_said() {
    let install = "'curl --proto =https -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env' mends it";
    let (code, said) = prepare_with(&[]);
    assert!(
        code == Some(1) && said.contains("here is none") && said.contains(install),
        "{said}"
    );
    let old = ("cargo", "cargo 1.70.0 (ec8a8a0ca 2023-04-25)");
    let (code, said) = prepare_with(&[old]);
    assert!(
        code == Some(1) && said.contains("here is 1.70.0") && said.contains(install),
        "{said}"
    );
    let (code, said) = prepare_with(&[old, ("rustup", "")]);
    assert!(
        code == Some(1) && said.contains("'rustup update stable' mends it"),
        "{said}"
    );
    assert!(!said.contains("sh.rustup.rs"), "{said}");
    let (code, said) = prepare_with(&[("cargo", "cargo 9999.0.0 (later)")]);
    assert_eq!(code, Some(0), "{said}");
}
