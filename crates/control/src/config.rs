//! What an operator decides.

use std::time::Duration;

use domain::{Placement, RunLimits, ToolDefinition};
use knowledge::Knowledge;
use policy::Policies;
use sandbox::{ImageDigest, Limits};
use store::Caps;

/// Checked settings; the program that reads them says what a key is called.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model of sessions that name none.
    pub model: String,
    /// Where the loop runs.
    pub placement: Placement,
    /// What a run may use up.
    pub limits: RunLimits,
    /// What may be spent; days are UTC days. What is left out is not capped.
    pub caps: Caps,
    /// The system prompt, whole; where it is left out, each run has one of what it may use.
    pub system: Option<String>,
    /// Every tool, in the order in which the model is told of those that its run may use.
    pub tools: Vec<ToolDefinition>,
    /// Who may do what.
    pub policies: Policies,
    /// What sandboxes are made of at first; [`crate::Control::set_base`] says what came since.
    pub base: Base,
    /// What a sandbox may take.
    pub sandbox: Limits,
    /// An unused sandbox is frozen after this.
    pub freeze_after: Duration,
    /// The processes of an unused sandbox are ended after this; its files are kept.
    pub hibernate_after: Duration,
    /// A hibernated session of which nothing was heard for so long has its disk removed, when all of its files are kept
    /// outside of it; zero: never.
    pub archive_after: Duration,
    /// A program that is started in the background may go on for so long at most, and keeps its sandbox awake meanwhile; zero:
    /// none may be started.
    pub background_time: Duration,
    /// A sandbox whose runtime does not answer for so long is replaced.
    pub hung_after: Duration,
    /// How long a disk may be nobody's. An operator who has put an old copy of the store in its place has time to notice.
    pub disk_grace: Duration,
    /// Sandboxes that are made ahead.
    pub warm: WarmPool,
    /// Sandboxes of one user at the same time. For one more, the one of theirs that was unused the longest is removed.
    pub sandboxes_per_user: usize,
    /// Snapshots after runs that are kept of each session, where they cost next to nothing; 0: none is made.
    pub run_snapshots: u32,
    /// Runs under way at the same time; others wait in the store.
    pub parallel_runs: usize,
    /// Tries of a run to get a sandbox that lasts, before it fails.
    pub attempts: u32,
    /// A run whose holder said nothing for so long is taken over.
    pub lease: Duration,
    /// How long a reply that is under way may go on when the process is to stop.
    pub drain: Duration,
    /// How long a session token is good.
    pub token_life: Duration,
    /// How long a question to a person waits for its answer.
    pub approvals_expire: Duration,
    /// The longest prompt, in bytes.
    pub prompt_bytes: usize,
    /// What all sessions may keep in memory for speed alone, in bytes: their last events, and their histories as models are told
    /// of them. Beyond it those that were used the longest ago let go of theirs.
    pub memory_bytes: usize,
    /// Turns that may wait for reserved money to come free; one more is refused as busy.
    pub budget_queue: usize,
    /// How long they wait.
    pub budget_wait: Duration,
}

/// The image that sandboxes are made of, as long as no generation of it is newer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    /// Which.
    pub image: ImageDigest,
    /// What of it is built anew from time to time; nothing where this is left out.
    pub refresh: Option<Refresh>,
}

impl Base {
    /// An image that stays as it is.
    #[must_use]
    pub fn new(image: ImageDigest) -> Self {
        Self { image, refresh: None }
    }
}

/// An image that is refreshed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refresh {
    /// Its name.
    pub image: String,
    /// What is to be in its `/knowledge`.
    pub knowledge: Knowledge,
}

/// Sandboxes that are made before anybody needs them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WarmPool {
    /// So many are always there.
    pub least: usize,
    /// So many are there at most; 0: none are made ahead.
    pub most: usize,
    /// Between the two there are as many as sessions needed a new one within this time.
    pub remember: Duration,
}

impl Config {
    /// The defaults, for this model and what sandboxes are made of.
    #[must_use]
    pub fn new(model: impl Into<String>, base: Base) -> Self {
        Self {
            model: model.into(),
            placement: Placement::default(),
            limits: RunLimits::default(),
            caps: Caps::default(),
            system: None,
            tools: Vec::new(),
            policies: Policies::default(),
            base,
            sandbox: Limits::default(),
            freeze_after: Duration::from_secs(60),
            hibernate_after: Duration::from_secs(30 * 60),
            archive_after: Duration::from_secs(7 * 24 * 3_600),
            background_time: Duration::from_secs(4 * 3_600),
            hung_after: Duration::from_secs(30),
            disk_grace: Duration::from_secs(3_600),
            warm: WarmPool::default(),
            sandboxes_per_user: 64,
            run_snapshots: 10,
            parallel_runs: 64,
            attempts: 3,
            lease: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            token_life: Duration::from_secs(3_600),
            approvals_expire: Duration::from_secs(24 * 3_600),
            prompt_bytes: 1 << 20,
            memory_bytes: 256 << 20,
            budget_queue: 256,
            budget_wait: Duration::from_secs(10),
        }
    }
}
