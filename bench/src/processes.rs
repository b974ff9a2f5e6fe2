//! What the kernel knows of processes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// Every process: its number and its command line, words parted by spaces.
pub(crate) fn all() -> Vec<(u32, String)> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.map(|number| (number, command_line(number))).collect()
}

/// Words of a process that is gone are none.
fn command_line(number: u32) -> String {
    let line = fs::read(file(number, "cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned()
}

/// The processes of a control group that is named after something.
pub(crate) fn of_group(name: &str) -> Vec<u32> {
    let belongs = |number: &u32| {
        fs::read_to_string(file(*number, "cgroup"))
            .unwrap_or_default()
            .contains(name)
    };
    all().into_iter().map(|(number, _)| number).filter(belongs).collect()
}

/// What a sandbox has as long as it lives: PID 1, the hands, who watches the workspace, and who waits to start a program.
const PERMANENT: [&str; 4] = ["pid1 listed", "hands", "sync", "supervise"];

/// All processes of a sandbox, as soon as there are those that every one has and no others.
pub(crate) async fn of_idle_sandbox(sandbox: &str) -> anyhow::Result<Vec<u32>> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let of_sandbox = of_group(sandbox);
        let role = |number: &u32| {
            let line = command_line(*number);
            PERMANENT.iter().position(|role| line.ends_with(&format!(" {role}")))
        };
        let mut roles: Vec<_> = of_sandbox.iter().map(role).collect();
        roles.sort_unstable();
        if roles == [Some(0), Some(1), Some(2), Some(3)] {
            return Ok(of_sandbox);
        }
        if Instant::now() > until {
            let lines: Vec<_> = of_sandbox.into_iter().map(command_line).collect();
            bail!(
                "an idle sandbox has {} and no others, and {sandbox} has {lines:?}",
                PERMANENT.join(", ")
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Memory that a process holds and shares with nobody, and its part of what is shared, in MiB.
pub(crate) fn proportional(number: u32) -> anyhow::Result<f64> {
    mebibytes(number, "smaps_rollup", "Pss:")
}

/// Memory that a process holds, in MiB.
pub(crate) fn resident(number: u32) -> anyhow::Result<f64> {
    mebibytes(number, "status", "VmRSS:")
}

/// Memory that processes hold which run the same program, in MiB: what each has of its own, and once what they have of files,
/// which are the same pages.
pub(crate) fn resident_together(numbers: &[u32]) -> anyhow::Result<f64> {
    let (mut own, mut files) = (0.0, 0.0_f64);
    for &number in numbers {
        own += mebibytes(number, "status", "RssAnon:")? + mebibytes(number, "status", "RssShmem:")?;
        files = files.max(mebibytes(number, "status", "RssFile:")?);
    }
    Ok(own + files)
}

fn mebibytes(number: u32, name: &str, key: &str) -> anyhow::Result<f64> {
    let path = file(number, name);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kibibytes.with_context(|| format!("{} has no {key}", path.display()))? / 1_024.0)
}

/// Processor time that a process has used, all its threads together.
pub(crate) fn processor_time(number: u32) -> anyhow::Result<Duration> {
    let path = file(number, "stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(2));
    // In hundredths of a second, by the kernel and by itself.
    let ticks: u64 = fields
        .into_iter()
        .flatten()
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// Whether a process lives; one that waits to be reaped does not.
pub(crate) fn lives(number: u32) -> bool {
    let stat = fs::read_to_string(file(number, "stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The process that started this one.
pub(crate) fn parent(number: u32) -> Option<u32> {
    let stat = fs::read_to_string(file(number, "stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn file(number: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{number}/{name}"))
}
