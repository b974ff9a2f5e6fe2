//! What the store says of snapshots and what the host has are brought together: when this process begins, and for as long as it
//! lives.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use causes::with_causes;
use domain::SnapshotId;
use store::Asker;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::KeepError;
use crate::housing::Suspects;
use crate::{Control, ControlError};

/// How often the two are compared, and how long to rest when the host does not answer.
const PERIOD: Duration = Duration::from_secs(600);
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long one side may know what the other does not. An operator who has put an old copy of the store in its place, or
/// another host agent, has time to notice.
const GRACE: Duration = Duration::from_secs(3_600);

/// What only one side knows.
struct Odd {
    files: Suspects<SnapshotId>,
    rows: Suspects<SnapshotId>,
}

impl Control {
    /// Forgets what was never finished, now; and looks what the host has, as soon as it answers.
    pub(crate) async fn begin_mending(&self) -> Result<(), ControlError> {
        self.0.store.forget_half_snapshots(Asker::System).await?;
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut odd = Odd {
                files: Suspects::default(),
                rows: Suspects::default(),
            };
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                while let Err(error) = control.mend(&mut odd).await {
                    tracing::warn!(error = with_causes(&error), "could not look after the snapshots yet");
                    sleep(ASK_AGAIN).await;
                }
            }
        });
        Ok(())
    }

    /// Removes files of which the store has known nothing for long, and forgets rows whose files the host has not had for
    /// long: those of snapshots that were never finished among them.
    async fn mend(&self, odd: &mut Odd) -> Result<(), KeepError> {
        let found = self.0.housing.provider.snapshots().await?;
        let before = self.0.disks.shared.swap(found.shared, Ordering::SeqCst);
        if before != found.shared
            && let Some(words) = self.why_none_after_runs()
        {
            tracing::info!("snapshots: {words}");
        }
        let rows = self.0.store.all_snapshots(Asker::System).await?;
        let known: BTreeSet<SnapshotId> = rows.iter().map(|snapshot| snapshot.id).collect();
        let there: BTreeSet<SnapshotId> = found.kept.iter().map(|status| status.id).collect();
        let nobodys: HashSet<_> = there.difference(&known).copied().collect();
        for snapshot in odd.files.ripe(nobodys, GRACE) {
            tracing::warn!(%snapshot, "removing the files of a snapshot that nobody knows");
            self.drop_files(snapshot).await;
        }
        let empty = rows
            .iter()
            .filter(|snapshot| !snapshot.kept || !there.contains(&snapshot.id));
        let ripe = odd.rows.ripe(empty.map(|snapshot| snapshot.id).collect(), GRACE);
        for snapshot in rows.iter().filter(|snapshot| ripe.contains(&snapshot.id)) {
            tracing::warn!(snapshot = %snapshot.id, session = %snapshot.session, "a snapshot has no files; it is forgotten");
            self.forget(snapshot).await;
        }
        Ok(())
    }
}
