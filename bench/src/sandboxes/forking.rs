//! What it takes to let another session begin with the files of one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::{SessionId, SnapshotId};
use futures::StreamExt;
use futures::stream;
use sandbox::{SandboxProvider, SandboxSpec};

use super::Room;
use crate::installation::{Installation, Programs};
use crate::peers::run;
use crate::report::Measure;
use crate::sample::{Sample, WARM_UPS, scaled};

/// Of the workspace that is forked.
const BYTES: usize = 1 << 30;

/// Of one file of it.
const PIECE: usize = 16 << 20;

/// How often it is copied where nothing is shared.
const COPIES: usize = 5;

/// Where disks share nothing, a fork copies.
pub(super) async fn copying(programs: &Programs) -> anyhow::Result<Vec<Measure>> {
    let room = Room::of(Installation::new(programs, None, "")?.plain_disks())?;
    let source = room.source().await?;
    let before = room.allocated();
    let (time, forks) = room.fork(source, scaled(COPIES)).await?;
    let grown = kibibytes(room.allocated().saturating_sub(before)) / count(&forks);
    let disks = room.installation.path("data/disks");
    let theirs = copied(
        &disks.join(format!("{source}.ext4")),
        &disks.join("peer"),
        "auto",
        scaled(COPIES),
    )?;
    room.remove_disks(source, forks).await?;
    room.tasks.shut_down(Duration::from_secs(5)).await;
    let what = "  the same where every disk is a file of its own (ext4)";
    Ok(vec![
        Measure::times("S10", what, &time).beside("cp, sync", theirs.at(0.5)),
        Measure::value("S10", "  what each takes of the machine's disk", "KiB", grown),
    ])
}

impl Room {
    pub(super) async fn forking(&self) -> anyhow::Result<Vec<Measure>> {
        let source = self.source().await?;
        let before = self.allocated();
        let (time, forks) = self.fork(source, scaled(100)).await?;
        let own = self.exclusive(&forks);
        let grown = kibibytes(self.allocated().saturating_sub(before)) / count(&forks);
        let pool = self.installation.path("data/pool");
        let disk = pool.join(source.to_string());
        let theirs = copied(&disk, &pool.join("peer"), "always", scaled(COPIES))?;
        self.remove_disks(source, forks).await?;
        let what = "fork of a workspace of 1 GiB, on this machine's disk pool";
        Ok(vec![
            Measure::times("S10", what, &time)
                .beside("cp --reflink, sync", theirs.at(0.5))
                .at_most(50.0, None),
            Measure::value("S10", "  what a fork has for itself alone", "KiB", own),
            Measure::value("S10", "  what the pool's file grew by for each", "KiB", grown),
        ])
    }

    /// A session with a full workspace.
    async fn source(&self) -> anyhow::Result<SessionId> {
        let mut spec = Self::spec()?;
        spec.limits.disk_bytes = BYTES as u64 * 2;
        self.furnish(&spec, scaled(BYTES)).await?;
        Ok(spec.session)
    }

    /// Forks a session: how long each took that counts, and all forks.
    async fn fork(&self, source: SessionId, count: usize) -> anyhow::Result<(Sample, Vec<SessionId>)> {
        let mut time = Sample::default();
        let mut forks = Vec::new();
        for number in 0..count + WARM_UPS {
            let (snapshot, fork) = (SnapshotId::new(), SessionId::new());
            let began = Instant::now();
            self.host.snapshot(source, snapshot).await?;
            self.host.restore(snapshot, fork).await?;
            if number >= WARM_UPS {
                time.add(began.elapsed());
            }
            self.host.remove_snapshot(snapshot).await?;
            forks.push(fork);
        }
        Ok((time, forks))
    }

    async fn remove_disks(&self, source: SessionId, forks: Vec<SessionId>) -> anyhow::Result<()> {
        for session in forks.into_iter().chain([source]) {
            self.host.remove_disk(session).await?;
        }
        Ok(())
    }

    /// Fills the workspace of a session, and leaves it without a sandbox.
    async fn furnish(&self, spec: &SandboxSpec, bytes: usize) -> anyhow::Result<()> {
        let tenant = self.create_ahead(spec).await?;
        tenant.claim().await?;
        // No file system takes it for nothing.
        let chunk = Bytes::from(
            (0..1 << 20)
                .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect::<Vec<_>>(),
        );
        for number in 0..bytes.div_ceil(PIECE) {
            let chunks = stream::iter(vec![chunk.clone(); PIECE / chunk.len()]).map(Ok);
            tenant
                .linked
                .write_file(&format!("data/{number}"), chunks.boxed())
                .await?;
        }
        self.leave(tenant).await
    }

    /// KiB that each of these has on a pool that shares and nobody else has.
    fn exclusive(&self, forks: &[SessionId]) -> f64 {
        let pool = self.installation.path("data/pool");
        let shown = testkit::run(
            Command::new("btrfs")
                .args(["qgroup", "show", "--sync", "--raw"])
                .arg(pool),
        );
        let of_fork = |line: &str| {
            let columns: Vec<_> = line.split_whitespace().collect();
            let is_fork = forks
                .iter()
                .any(|fork| columns.last() == Some(&fork.to_string().as_str()));
            columns.get(2).filter(|_| is_fork)?.parse::<u64>().ok()
        };
        kibibytes(shown.lines().filter_map(of_fork).sum()) / count(forks)
    }

    /// Bytes that the installation's files take on the machine's disk, a disk pool in a file among them.
    fn allocated(&self) -> u64 {
        rustix::fs::sync();
        let data = self.installation.path("data");
        let device = fs::metadata(&data).map_or(0, |metadata| metadata.dev());
        taken(&data, device)
    }
}

/// How long `cp` takes for a copy of a disk beside it that is as safe from a power cut as a fork.
fn copied(disk: &Path, copy: &Path, reflink: &str, count: usize) -> anyhow::Result<Sample> {
    let mut sample = Sample::default();
    for _ in 0..count {
        let mut copying = Command::new("cp");
        copying.args(["--archive", &format!("--reflink={reflink}")]);
        let began = Instant::now();
        run(copying.arg(disk).arg(copy))?;
        run(Command::new("sync").arg("--file-system").arg(copy))?;
        sample.add(began.elapsed());
        run(Command::new("rm").arg("--recursive").arg(copy))?;
    }
    Ok(sample)
}

#[allow(clippy::cast_precision_loss, reason = "a small number")]
fn count(forks: &[SessionId]) -> f64 {
    forks.len() as f64
}

#[allow(clippy::cast_precision_loss, reason = "a number of bytes on a disk")]
fn kibibytes(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// Without what is mounted in it.
fn taken(folder: &Path, device: u64) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let each = entries.filter_map(|entry| Some((entry.path(), entry.path().symlink_metadata().ok()?)));
    each.filter(|(_, metadata)| metadata.dev() == device)
        .map(|(path, metadata)| match metadata.is_dir() {
            true => taken(&path, device),
            false => metadata.blocks() * 512,
        })
        .sum()
}
