//! Processors, memory and processes are limited, and a sandbox at its limits harms itself alone.

use std::fs;
use std::path::PathBuf;

use containers::DiskChoice;
use sandbox::{SandboxProvider, SandboxState};

use crate::world::{By, LIMITS, Living, RUNTIME, USER, World};

on_each!(
    freezing_catches_what_forks_all_the_time,
    every_limit_reaches_the_kernel,
    a_dead_runtime_is_a_dead_sandbox,
    all_sandboxes_together_leave_the_machine_some_room,
);

async fn freezing_catches_what_forks_all_the_time(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let busy = "for i in 1 2 3; do (while :; do /bin/true; done) > /dev/null 2>&1 & done; true";
    living.run(USER, busy).await;
    for _ in 0..20 {
        world.provider.freeze(living.spec.id).await.unwrap();
        let before = world.provider.usage(living.spec.id).await.unwrap().cpu_micros;
        let status = world.provider.status(living.spec.id).await.unwrap();
        assert_eq!(status.state, SandboxState::Frozen);
        for _ in 0..20 {
            let now = world.provider.usage(living.spec.id).await.unwrap().cpu_micros;
            // A kernel of its own looks at clocks.
            let most = if by == By::RUNSC { before + 100_000 } else { before };
            assert!(now <= most, "a frozen sandbox uses a processor: {before} µs, {now} µs");
        }
        world.provider.thaw(living.spec.id).await.unwrap();
    }
    living.run(USER, "true").await;
    living.destroy().await;
}

async fn every_limit_reaches_the_kernel(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let memory = LIMITS.memory_bytes.to_string();
    // A kernel of its own takes more than there are inside, where the limit is tried by the conformance suite.
    let processes = by.kernel().outside(&LIMITS).to_string();
    assert_eq!(processes == "64", by != By::RUNSC);
    let expected = [
        ("memory", "memory.limit_in_bytes", memory.as_str()),
        ("memory", "memory.memsw.limit_in_bytes", &memory),
        ("memory", "memory.kmem.tcp.limit_in_bytes", &memory),
        ("cpu", "cpu.cfs_quota_us", "200000"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("pids", "pids.max", &processes),
        ("", "memory.max", &memory),
        ("", "memory.swap.max", "0"),
        ("", "cpu.max", "200000 100000"),
    ];
    let mut looked_at = 0;
    for (controller, file, value) in expected {
        // A machine has one version of each; an engine makes a group of its own in the one that it is given.
        let outer = group(&living, controller);
        let inner = fs::read_dir(&outer).into_iter().flatten().flatten();
        let inner = inner.map(|entry| entry.path()).filter(|path| path.is_dir());
        let found: Vec<String> = inner
            .chain([outer.clone()])
            .filter_map(|folder| fs::read_to_string(folder.join(file)).ok())
            .map(|found| found.trim().to_owned())
            .collect();
        if !found.is_empty() {
            assert!(
                found.iter().any(|found| found == value),
                "{controller} {file}: {found:?}"
            );
            looked_at += 1;
        }
    }
    assert!(looked_at >= 4, "only {looked_at} limits were found");
    living.destroy().await;
}

fn group(living: &Living, controller: &str) -> PathBuf {
    PathBuf::from("/sys/fs/cgroup")
        .join(controller)
        .join("belljar")
        .join(living.spec.id.to_string())
}

async fn a_dead_runtime_is_a_dead_sandbox(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    testkit::run(std::process::Command::new("kill").args(["-9", &living.pid(&world).to_string()]));
    let died = testkit::eventually_async("the sandbox is dead", async || {
        let status = world.provider.status(living.spec.id).await.unwrap();
        matches!(status.state, SandboxState::Dead { .. }).then_some(status)
    })
    .await;
    assert!(world.provider.list().await.unwrap().contains(&died));
    assert!(matches!(
        world.provider.freeze(living.spec.id).await,
        Err(sandbox::ProviderError::Dead { .. })
    ));
    living.destroy().await;
    assert!(world.files().is_empty());
}

#[tokio::test]
async fn a_runtime_that_shouts_takes_nothing_from_others() {
    let world = World::new(DiskChoice::Auto);
    let living = world.create().await;
    let (said, code) = living
        .attempt(RUNTIME, "echo these are my words >&2; head -c 100000000 /dev/zero >&2")
        .await;
    assert_ne!(code, 0, "{said}");
    let longer = "import os; os.ftruncate(2, 1 << 40)";
    assert_ne!(living.attempt(RUNTIME, &format!("python3 -c '{longer}'")).await.1, 0);
    let folder = world.config.run.join("sandboxes").join(living.spec.id.to_string());
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().len() < 100_000, "{}", entry.path().display());
    }
    testkit::run(std::process::Command::new("kill").args(["-9", &living.pid(&world).to_string()]));
    let reason = testkit::eventually_async("the sandbox is dead", async || {
        match world.provider.status(living.spec.id).await.unwrap().state {
            SandboxState::Dead { reason } => Some(reason),
            _ => None,
        }
    })
    .await;
    assert!(reason.contains("these are my words"), "{reason}");
    living.destroy().await;
}

async fn all_sandboxes_together_leave_the_machine_some_room(by: By) {
    let world = World::by(by, DiskChoice::Auto);
    let living = world.create().await;
    let limit = |files: [(&str, &str); 2]| {
        let found = files.into_iter().find_map(|(controller, file)| {
            let all = group(&living, controller).parent().unwrap().join(file);
            fs::read_to_string(all).ok()
        });
        found.unwrap().trim().parse::<u64>().unwrap()
    };
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    let memory = limit([("memory", "memory.limit_in_bytes"), ("", "memory.max")]);
    assert!(
        (total * 1_024 / 3..total * 1_024).contains(&memory),
        "{memory} of {total} kB"
    );
    let pid_max: u64 = fs::read_to_string("/proc/sys/kernel/pid_max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pids = limit([("pids", "pids.max"), ("", "pids.max")]);
    assert!(pids <= pid_max / 2, "{pids} of {pid_max}");
    living.destroy().await;
}
