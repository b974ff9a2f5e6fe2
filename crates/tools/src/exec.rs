//! The tool `exec`: JavaScript or TypeScript in a process of its own.
//!
//! Where the run may use services, code calls them as `services.<name>.<method>(args)`: over a socket that somebody else
//! listens at, which adds the token and asks the control plane (`exec/services.js`).
//!
//! Each call has a fresh Node, which reads the code from its input and runs it as the body of an async function
//! (`bootstrap.js`). While a run is on the next process is started ahead, so a call does not wait for Node to start; between
//! runs there is none.

mod output;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use domain::{ResultPart, ToolCallId};
use serde::Deserialize;
use serde_json::json;

use crate::Tools;
use crate::process::{End, NOT_STARTED, Program, RunError, Running};
use crate::toolbox::{Answer, Bounds, Failure, words};
use output::{Output, Said};

/// In a function, as the code that is run sees what stands at the top.
const BOOTSTRAP: &str = concat!(
    "(() => {",
    include_str!("exec/files.js"),
    include_str!("exec/services.js"),
    include_str!("exec/bootstrap.js"),
    "})();"
);
/// The most code that is run.
const MAX_CODE: usize = 1024 * 1024;
/// How Node ends when its heap is full.
const ABORTED: i32 = 128 + 6;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arguments {
    code: String,
}

/// Code was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    #[error("there is no `node` in the PATH ({path}); exec needs Node 22.13 or newer")]
    NoNode { path: String },
    #[error("the code is longer than {MAX_CODE} bytes: put data into files")]
    TooLong,
    #[error("cannot hand the code to Node")]
    HandOver(#[source] std::io::Error),
}

/// The processes that run code.
#[derive(Debug, Default)]
pub(crate) struct Exec {
    /// A run is on.
    ahead: AtomicBool,
    /// Waits for its code.
    spare: Mutex<Option<Running>>,
    count: AtomicU64,
}

impl Exec {
    /// Keeps a process started ahead from now on.
    pub(crate) fn prepare(&self, tools: &Tools) {
        self.ahead.store(true, Ordering::Relaxed);
        self.start_ahead(tools);
    }

    /// Starts no process ahead from now on, and ends the one that there is.
    pub(crate) fn rest(&self) -> impl Future<Output = ()> + use<> {
        self.ahead.store(false, Ordering::Relaxed);
        let spare = self.take();
        async {
            if let Some(spare) = spare {
                // What cannot be ended here ends with its supervisor's input.
                let _ = spare.end(Path::new("node")).await;
            }
        }
    }

    /// Starts the process ahead anew, since what it would run in has changed.
    pub(crate) async fn renew(&self, tools: &Tools) {
        if let Some(spare) = self.take() {
            let _ = spare.end(Path::new("node")).await;
            self.start_ahead(tools);
        }
    }

