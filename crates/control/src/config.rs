//! What an operator decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::{Placement, RunLimits, ToolDefinition};
use policy::Policies;
use sandbox::{ImageDigest, Limits};
use skills::Skill;
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
    /// Every skill of the image.
    pub skills: Arc<[Skill]>,
    /// Who may do what.
    pub policies: Policies,
    /// What sandboxes are made of.
    pub image: ImageDigest,
    /// What a sandbox may take.
    pub sandbox: Limits,
    /// Environment of the user's processes in a sandbox.
    pub environment: BTreeMap<String, String>,
    /// An unused sandbox is frozen after this.
    pub freeze_after: Duration,
    /// An unused sandbox is removed after this; its files are kept.
    pub remove_after: Duration,
    /// Sandboxes of one user at the same time. For one more, the one of theirs that was unused the longest is removed.
    pub sandboxes_per_user: usize,
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
    /// Turns that may wait for reserved money to come free; one more is refused as busy.
    pub budget_queue: usize,
    /// How long they wait.
    pub budget_wait: Duration,
}

impl Config {
    /// The defaults, for this model and image.
    #[must_use]
    pub fn new(model: impl Into<String>, image: ImageDigest) -> Self {
        Self {
            model: model.into(),
            placement: Placement::default(),
            limits: RunLimits::default(),
            caps: Caps::default(),
            system: None,
            tools: Vec::new(),
            skills: Arc::new([]),
            policies: Policies::default(),
            image,
            sandbox: Limits::default(),
            environment: BTreeMap::new(),
            freeze_after: Duration::from_secs(60),
            remove_after: Duration::from_secs(30 * 60),
            sandboxes_per_user: 64,
            parallel_runs: 64,
            attempts: 3,
            lease: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            token_life: Duration::from_secs(3_600),
            approvals_expire: Duration::from_secs(24 * 3_600),
            prompt_bytes: 1 << 20,
            budget_queue: 256,
            budget_wait: Duration::from_secs(10),
        }
    }
}
