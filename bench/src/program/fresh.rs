//! P3: from a fresh clone to a first job done, as whoever tries Belljar for the first time sees it.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::installation::{remove_sandboxes, unmount};
use crate::peers::run;
use crate::processes;
use crate::report::Measure;

/// Where the demo's host agent has what need not survive a restart.
const RUN: &str = "/run/belljar";

/// What cargo would take from elsewhere.
const BUILT_ELSEWHERE: [&str; 3] = ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_BUILD_DIR"];

/// Keys by which the demo would ask a real model.
const KEYS: [&str; 3] = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"];

/// Clones what is committed, and plays the demo twice: with nothing built, and with all of it. The system's packages and what
/// cargo has fetched before are there.
pub(super) fn measure() -> anyhow::Result<Vec<Measure>> {
    let sandboxes = Path::new(RUN).join("sandboxes");
    let empty = std::fs::read_dir(&sandboxes).map_or(true, |mut some| some.next().is_none());
    ensure!(
        empty && UnixStream::connect(Path::new(RUN).join("host.sock")).is_err(),
        "there is a Belljar at {RUN}, or sandboxes that it left: the demo needs its place, so remove them first"
    );
    let folder = tempfile::Builder::new()
        .prefix("belljar-bench-fresh-")
        .tempdir_in("/var/tmp")?;
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
    let clone = folder.path().join("belljar");
    run(Command::new("git").args(["clone", "--quiet", "."]).arg(&clone))?;
    let fresh = play(&clone, &folder.path().join("first"))?;
    let built = play(&clone, &folder.path().join("second"))?;
    let minutes = |time: Duration| time.as_secs_f64() / 60.0;
    let what = "a first job done, from a fresh clone (make demo)";
    Ok(vec![
        Measure::value("P3", what, "min", minutes(fresh)).at_most(15.0, None),
        Measure::value("P3", "  the same where all is built", "min", minutes(built)),
    ])
}

/// `scripts/demo` with a data folder of its own; what it leaves running is ended.
fn play(clone: &Path, data: &Path) -> anyhow::Result<Duration> {
    let mut demo = Command::new("./scripts/demo");
    demo.current_dir(clone)
        .env("BELLJAR_DEMO_DATA", data)
        .env("BELLJAR_DEMO_PORT", testkit::free_port().to_string());
    for name in BUILT_ELSEWHERE.into_iter().chain(KEYS) {
        demo.env_remove(name);
    }
    let began = Instant::now();
    let done = demo.output();
    let took = began.elapsed();
    let ended = end(data);
    let done = done.context("scripts/demo could not be started")?;
    if !done.status.success() {
        bail!("scripts/demo failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    ended.map(|()| took)
}

/// Removes the sandboxes of a demo, and ends it.
fn end(data: &Path) -> anyhow::Result<()> {
    // `process 7, at http://…`
    let Ok(lock) = std::fs::read_to_string(data.join("up.lock")) else {
        return Ok(());
    };
    let id = lock.strip_prefix("process ").and_then(|lock| lock.split_once(','));
    let (id, _) = id.context("up.lock holds no number")?;
    let removed = remove_sandboxes(&Path::new(RUN).join("host.sock"), &data.join("installation"));
    let id: u32 = id.parse().context("up.lock holds no number")?;
    run(Command::new("kill").arg(id.to_string()))?;
    let until = Instant::now() + Duration::from_secs(60);
    while processes::lives(id) {
        ensure!(Instant::now() < until, "the demo's Belljar did not end within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
    unmount(data);
    unmount(Path::new(RUN));
    removed.context("the sandboxes of the demo could not be removed")
}