    fn take(&self) -> Option<Running> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn start_ahead(&self, tools: &Tools) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ahead.load(Ordering::Relaxed) && spare.is_none() {
            // Why it cannot be started is said to the call that needs it.
            *spare = find_node(tools).ok().and_then(|node| start(tools, &node).ok());
        }
    }

    /// Runs code and says what it wrote and returned.
    pub(crate) async fn run(&self, tools: &Tools, arguments: Arguments, bounds: Bounds<'_>) -> Answer {
        let answer = self.run_once(tools, &arguments.code, bounds).await;
        self.start_ahead(tools);
        answer
    }

    async fn run_once(&self, tools: &Tools, code: &str, bounds: Bounds<'_>) -> Answer {
        if code.len() > MAX_CODE {
            return Err(ExecError::TooLong.into());
        }
        let node = find_node(tools)?;
        let mark = format!("{:016x}", RandomState::new().build_hasher().finish());
        let order = order(tools, &mark, code, bounds.call);
        let running = self.hand_over(tools, &node, order.as_bytes(), bounds).await?;

        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("exec-{}-{number}", std::process::id());
        let mut output = Output::new(&tools.files, &name, &mark, bounds.output_bytes);
        let end = running
            .finish_when(&node, bounds.deadline, bounds.stop, |bytes| {
                let text = output.push(bytes);
                if !text.is_empty() {
                    (bounds.progress)(&text);
                }
                if output.is_over() {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
            .await?;
        let (console, said) = output.finish();
        let failed = |text: String| Err(Failure::Output(parts(&console, text)));
        match (end, said) {
            (End::Stopped, _) => Err(Failure::Stopped),
            (End::TimedOut, _) => failed(format!("[killed: the code took longer than {} s]", bounds.seconds)),
            (End::Exited(_), Some(Said::Value(text))) => Ok(parts(&console, text)),
            (End::Exited(_), Some(Said::Nothing)) if console.is_empty() => Ok(words("[nothing returned, no output]")),
            (End::Exited(_), Some(Said::Nothing)) => Ok(words(console)),
            (End::Exited(_), Some(Said::Error(text))) => failed(text),
            (End::Exited(ABORTED), None) if console.contains("heap") => Err(Failure::Output(words(format!(
                "[killed: the code used more memory than the {} MiB that it may have; work on the data in pieces]",
                tools.settings.exec_heap_mib
            )))),
            (End::Exited(NOT_STARTED), None) => failed("[the code was not run]".to_owned()),
            (End::Exited(137), None) => failed("[killed from outside: memory ran out, perhaps]".to_owned()),
            (End::Exited(code), None) => failed(format!(
                "[the process ended with exit code {code} before the code returned]"
            )),
        }
    }

    /// Gives the code to the process that was started ahead, or to a new one.
    async fn hand_over(
        &self,
        tools: &Tools,
        node: &Path,
        order: &[u8],
        bounds: Bounds<'_>,
    ) -> Result<Running, Failure> {
        if let Some(mut spare) = self.take()
            && spare.is_running()
            && give(&mut spare, order, bounds).await.is_ok()
        {
            return Ok(spare);
        }
        let mut running = start(tools, node)?;
        match give(&mut running, order, bounds).await {
            Ok(()) => Ok(running),
            Err(_) if bounds.stop.is_cancelled() => {
                running.end(node).await?;
                Err(Failure::Stopped)
            }
            // It has died already: what it said on that says more than that it does not listen.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(running),
            Err(error) => {
                running.end(node).await?;
                Err(ExecError::HandOver(error).into())
            }
        }
    }
}

/// What the process is told: a line of JSON.
fn order(tools: &Tools, mark: &str, code: &str, call: &ToolCallId) -> String {
    let folders: Vec<_> = tools.files.writable().collect();
    let grants = tools.grants();
    let services = tools
        .settings
        .services
        .as_ref()
        .filter(|_| !grants.services.is_empty() || grants.background_seconds > 0)
        .map(|socket| {
            let methods = grants.services.iter();
            let methods: BTreeMap<_, _> = methods.map(|service| (&service.name, &service.methods)).collect();
            let background = grants.background_seconds > 0;
            json!({ "socket": socket, "call": call, "methods": methods, "background": background })
        });
    let mut order = json!({ "mark": mark, "code": code, "folders": folders, "services": services }).to_string();
    order.push('\n');
    order
}

async fn give(running: &mut Running, order: &[u8], bounds: Bounds<'_>) -> std::io::Result<()> {
    let written = bounds
        .stop
        .run_until_cancelled(tokio::time::timeout_at(bounds.deadline, running.write(order)));
    match written.await {
        Some(Ok(written)) => written,
        Some(Err(_)) => Err(std::io::ErrorKind::TimedOut.into()),
        None => Err(std::io::ErrorKind::Interrupted.into()),
    }
}

fn start(tools: &Tools, node: &Path) -> Result<Running, RunError> {
    tools.launcher.start(&Program {
        path: node,
        arguments: &[
            "--disable-warning=ExperimentalWarning".to_owned(),
            format!("--max-old-space-size={}", tools.settings.exec_heap_mib),
            "-e".to_owned(),
            BOOTSTRAP.to_owned(),
        ],
        environment: &tools.launcher.environment(),
        input: true,
        confinement: None,
    })
}

/// Node, as the session's PATH finds it.
fn find_node(tools: &Tools) -> Result<PathBuf, ExecError> {
    let environment = tools.launcher.environment();
    let path = environment
        .get("PATH")
        .map_or("/usr/local/bin:/usr/bin:/bin", String::as_str);
    path.split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| Path::new(folder).join("node"))
        .find(|program| program.is_file())
        .ok_or_else(|| ExecError::NoNode { path: path.to_owned() })
}

/// What was written, if anything, and then in a part of its own what came of it.
fn parts(console: &str, outcome: String) -> Vec<ResultPart> {
    let console = Some(console).filter(|text| !text.is_empty());
    console
        .map(str::to_owned)
        .into_iter()
        .chain([outcome])
        .map(|text| ResultPart::Text { text })
        .collect()
}
