//! The conformance suite, on each OCI runtime and each kind of disk.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use containers::kernel::Kernel;
use containers::{DiskChoice, DiskKind};
use sandbox::SandboxProvider;
use sandbox::conformance::{self, Subject};

use crate::killed;
use crate::world::{By, LIMITS, Living, USER, World, controllers_beside, full, words};

async fn conforms(by: By, disk: DiskChoice) -> DiskKind {
    let world = World::by(by, disk);
    let kind = world.provider.disk_kind();
    let (config, image) = (world.config.clone(), world.image.clone());
    let kill = killed::by(by, &config);
    let (run, data) = (config.run.clone(), config.data.clone());
    // From here on the suite alone holds the provider, so that a restart really ends it.
    let provider = Arc::clone(&world.provider);
    let remains = world.give_up();
    conformance::run(Subject {
        provider,
        image,
        limits: LIMITS,
        shell: Box::new(|provider, status, command| {
            Box::pin(async move {
                let living = Living::of(provider, status);
                let command = format!("cd /workspace\nexport KNOWLEDGE=/knowledge\n{command}");
                living.attempt_as_written(USER, &command).await
            })
        }),
        kill: Ok(kill),
        confined: Ok(()),
        disk_limited: match kind {
            DiskKind::Folders => Err("a plain folder has none"),
            _ => Ok(()),
        },
        own_uids: match by {
            By::Oci(_) => Ok(()),
            By::Docker | By::DockerAt(_) | By::DockerInVolume => {
                Err("this engine maps no users; what is shown to each is its own socket")
            }
        },
        keeps: match by.kernel() {
            Kernel::Own => Ok(()),
            Kernel::OfTheMachine(_) => Err("this machine's kernel keeps none"),
        },
        at_once: if full() || (by, disk) == (By::RUNC, DiskChoice::Btrfs) {
            100
        } else {
            16
        },
        restart: Box::new(move |old| {
            let config = config.clone();
            Box::pin(async move {
                drop(old);
                let opened = tokio::task::spawn_blocking(move || by.open(config)).await.unwrap();
                Arc::new(opened.unwrap()) as Arc<dyn SandboxProvider>
            })
        }),
    })
    .await;
    for folder in [run.join("sandboxes"), run.join("oci"), data.join("asleep")] {
        let left: Vec<_> = fs::read_dir(&folder).into_iter().flatten().collect();
        assert!(left.is_empty(), "{}: {left:?}", folder.display());
    }
    let images: Vec<_> = fs::read_dir(data.join("images"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(
        images.iter().all(|path| !path.to_string_lossy().contains("half-")),
        "{images:?}"
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*run.join("sandboxes").to_string_lossy()), "{mounts}");
    drop(remains);
    kind
}

#[tokio::test]
async fn runc_on_btrfs_conforms() {
    let kind = conforms(By::RUNC, DiskChoice::Btrfs).await;
    assert!(matches!(kind, DiskKind::Btrfs | DiskKind::BtrfsFile), "{kind:?}");
}

#[tokio::test]
async fn runc_on_ext4_conforms() {
    assert_eq!(conforms(By::RUNC, DiskChoice::Ext4).await, DiskKind::Ext4Files);
}

#[tokio::test]
async fn docker_conforms() {
    conforms(By::Docker, DiskChoice::Auto).await;
}

#[tokio::test]
async fn docker_on_ext4_conforms() {
    assert_eq!(conforms(By::Docker, DiskChoice::Ext4).await, DiskKind::Ext4Files);
}

/// What is mounted where the host agent is, as it is in a container, is not seen by the engine.
#[tokio::test]
async fn docker_in_a_volume_conforms() {
    if By::DockerInVolume.is_here() {
        assert_eq!(conforms(By::DockerInVolume, DiskChoice::Auto).await, DiskKind::Folders);
    }
}

#[tokio::test]
async fn runc_on_folders_conforms() {
    assert_eq!(conforms(By::RUNC, DiskChoice::Folders).await, DiskKind::Folders);
}

#[tokio::test]
async fn youki_conforms() {
    if By::YOUKI.is_here() {
        conforms(By::YOUKI, DiskChoice::Auto).await;
    }
}

#[tokio::test]
async fn runsc_conforms() {
    if By::RUNSC.is_here() {
        conforms(By::RUNSC, DiskChoice::Auto).await;
    }
}

#[tokio::test]
async fn runsc_on_ext4_conforms() {
    if By::RUNSC.is_here() {
        assert_eq!(conforms(By::RUNSC, DiskChoice::Ext4).await, DiskKind::Ext4Files);
    }
}

/// Gives version 1 the one controller that version 2 has beside it, for as long as a program runs that sees the mount.
const WITHOUT_CONTROLLERS_BESIDE: &str = r#"
place=/sys/fs/cgroup/hugetlb
mkdir -p $place && mount -t cgroup -o hugetlb none $place || exit 99
"$@"
ended=$?
# What was removed is gone only a moment later, and until then unmounting gives nothing back.
for try in $(seq 100); do
    find $place -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null
    umount $place
    sleep 0.3
    grep -q hugetlb /sys/fs/cgroup/unified/cgroup.controllers && break
    mount -t cgroup -o hugetlb none $place
done
rmdir $place
exit $ended
"#;

/// Conformance, and every test that is run with each kind of maker.
#[tokio::test]
async fn crun_is_tried_where_it_runs() {
    if By::CRUN.is_here() {
        conforms(By::CRUN, DiskChoice::Auto).await;
        return;
    }
    let beside = controllers_beside();
    if beside.is_empty() || Command::new("crun").arg("--version").output().is_err() {
        return;
    }
    let world = World::by(By::CRUN, DiskChoice::Ext4);
    match world.provider.create(&world.spec()).await {
        Ok(made) => world.provider.destroy(made.id).await.unwrap(),
        Err(refused) => assert!(words(&refused).contains("hybrid"), "{}", words(&refused)),
    }
    assert_eq!(world.files(), [] as [&std::path::Path; 0]);
    drop(world);
    if beside != "hugetlb" {
        println!("{beside} cannot be given to version 1 for a while: so crun is not tried");
        return;
    }
    let mut again = Command::new("unshare");
    again.args(["--mount", "sh", "-c", WITHOUT_CONTROLLERS_BESIDE, "sh"]);
    again.arg(std::env::current_exe().unwrap());
    again.args(["--nocapture", "crun"]);
    let output = tokio::task::spawn_blocking(move || again.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(99) {
        println!("hugetlb cannot be mounted as version 1: so crun is not tried");
        return;
    }
    assert!(output.status.success() && !said.contains("not tried"), "{said}");
    let passed = said
        .split(" passed")
        .next()
        .and_then(|before| before.rsplit(' ').next());
    let passed: usize = passed.and_then(|number| number.parse().ok()).unwrap_or(0);
    assert!(passed > 1, "{said}");
    for line in said.lines().filter(|line| line.contains("p50")) {
        println!("{line}");
    }
}
