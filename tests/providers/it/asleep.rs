//! Processes that are kept while nobody uses their sandbox, by who can: gVisor.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use containers::DiskChoice;
use domain::SnapshotId;
use sandbox::{Kept, Limits, ProviderError, SandboxProvider, SandboxSpec};

use crate::leftovers::Traces;
use crate::system_calls::the_list_holds;
use crate::world::{By, LIMITS, Living, ROOT, USER, World, words};

/// Counts in its memory; the file says how far it has come.
const COUNT: &str = "cd /workspace && nohup python3 -c 'import os, time; n = 0
while True: n += 1; open(\"new\", \"w\").write(str(n)); os.replace(\"new\", \"count\"); time.sleep(0.01)
' > /dev/null 2>&1 < /dev/null &";

async fn counts(living: &Living) {
    living.attempt_as_written(USER, COUNT).await;
    counted(living).await;
}

async fn counted(living: &Living) -> u64 {
    loop {
        if let Ok(count) = living.attempt(USER, "cat /workspace/count").await.0.parse() {
            return count;
        }
    }
}

async fn counts_on(living: &Living, from: u64) {
    let further = async {
        loop {
            let now = counted(living).await;
            assert!(now >= from, "it counts from {now}, and had come to {from}");
            if now > from {
                return;
            }
        }
    };
    testkit::within("the program to count on", further).await;
}

async fn hibernate(living: &Living) -> Kept {
    living
        .provider
        .hibernate(living.spec.id)
        .await
        .unwrap_or_else(|error| panic!("{}", words(&error)))
}

/// What is wanted of the session's next sandbox.
fn next(living: &Living) -> SandboxSpec {
    SandboxSpec {
        id: domain::SandboxId::new(),
        ..living.spec.clone()
    }
}

async fn wake(living: &Living) -> Living {
    let spec = next(living);
    let woken = living.provider.wake(&spec).await;
    let status = woken.unwrap_or_else(|error| panic!("{}", words(&error)));
    Living {
        provider: Arc::clone(&living.provider),
        spec,
        status,
    }
}

fn asleep(world: &World) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(world.config.data.join("asleep")).into_iter().flatten();
    all.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn what_is_kept_is_nobody_s_but_roots_and_nothing_else_is_left() {
    if !By::RUNSC.is_here() {
        return;
    }
    let world = World::by(By::RUNSC, DiskChoice::Auto);
    let living = world.create().await;
    counts(&living).await;
    let traces = Traces::of(&living);
    let began = Instant::now();
    assert_eq!(hibernate(&living).await, Kept::Processes);
    let took = began.elapsed();
    traces.must_be_gone();
    assert!(world.files().is_empty(), "{:?}", world.files());
    let kept = asleep(&world);
    assert_eq!(
        kept,
        [world.config.data.join("asleep").join(living.spec.session.to_string())]
    );
    for folder in [world.config.data.join("asleep"), kept[0].clone()] {
        let about = fs::metadata(&folder).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o077), (0, 0), "{}", folder.display());
    }
    let files = fs::read_dir(kept[0].join("kept")).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();

    // Its user ids are nobody else's meanwhile, and it has them again.
    let other = world.create().await;
    assert_ne!(other.status.root_uid, living.status.root_uid);
    other.destroy().await;
    // Neither a snapshot nor a fork has any of it.
    let snapshot = SnapshotId::new();
    world.provider.snapshot(living.spec.session, snapshot).await.unwrap();
    let fork = world.spec();
    world.provider.restore(snapshot, fork.session).await.unwrap();
    let fork = world.create_as(&fork).await;
    let (found, _) = fork
        .attempt(ROOT, "find / -xdev -name checkpoint.img -o -xdev -name 'pages*.img'")
        .await;
    assert_eq!(found, "");
    fork.destroy().await;
    world.provider.remove_snapshot(snapshot).await.unwrap();

    let began = Instant::now();
    let woken = wake(&living).await;
    println!(
        "a program was kept in {took:?} and {} MiB, and went on in {:?}",
        bytes >> 20,
        began.elapsed()
    );
    assert_eq!(woken.status.root_uid, living.status.root_uid);
    assert!(asleep(&world).is_empty(), "{:?}", asleep(&world));
    let traces = Traces::of(&woken);
    woken.destroy().await;
    traces.must_be_gone();
}

