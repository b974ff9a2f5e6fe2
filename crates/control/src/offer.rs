//! What a run is given when it is taken. It is never more than that while the run lasts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{RunLimits, ToolDefinition, Trigger};
use llm::Opening;
use policy::{Decision, Layers, Limits, Outcome};
use protocol::{Grants, ServiceGrant};
use providers::Model;
use sandbox::ImageDigest;
use store::Caps;

use crate::Control;
use crate::approvals::{ACCESS, ACCESS_SERVICE};
use crate::live::lock;

/// What a run may use.
#[derive(Debug)]
pub(crate) struct Offer {
    /// What its session's sandbox is made of, or was: what is said of skills is true there.
    pub(crate) image: ImageDigest,
    /// The system prompt, whole.
    pub(crate) system: String,
    /// The tools that the model is told of.
    pub(crate) tools: Vec<ToolDefinition>,
    /// What may be used up.
    pub(crate) limits: RunLimits,
    /// What may be spent.
    pub(crate) caps: Caps,
    /// Services and skills.
    pub(crate) grants: Grants,
    layers: Arc<Layers>,
    /// Those of the tools that a person is asked about first.
    asked_about: Vec<String>,
    /// The models that the run may ask.
    models: Vec<String>,
    /// How requests to models begin that were asked, by the models' names.
    openings: Mutex<HashMap<String, Arc<Opening>>>,
}

impl Offer {
    /// Whether there is a tool of that name.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// Why a person is asked before a tool is used, where one is.
    pub(crate) fn asks_about(&self, name: &str) -> Option<Decision> {
        let is_asked = self.asked_about.iter().any(|tool| tool == name);
        is_asked.then(|| self.layers.tool(name))
    }

    /// How every request to a model begins.
    pub(crate) fn opening(&self, model: &Model) -> Arc<Opening> {
        let mut openings = lock(&self.openings);
        if let Some(opening) = openings.get(&model.name) {
            return Arc::clone(opening);
        }
        let opening = Opening::new(
            model.format,
            &model.provider_name,
            &self.system,
            &self.tools,
            model.cache,
        );
        let opening = Arc::new(opening);
        openings.insert(model.name.clone(), Arc::clone(&opening));
        opening
    }

    /// Whether a model may be asked.
    pub(crate) fn has_model(&self, model: &Model) -> bool {
        self.models.contains(&model.name)
    }

    /// Whether what a model costs is held against a cap.
    pub(crate) fn is_capped(&self) -> bool {
        is_capped(&self.caps)
    }
}

fn is_capped(caps: &Caps) -> bool {
    !caps.is_empty()
}

fn lowered(caps: Caps, limits: &Limits) -> Caps {
    let lower = |cap: Option<_>, limit: Option<policy::Dollars>| match (cap, limit) {
        (Some(cap), Some(limit)) => Some(std::cmp::min(cap, limit.0)),
        (cap, limit) => cap.or(limit.map(|limit| limit.0)),
    };
    Caps {
        run: lower(caps.run, limits.run_dollars),
        session: lower(caps.session, limits.session_dollars),
        user: lower(caps.user, limits.user_dollars),
        ..caps
    }
}

/// Whether it exists for whoever asks: at once, or when a person has said yes.
fn is_there(decision: &Decision) -> bool {
    decision.outcome != Outcome::Deny
}

impl Control {
    /// What a run that was caused by a trigger is given under these layers, in a sandbox of this image.
    pub(crate) async fn offer(&self, layers: Arc<Layers>, trigger: &Trigger, image: ImageDigest) -> Offer {
        let brought = self.0.brought.skills(&image).await;
        let config = &self.0.config;
        let limits = layers.limits();
        let tools: Vec<_> = config
            .tools
            .iter()
            .filter(|tool| is_there(&layers.tool(&tool.name)))
            .cloned()
            .collect();
        let skills: Vec<_> = brought
            .iter()
            .filter(|skill| layers.skill(&skill.name).is_allowed())
            .collect();
        let mut caps = lowered(config.caps.clone(), &limits);
        caps.keep(trigger);
        // What calls services and models is code, and without it there is none.
        let models = self.models_within(&layers, &caps);
        let (services, of_programs, background) = if is_there(&layers.tool("exec")) {
            (self.services_within(&layers), models.clone(), config.background_time)
        } else {
            (Vec::new(), Vec::new(), Duration::ZERO)
        };
        let asks = |tool: &&ToolDefinition| layers.tool(&tool.name).outcome == Outcome::Ask;
        let asked_about = tools.iter().filter(asks).map(|tool| tool.name.clone()).collect();
        Offer {
            image,
            system: self.0.secrecy.masks().text(config.system.clone().unwrap_or_else(|| {
                let lines: Vec<_> = services
                    .iter()
                    .map(|service| (service.name.as_str(), service.summary.as_str()))
                    .collect();
                agent::system_prompt(&tools, &skills::catalogue(skills.iter().copied()), &lines)
            })),
            tools,
            limits: limits.of_run(config.limits),
            caps,
            grants: Grants {
                services,
                models: of_programs,
                skills: Some(skills.iter().map(|skill| skill.name.clone()).collect()),
                background_seconds: background.as_secs(),
            },
            asked_about,
            models,
            openings: Mutex::default(),
            layers,
        }
    }

    /// The models that may be asked.
    fn models_within(&self, layers: &Layers, caps: &Caps) -> Vec<String> {
        let models = self.0.providers.names().into_iter().filter(|name| {
            let priced = |model: &Arc<Model>| model.price.is_some() || !is_capped(caps);
            layers.model(name).is_allowed() && self.0.providers.model(name).is_ok_and(priced)
        });
        models.map(str::to_owned).collect()
    }

    /// The services of which some method is allowed, as a sandbox and a model are told of them.
    fn services_within(&self, layers: &Layers) -> Vec<ServiceGrant> {
        let mut granted = match &self.0.services {
            Some(services) => services.within(|service, method| is_there(&layers.service(service, method))),
            None => Vec::new(),
        };
        granted.retain(|service| service.name != ACCESS_SERVICE);
        if !granted.is_empty() || self.0.broker.is_some() {
            granted.push(ACCESS());
        }
        granted
    }
}
