//! The provider as control sees it: one that may be started anew.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use domain::{SandboxId, SessionId, SnapshotId};
use lifecycle::Stop;
use sandbox::{
    ImageDigest, ImageStatus, Kept, ProviderError, SandboxProvider, SandboxSpec, SandboxStatus, SandboxUsage,
    Simulator, SnapshotStatus, Snapshots,
};
use tokio::sync::{Semaphore, broadcast};

pub(crate) struct Host {
    simulator: Mutex<Arc<Simulator>>,
    /// Told of each step as it begins.
    steps: broadcast::Sender<&'static str>,
    /// Closed where snapshots are not held up.
    snapshots: Mutex<Arc<Semaphore>>,
    /// The step that is to wait; told when it has begun, and when it may go on.
    held: Mutex<Option<(&'static str, Stop, Stop)>>,
    /// Steps that are to fail, each as often as it stands here.
    failing: Mutex<Vec<&'static str>>,
    /// Steps that are to be taken without anybody hearing of it, each as often as it stands here.
    unheard: Mutex<Vec<&'static str>>,
    /// Snapshots under way, and the most that there were at once.
    under_way: Mutex<(usize, usize)>,
    /// Closed where it is told at once that an image was made.
    commits: Mutex<Arc<Semaphore>>,
}

impl Host {
    pub(crate) fn new(simulator: Arc<Simulator>) -> Self {
        Self {
            simulator: Mutex::new(simulator),
            steps: broadcast::Sender::new(1_024),
            snapshots: Mutex::new(closed()),
            held: Mutex::default(),
            failing: Mutex::default(),
            unheard: Mutex::default(),
            under_way: Mutex::default(),
            commits: Mutex::new(closed()),
        }
    }

    /// The next step of this name waits from now on, as soon as it begins, until it is released.
    pub(crate) fn hold(&self, step: &'static str) -> HeldStep {
        let (begun, open) = (Stop::new(), Stop::new());
        *self.held.lock().unwrap() = Some((step, begun.clone(), open.clone()));
        HeldStep { begun, open }
    }

    /// The next steps of this name fail, so many.
    pub(crate) fn fail(&self, step: &'static str, times: usize) {
        self.failing.lock().unwrap().extend(vec![step; times]);
    }

    /// The next step of this name is taken, and its answer is lost.
    pub(crate) fn lose_answer(&self, step: &'static str) {
        self.unheard.lock().unwrap().push(step);
    }

    /// Whether every answer was lost that is to be.
    pub(crate) fn answers(&self) -> bool {
        self.unheard.lock().unwrap().is_empty()
    }

    /// Each snapshot makes the session's sandbox stand still from now on, until snapshots are let go on.
    pub(crate) fn hold_snapshots(&self) {
        *self.snapshots.lock().unwrap() = Arc::new(Semaphore::new(0));
    }

    pub(crate) fn let_snapshots_go_on(&self) {
        self.snapshots.lock().unwrap().close();
    }

    pub(crate) fn most_snapshots_at_once(&self) -> usize {
        self.under_way.lock().unwrap().1
    }

    /// Images are made, and nobody is told, until they are let go on.
    pub(crate) fn hold_commits(&self) {
        *self.commits.lock().unwrap() = Arc::new(Semaphore::new(0));
    }

    pub(crate) fn let_commits_go_on(&self) {
        self.commits.lock().unwrap().close();
    }

    /// It dies and is started anew: its sandboxes live on, the sockets of their links are made again.
    pub(crate) fn restart(&self) {
        let mut simulator = self.simulator.lock().unwrap();
        *simulator = Arc::new(simulator.restarted().unwrap());
    }

    fn present(&self) -> Arc<Simulator> {
        Arc::clone(&self.simulator.lock().unwrap())
    }

    /// Waits until a step of this name begins, from this call on.
    pub(crate) fn begins(&self, step: &str) -> impl Future<Output = ()> {
        let mut steps = self.steps.subscribe();
        async move { testkit::within(step, async { while steps.recv().await.unwrap() != step {} }).await }
    }

    async fn step(&self, name: &'static str) -> Result<Arc<Simulator>, ProviderError> {
        // Nobody may be listening.
        let _ = self.steps.send(name);
        let held = self.held.lock().unwrap().take_if(|(held, ..)| *held == name);
        if let Some((_, begun, open)) = held {
            begun.cancel();
            open.cancelled().await;
        }
        let mut failing = self.failing.lock().unwrap();
        if let Some(place) = failing.iter().position(|failing| *failing == name) {
            failing.swap_remove(place);
            return Err(ProviderError::failed(name, std::io::Error::other("it is to fail")));
        }
        drop(failing);
        Ok(self.present())
    }

