//! The keeping of files in a simulated sandbox: the real process that watches, as a thread, and what PID 1 really does for it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::SandboxId;
use lifecycle::Tasks;
use link::client::Client;
use protocol::{DiskId, SyncCall, SyncRequest};
use tokio::sync::{mpsc, oneshot, watch};

use super::inside::Keeps;

/// The ways to have everything kept, by sandbox.
type Orders = Arc<Mutex<HashMap<SandboxId, Way>>>;

/// The way to one sandbox's, and the disk that it keeps.
type Way = (mpsc::Sender<runtime::Flush>, watch::Sender<Option<DiskId>>);

/// The real keeping of files, for simulated sandboxes.
pub(super) fn keeps() -> Keeps {
    let orders = Orders::default();
    let of_flush = Arc::clone(&orders);
    Keeps {
        begin: Box::new(move |sandbox, client, workspace, tasks| begin(&orders, sandbox, client, workspace, tasks)),
        flush: Box::new(move |sandbox| {
            let order = of_flush.lock().unwrap().get(&sandbox).map(|(order, _)| order.clone());
            Box::pin(flush(order))
        }),
    }
}

/// Keeps files, once, where the control plane does.
fn begin(orders: &Orders, sandbox: SandboxId, client: &Client, workspace: &Path, tasks: &Tasks) {
    let (client, workspace) = (client.clone(), workspace.to_owned());
    let mut ordered = {
        let mut orders = orders.lock().unwrap();
        if let Some((known, disk)) = orders.get(&sandbox)
            && !known.is_closed()
        {
            let disk = disk.borrow().clone();
            tasks.spawn_until_stopped(async move {
                let Some(disk) = disk else { return };
                let request = SyncRequest::Begin;
                // Where it fails nothing is kept, and the test says so.
                let _ = client.sync(&SyncCall { disk, request }).await;
            });
            return;
        }
        let (order, ordered) = mpsc::channel(8);
        let disk = watch::Sender::new(None);
        orders.insert(sandbox, (order, disk.clone()));
        (ordered, disk)
    };
    tasks.spawn_until_stopped(async move {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let settings = sync::Settings {
            settle: Duration::from_millis(20),
            look_again: Duration::from_secs(1),
        };
        std::thread::spawn(move || sync::run(far, &workspace, settings));
        let near = tokio::net::UnixStream::from_std(near).unwrap();
        let filled = watch::Sender::new(None);
        runtime::carry(&client, near, &ordered.1, &mut ordered.0, &filled).await;
    });
}

async fn flush(order: Option<mpsc::Sender<runtime::Flush>>) -> Result<(), String> {
    let (answer, answered) = oneshot::channel();
    let order = order.ok_or("nothing is kept")?;
    order.send(answer).await.map_err(|_| "nothing is kept any more")?;
    match answered.await {
        Ok(0) => Ok(()),
        Ok(left) => Err(format!("{left} files were not kept")),
        Err(_) => Err("lost".to_owned()),
    }
}
