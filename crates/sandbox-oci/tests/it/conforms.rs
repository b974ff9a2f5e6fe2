//! The conformance suite, on each OCI runtime and each kind of disk.

use std::sync::Arc;

use sandbox::SandboxProvider;
use sandbox::conformance::{self, Subject};
use sandbox_oci::{DiskChoice, DiskKind, OciProvider};

use crate::world::{LIMITS, World, words};

async fn conforms(command: &str, disk: DiskChoice) -> DiskKind {
    let world = World::with(disk, |config| config.command = command.into());
    let kind = world.provider.disk_kind();
    let config = world.config.clone();
    let image = world.image.clone();
    // From here on the suite alone holds the provider, so that a restart really ends it.
    let provider = Arc::clone(&world.provider);
    let remains = world.give_up();
    conformance::run(Subject {
        provider,
        image,
        limits: LIMITS,
        restart: Box::new(move |old| {
            let config = config.clone();
            Box::pin(async move {
                drop(old);
                let opened = tokio::task::spawn_blocking(|| OciProvider::open(config)).await.unwrap();
                Arc::new(opened.unwrap()) as Arc<dyn SandboxProvider>
            })
        }),
    })
    .await;
    drop(remains);
    kind
}

#[tokio::test]
async fn runc_on_btrfs_conforms() {
    let kind = conforms("runc", DiskChoice::Btrfs).await;
    assert!(matches!(kind, DiskKind::Btrfs | DiskKind::BtrfsFile), "{kind:?}");
}

#[tokio::test]
async fn runc_on_ext4_conforms() {
    assert_eq!(conforms("runc", DiskChoice::Ext4).await, DiskKind::Ext4Files);
}

#[tokio::test]
async fn crun_conforms_where_it_runs() {
    if std::process::Command::new("crun").arg("--version").output().is_err() {
        eprintln!("crun is not installed here, so it is not tried");
        return;
    }
    // crun refuses cgroups of both versions side by side if version 2 has controllers of its own there.
    let beside = std::fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers").unwrap_or_default();
    if beside.trim().is_empty() {
        conforms("crun", DiskChoice::Auto).await;
        return;
    }
    let world = World::with(DiskChoice::Ext4, |config| config.command = "crun".into());
    let refused = world.provider.create(&world.spec()).await.unwrap_err();
    assert!(words(&refused).contains("hybrid"), "{}", words(&refused));
    assert_eq!(world.files(), [] as [&std::path::Path; 0]);
}