#[tokio::test]
async fn what_goes_on_is_as_confined_as_it_was() {
    if !By::RUNSC.is_here() {
        return;
    }
    let world = World::by(By::RUNSC, DiskChoice::Auto);
    let living = world.create().await;
    counts(&living).await;
    let (status, limits) = (
        "cat /proc/self/status | grep -E '^(Cap|NoNewPrivs|Seccomp)'",
        "ulimit -a",
    );
    let mut before = Vec::new();
    for command in [
        status,
        limits,
        "id",
        "cat /proc/mounts",
        "ls -ld /run/belljar /workspace",
        "cat /proc/net/dev",
    ] {
        before.push((command, living.run(USER, command).await));
    }
    let count = counted(&living).await;
    assert_eq!(hibernate(&living).await, Kept::Processes);
    let woken = wake(&living).await;
    counts_on(&woken, count).await;
    for (command, said) in before {
        if command != "cat /proc/net/dev" {
            assert_eq!(woken.run(USER, command).await, said, "{command}");
        }
    }
    the_list_holds(&woken).await;
    // No way out but to what listens inside, and the link is root's alone.
    let (said, code) = woken
        .attempt(USER, "cat /run/belljar/link.sock 2>&1; ls /run/belljar 2>&1")
        .await;
    assert!(code != 0 && said.contains("denied"), "{said}");
    let interfaces = woken.run(USER, "tail -n +3 /proc/net/dev | cut -d: -f1").await;
    assert_eq!(interfaces.trim(), "lo");
    // The limits of memory and processes are those of its groups, and of its user.
    let (said, code) = woken.attempt(USER, "python3 -c 'x = bytearray(400 << 20)'").await;
    assert_ne!(code, 0, "{said}");
    let status = world.provider.status(woken.spec.id).await.unwrap();
    if matches!(status.state, sandbox::SandboxState::Running) {
        counts_on(&woken, count).await;
    }
    woken.destroy().await;
}

/// Each gets the network that it makes for itself: servers listen as they did, and are reached from inside alone.
#[tokio::test]
async fn servers_listen_again_in_a_network_of_their_own() {
    if !By::RUNSC.is_here() {
        return;
    }
    let world = World::by(By::RUNSC, DiskChoice::Auto);
    let living = world.create().await;
    let server = "cd /workspace && echo words > file && (nohup python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 < /dev/null &)";
    let ask = "python3 -c 'import urllib.request; print(urllib.request.urlopen(\"http://127.0.0.1:8000/file\").read().decode())'";
    living.run(USER, server).await;
    let answers = async |living: &Living| loop {
        let (said, code) = living.attempt(USER, &format!("{ask} 2>/dev/null")).await;
        if code == 0 {
            return said;
        }
    };
    assert_eq!(
        testkit::within("the server to answer", answers(&living)).await.trim(),
        "words"
    );
    assert_eq!(hibernate(&living).await, Kept::Processes);
    let woken = wake(&living).await;
    assert_eq!(
        testkit::within("the server to answer again", answers(&woken))
            .await
            .trim(),
        "words"
    );
    woken.destroy().await;
}

