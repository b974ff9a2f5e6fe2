//! Processors, memory and processes are limited, and a sandbox at its limits harms itself alone.

use std::fs;
use std::path::PathBuf;

use sandbox::{SandboxProvider, SandboxState};
use sandbox_oci::DiskChoice;

use crate::world::{LIMITS, Living, RUNTIME, USER, World};

#[tokio::test]
async fn memory_ends_inside_alone() {
    let world = World::new(DiskChoice::Auto);
    let (greedy, neighbour) = (world.create().await, world.create().await);
    let (said, code) = greedy
        .attempt(
            USER,
            "echo 1000 > /proc/self/oom_score_adj; exec python3 -c 'x = bytearray(600 << 20); print(len(x))'",
        )
        .await;
    assert!(code != 0 && !said.contains("629145600"), "{said}");
    // Files in memory are memory too.
    let (said, code) = greedy
        .attempt(
            USER,
            "echo 1000 > /proc/self/oom_score_adj; exec head -c 600000000 /dev/zero > /tmp/big",
        )
        .await;
    assert_ne!(code, 0, "{said}");
    greedy.run(USER, "rm -f /tmp/big").await;
    for living in [&greedy, &neighbour] {
        let status = world.provider.status(living.spec.id).await.unwrap();
        assert_eq!(status.state, SandboxState::Running);
        living.run(USER, "true").await;
    }
    greedy.destroy().await;
    neighbour.destroy().await;
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_dies_with_its_sandbox() {
    let world = World::new(DiskChoice::Auto);
    let (bomb, neighbour) = (world.create().await, world.create().await);
    let (said, _) = bomb
        .attempt(
            USER,
            "for i in $(seq 200); do sleep 600 > /dev/null 2>&1 & done 2>&1; echo tried",
        )
        .await;
    assert!(said.contains("fork") || said.contains("tried"), "{said}");
    let usage = world.provider.usage(bomb.spec.id).await.unwrap();
    assert!(usage.pids <= LIMITS.pids && usage.pids > LIMITS.pids / 2, "{usage:?}");
    neighbour.run(USER, "for i in 1 2 3 4 5; do true; done").await;
    bomb.destroy().await;
    neighbour.destroy().await;
}

#[tokio::test]
async fn freezing_catches_what_forks_all_the_time() {
    let world = World::new(DiskChoice::Auto);
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
            assert_eq!(now, before, "a frozen sandbox uses a processor");
        }
        world.provider.thaw(living.spec.id).await.unwrap();
    }
    living.run(USER, "true").await;
    living.destroy().await;
}

#[tokio::test]
async fn every_limit_reaches_the_kernel() {
    let world = World::new(DiskChoice::Auto);
    let living = world.create().await;
    let memory = LIMITS.memory_bytes.to_string();
    let expected = [
        ("memory", "memory.limit_in_bytes", memory.as_str()),
        ("memory", "memory.memsw.limit_in_bytes", &memory),
        ("memory", "memory.kmem.tcp.limit_in_bytes", &memory),
        ("cpu", "cpu.cfs_quota_us", "200000"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("pids", "pids.max", "64"),
        ("", "memory.max", &memory),
        ("", "memory.swap.max", "0"),
        ("", "cpu.max", "200000 100000"),
    ];
    let mut looked_at = 0;
    for (controller, file, value) in expected {
        let path = group(&living, controller).join(file);
        // A machine has one version of each.
        if let Ok(found) = fs::read_to_string(&path) {
            assert_eq!(found.trim(), value, "{}", path.display());
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

#[tokio::test]
async fn a_dead_runtime_is_a_dead_sandbox() {
    let world = World::new(DiskChoice::Auto);
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

#[tokio::test]
async fn all_sandboxes_together_leave_the_machine_some_room() {
    let world = World::new(DiskChoice::Auto);
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
