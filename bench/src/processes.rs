//! What the kernel knows of processes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

/// Every process: its number and its command line, words parted by spaces.
pub(crate) fn all() -> Vec<(u32, String)> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .map(|number| {
            let line = fs::read(file(number, "cmdline")).unwrap_or_default();
            (
                number,
                String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned(),
            )
        })
        .collect()
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

/// Memory that a process holds and shares with nobody, and its part of what is shared, in MiB.
pub(crate) fn proportional(number: u32) -> anyhow::Result<f64> {
    mebibytes(number, "smaps_rollup", "Pss:")
}

/// Memory that a process holds, in MiB.
pub(crate) fn resident(number: u32) -> anyhow::Result<f64> {
    mebibytes(number, "status", "VmRSS:")
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