#[tokio::test]
async fn what_was_kept_by_a_program_that_was_replaced_is_gone() {
    if !By::RUNSC.is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
    let runtime = folder.path().join("runtime");
    fs::copy(env!("CARGO_BIN_EXE_sandbox-standin"), &runtime).unwrap();
    let world = World::with_runtime(By::RUNSC, DiskChoice::Auto, &runtime);
    let living = world.create().await;
    assert_eq!(hibernate(&living).await, Kept::Processes);
    // The same bytes, by another file.
    let beside = folder.path().join("beside");
    fs::copy(&runtime, &beside).unwrap();
    fs::rename(&beside, &runtime).unwrap();
    let refused = world.provider.wake(&next(&living)).await;
    assert!(
        matches!(&refused, Err(ProviderError::NothingKept { reason, .. }) if reason.contains("replaced")),
        "{refused:?}"
    );
    assert!(asleep(&world).is_empty(), "{:?}", asleep(&world));
    // One whose own runtime was replaced while it ran is kept for nobody: only the same could go on.
    let living = world.create_as(&next(&living)).await;
    fs::copy(&runtime, &beside).unwrap();
    fs::rename(&beside, &runtime).unwrap();
    hibernate(&living).await;
    let refused = world.provider.wake(&next(&living)).await;
    assert!(matches!(refused, Err(ProviderError::NothingKept { .. })), "{refused:?}");
    world.create_as(&next(&living)).await.destroy().await;
}

/// gVisor's command, except that it fails at this order.
fn fails_at(folder: &Path, order: &str) -> By {
    let command = folder.join("runsc");
    let script = format!(
        "#!/bin/sh\nfor word in \"$@\"; do\n  [ \"$word\" != {order} ] || {{ echo it is to fail >&2; exit 1; }}\ndone\nexec {} \"$@\"\n",
        testkit::program("runsc").display()
    );
    fs::write(&command, script).unwrap();
    fs::set_permissions(&command, Permissions::from_mode(0o755)).unwrap();
    By::Oci(command.to_string_lossy().into_owned().leak())
}

#[tokio::test]
async fn processes_that_cannot_be_kept_end_and_that_is_said() {
    if !By::RUNSC.is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let world = World::by(fails_at(folder.path(), "checkpoint"), DiskChoice::Auto);
    let living = world.create().await;
    counts(&living).await;
    let traces = Traces::of(&living);
    let kept = hibernate(&living).await;
    assert!(
        matches!(&kept, Kept::Nothing { reason: Some(reason) } if reason.contains("it is to fail")),
        "{kept:?}"
    );
    traces.must_be_gone();
    assert!(world.files().is_empty() && asleep(&world).is_empty());
    let refused = world.provider.wake(&next(&living)).await;
    assert!(matches!(refused, Err(ProviderError::NothingKept { .. })), "{refused:?}");
    let again = world.create_as(&next(&living)).await;
    again.run(USER, "test -s /workspace/count").await;
    again.destroy().await;
}

#[tokio::test]
async fn processes_that_cannot_go_on_leave_nothing_and_are_not_tried_twice() {
    if !By::RUNSC.is_here() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let world = World::by(fails_at(folder.path(), "restore"), DiskChoice::Auto);
    let living = world.create().await;
    assert_eq!(hibernate(&living).await, Kept::Processes);
    let refused = world.provider.wake(&next(&living)).await.unwrap_err();
    assert!(words(&refused).contains("it is to fail"), "{}", words(&refused));
    assert!(world.files().is_empty() && asleep(&world).is_empty());
    let refused = world.provider.wake(&next(&living)).await;
    assert!(matches!(refused, Err(ProviderError::NothingKept { .. })), "{refused:?}");
    world.create_as(&next(&living)).await.destroy().await;
}