    /// What is heard of a step that was taken.
    fn heard<T>(&self, name: &'static str, said: Result<T, ProviderError>) -> Result<T, ProviderError> {
        let mut unheard = self.unheard.lock().unwrap();
        match unheard.iter().position(|unheard| *unheard == name) {
            Some(place) => {
                unheard.swap_remove(place);
                said?;
                Err(ProviderError::Unavailable("the connection broke".to_owned()))
            }
            None => said,
        }
    }
}

/// A step that waits.
pub(crate) struct HeldStep {
    begun: Stop,
    open: Stop,
}

impl HeldStep {
    /// Waits until it has begun.
    pub(crate) async fn begun(&self) {
        testkit::within("the step to begin", self.begun.cancelled()).await;
    }

    /// Lets it go on.
    pub(crate) fn release(&self) {
        self.open.cancel();
    }
}

fn closed() -> Arc<Semaphore> {
    let semaphore = Semaphore::new(0);
    semaphore.close();
    Arc::new(semaphore)
}

#[async_trait]
impl SandboxProvider for Host {
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let said = self.step("create").await?.create(spec).await;
        self.heard("create", said)
    }

    async fn link(&self, id: SandboxId) -> Result<UnixListener, ProviderError> {
        self.present().link(id).await
    }

    async fn assign(&self, id: SandboxId, session: SessionId) -> Result<SandboxStatus, ProviderError> {
        let said = self.step("assign").await?.assign(id, session).await;
        self.heard("assign", said)
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), ProviderError> {
        let said = self.step("freeze").await?.freeze(id).await;
        self.heard("freeze", said)
    }

    async fn thaw(&self, id: SandboxId) -> Result<(), ProviderError> {
        let said = self.step("thaw").await?.thaw(id).await;
        self.heard("thaw", said)
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), ProviderError> {
        let said = self.step("destroy").await?.destroy(id).await;
        self.heard("destroy", said)
    }

    /// To whoever holds it up, or has it fail, it is what it is where nothing is kept.
    async fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        let said = self.step("destroy").await?.hibernate(id).await;
        self.heard("destroy", said)
    }

    async fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        let said = self.step("wake").await?.wake(spec).await;
        self.heard("wake", said)
    }

    async fn forget(&self, session: SessionId) -> Result<(), ProviderError> {
        self.present().forget(session).await
    }

    async fn status(&self, id: SandboxId) -> Result<SandboxStatus, ProviderError> {
        self.present().status(id).await
    }

    async fn words(&self, id: SandboxId) -> Result<String, ProviderError> {
        self.present().words(id).await
    }

    async fn usage(&self, id: SandboxId) -> Result<SandboxUsage, ProviderError> {
        self.present().usage(id).await
    }

    async fn list(&self) -> Result<Vec<SandboxStatus>, ProviderError> {
        self.present().list().await
    }

    async fn disks(&self) -> Result<Vec<SessionId>, ProviderError> {
        self.present().disks().await
    }

    async fn remove_disk(&self, session: SessionId) -> Result<(), ProviderError> {
        let said = self.present().remove_disk(session).await;
        self.heard("remove_disk", said)
    }

    async fn snapshot(&self, session: SessionId, snapshot: SnapshotId) -> Result<SnapshotStatus, ProviderError> {
        let simulator = self.present();
        let held = Arc::clone(&self.snapshots.lock().unwrap());
        let mut still = None;
        if !held.is_closed() {
            let all = simulator.list().await?;
            still = all.into_iter().find(|status| status.session == session);
            if let Some(status) = &still {
                simulator.freeze(status.id).await?;
            }
        }
        {
            let mut under_way = self.under_way.lock().unwrap();
            under_way.0 += 1;
            under_way.1 = under_way.1.max(under_way.0);
        }
        let _ = self.steps.send("snapshot");
        // It gives no permit, and is closed one day.
        let _ = held.acquire().await;
        let kept = simulator.snapshot(session, snapshot).await;
        self.under_way.lock().unwrap().0 -= 1;
        if let Some(status) = still {
            simulator.thaw(status.id).await?;
        }
        self.heard("snapshot", kept)
    }

    async fn restore(&self, snapshot: SnapshotId, session: SessionId) -> Result<(), ProviderError> {
        let said = self.step("restore").await?.restore(snapshot, session).await;
        self.heard("restore", said)
    }

    async fn remove_snapshot(&self, snapshot: SnapshotId) -> Result<(), ProviderError> {
        let said = self.present().remove_snapshot(snapshot).await;
        self.heard("remove_snapshot", said)
    }

    async fn snapshots(&self) -> Result<Snapshots, ProviderError> {
        self.present().snapshots().await
    }

    async fn commit(&self, id: SandboxId) -> Result<ImageDigest, ProviderError> {
        let commits = Arc::clone(&self.commits.lock().unwrap());
        let made = self.step("commit").await?.commit(id).await;
        // Nobody hears of it as long as it is held.
        let _ = self.steps.send("committed");
        let _ = commits.acquire().await;
        made
    }

    async fn images(&self) -> Result<Vec<ImageStatus>, ProviderError> {
        self.present().images().await
    }

    async fn remove_image(&self, image: &ImageDigest) -> Result<(), ProviderError> {
        self.present().remove_image(image).await
    }
}
