//! A workspace and the tools on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use domain::{ResultPart, RunLimits, ToolCall, ToolCallId, ToolResult};
use lifecycle::Stop;
use serde_json::Value;
use tools::{Settings, Tools};

/// No call of a test takes longer, or the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tools on a workspace of their own, beside a folder that they must not reach.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
    pub(crate) tools: Tools,
    pub(crate) limits: RunLimits,
    pub(crate) progress: Mutex<String>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Self {
        // Not in /tmp, which every tool may read: what is outside must be refused.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["workspace", "skills", "outside"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("outside/secret"), "the secret\n").unwrap();
        let mut settings = Settings {
            workspace: folder.path().join("workspace"),
            skills: folder.path().join("skills"),
            knowledge: folder.path().join("knowledge"),
            services: None,
            environment: BTreeMap::from([("PATH".to_owned(), path()), ("GREETING".to_owned(), "hello".to_owned())]),
            supervisor: vec![env!("CARGO_BIN_EXE_tools-supervise").into()],
            exec_heap_mib: 256,
        };
        change(&mut settings);
        Self {
            tools: Tools::new(settings).unwrap(),
            folder,
            limits: RunLimits {
                tool_seconds: 50,
                ..RunLimits::default()
            },
            progress: Mutex::default(),
        }
    }

    /// A path of the workspace.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("workspace").join(path)
    }

    /// A path beside it.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.folder.path().join("outside").join(path)
    }

    pub(crate) fn skills(&self) -> PathBuf {
        self.folder.path().join("skills")
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap()
    }

    /// Uses a tool, and fails the test when it does not answer.
    pub(crate) async fn call(&self, name: &str, input: Value) -> ToolResult {
        self.call_until(name, input, &Stop::new()).await
    }

    pub(crate) async fn call_until(&self, name: &str, input: Value, stop: &Stop) -> ToolResult {
        let call = ToolCall {
            id: ToolCallId("call".to_owned()),
            name: name.to_owned(),
            input,
        };
        let progress = |text: &str| self.progress.lock().unwrap().push_str(text);
        tokio::time::timeout(PATIENCE, self.tools.use_tool(&call, &self.limits, &progress, stop))
            .await
            .unwrap_or_else(|_| panic!("{call:?} does not answer"))
    }

    /// The words of a result that is no error.
    pub(crate) async fn ok(&self, name: &str, input: Value) -> String {
        let result = self.call(name, input.clone()).await;
        assert!(!result.is_error, "{name} {input}: {}", words(&result));
        words(&result)
    }

    /// The words of a result that is one.
    pub(crate) async fn error(&self, name: &str, input: Value) -> String {
        let result = self.call(name, input.clone()).await;
        assert!(result.is_error, "{name} {input} gave no error but {}", words(&result));
        words(&result)
    }
}

/// The words of a result, part after part.
pub(crate) fn words(result: &ToolResult) -> String {
    let parts: Vec<&str> = result
        .content
        .iter()
        .map(|part| match part {
            ResultPart::Text { text } => text.as_str(),
            ResultPart::Image(image) => image.media_type.as_str(),
        })
        .collect();
    parts.join("\n---\n")
}

/// Where programs are found; a Node that is new enough first.
fn path() -> String {
    format!("{}:/usr/local/bin:/usr/bin:/bin", node_folder().display())
}

/// The folder of a Node that is new enough.
pub(crate) fn node_folder() -> PathBuf {
    testkit::miniature().rootfs().join("usr/local/bin")
}

/// Whether a process with this number lives (a zombie does not).
pub(crate) fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !so() {
        assert!(tokio::time::Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