/// Memory that takes longer to be written than to be used.
#[tokio::test]
async fn much_memory_is_kept_as_little_is() {
    if !By::RUNSC.is_here() {
        return;
    }
    let world = World::by(By::RUNSC, DiskChoice::Auto);
    let limits = Limits {
        memory_bytes: 512 << 20,
        ..LIMITS
    };
    let living = world.create_as(&SandboxSpec { limits, ..world.spec() }).await;
    let holds = "cd /workspace && nohup python3 -c 'import os, hashlib, time
memory = os.urandom(200 << 20); open(\"held\", \"w\").write(hashlib.sha256(memory).hexdigest())
while not os.path.exists(\"go\"): time.sleep(0.01)
open(\"found\", \"w\").write(hashlib.sha256(memory).hexdigest())
' > /dev/null 2>&1 < /dev/null &";
    living.attempt_as_written(USER, holds).await;
    let waits = async |living: &Living, file: &str| loop {
        let (said, code) = living
            .attempt(USER, &format!("test -s /workspace/{file} && cat /workspace/{file}"))
            .await;
        if code == 0 && said.len() == 64 {
            return said;
        }
    };
    let held = testkit::within("memory to be held", waits(&living, "held")).await;
    let began = Instant::now();
    assert_eq!(hibernate(&living).await, Kept::Processes);
    let (took, began) = (began.elapsed(), Instant::now());
    let woken = wake(&living).await;
    println!(
        "200 MiB of memory were kept in {took:?}, and went on in {:?}",
        began.elapsed()
    );
    woken.run(USER, "touch /workspace/go").await;
    assert_eq!(
        testkit::within("memory to be found", waits(&woken, "found")).await,
        held
    );
    woken.destroy().await;
}

/// Files in memory go where the processes go that have some of them open.
#[tokio::test]
async fn files_in_memory_are_kept_with_processes() {
    if !By::RUNSC.is_here() {
        return;
    }
    let world = World::by(By::RUNSC, DiskChoice::Auto);
    let living = world.create().await;
    let holds = "umask 022; cd /tmp && mkdir -p deep/er && echo words > deep/er/file && chmod 640 deep/er/file && ln -s er/file deep/link && mkfifo pipe \
        && ln deep/er/file twin && truncate -s 1G holes && cd /workspace && nohup python3 -c 'import mmap, os, time
log = open(\"/tmp/log\", \"a\", buffering=1); gone = open(\"/tmp/gone\", \"w+\"); gone.write(\"still here\"); gone.flush(); os.unlink(\"/tmp/gone\")
fd = os.open(\"/dev/shm/shared\", os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 4096); shared = mmap.mmap(fd, 4096); n = 0
while True:
    n += 1; log.write(f\"{n}\\n\"); shared[:8] = f\"{n:08}\".encode()
    if os.path.exists(\"/tmp/ask\"): gone.seek(0); open(\"/workspace/answer\", \"w\").write(gone.read() + \" \" + str(n)); break
    time.sleep(0.01)
' > /dev/null 2>&1 < /dev/null &";
    living.attempt_as_written(USER, holds).await;
    let lines = async |living: &Living| loop {
        let (said, _) = living.attempt(USER, "wc -l < /tmp/log").await;
        if let Ok(lines @ 1..) = said.parse::<u64>() {
            return lines;
        }
    };
    let before = testkit::within("the program to write", lines(&living)).await;
    let look = "cd /tmp && find . ! -name log -printf '%P %y %m %U %G %n %s %l\\n' | sort && cat deep/link && [ twin -ef deep/er/file ] && stat -c %b holes";
    let files = living.run(USER, look).await;
    assert_eq!(hibernate(&living).await, Kept::Processes);
    let woken = wake(&living).await;
    assert_eq!(woken.run(USER, look).await, files);
    assert!(testkit::within("the program to write on", lines(&woken)).await >= before);
    woken.run(USER, "touch /tmp/ask").await;
    let answer = async {
        loop {
            let (said, code) = woken.attempt(USER, "cat /workspace/answer").await;
            if code == 0 && !said.is_empty() {
                return said;
            }
        }
    };
    let answer = testkit::within("the program to answer", answer).await;
    let count = answer
        .strip_prefix("still here ")
        .unwrap_or_else(|| panic!("{answer:?}"));
    woken
        .run(
            USER,
            &format!(
                "[ \"$(seq 1 {count})\" = \"$(cat /tmp/log)\" ] && grep -q $(printf %08d {count}) /dev/shm/shared"
            ),
        )
        .await;
    woken.destroy().await;
}
