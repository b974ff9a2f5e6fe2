//! Hands in this process: the same tools that a sandbox has, in the current folder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Mutex;

use agent::Hands;
use cli::Screen;
use domain::{Delta, Event, ResultPart, RunLimits, ToolCall, ToolResult};
use lifecycle::Stop;
use tools::{FileError, Settings, Tools};

use super::gateway::held;

/// What programs that tools start may know of this machine's environment.
const KEPT: [&str; 3] = ["PATH", "LANG", "TZ"];

/// Uses tools, and shows that it does.
pub(crate) struct LocalHands<'s> {
    tools: Tools,
    screen: &'s Mutex<Screen>,
}

impl<'s> LocalHands<'s> {
    pub(crate) async fn new(
        workspace: &Path,
        skills: &Path,
        supervisor: Vec<OsString>,
        screen: &'s Mutex<Screen>,
    ) -> Result<Self, FileError> {
        let mut environment: BTreeMap<String, String> = KEPT
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect();
        environment.insert("HOME".into(), workspace.display().to_string());
        let mut settings = Settings::sandbox(supervisor, environment);
        settings.workspace = workspace.to_owned();
        settings.skills = skills.to_owned();
        let tools = Tools::new(settings)?;
        tools.stand_by().await;
        Ok(Self { tools, screen })
    }
}

impl Hands for LocalHands<'_> {
    async fn use_tool(&self, call: &ToolCall, limits: &RunLimits) -> ToolResult {
        let show = |event| {
            // Nobody reads the screen any more: the work goes on all the same.
            let _ = held(self.screen).event(event);
        };
        show(Event::ToolStarted {
            call: call.id.clone(),
            name: call.name.clone(),
            input: call.input.clone(),
        });
        let progress = |text: &str| {
            let delta = Delta::ToolProgress {
                call: call.id.clone(),
                text: text.to_owned(),
            };
            let _ = held(self.screen).delta(delta);
        };
        let result = self.tools.use_tool(call, limits, &progress, &Stop::new()).await;
        let summary = result.content.iter().find_map(|part| match part {
            ResultPart::Text { text } => text.lines().next().map(str::to_owned),
            ResultPart::Image(_) => None,
        });
        show(Event::ToolEnded {
            call: call.id.clone(),
            is_error: result.is_error,
            summary: summary.unwrap_or_default(),
        });
        result
    }
}
