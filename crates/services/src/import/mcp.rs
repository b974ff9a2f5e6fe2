//! From the tools of an MCP server to a folder `services/<name>/`, and their approval.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::operation::matches;
use super::write::{self, inline, pretty, quoted};
use super::{ImportError, Imported, LeftOut, MAX_METHODS};
use crate::Catalogue;
use crate::definition::read::is_identifier;
use crate::definition::{Action, Auth, Kind, Limits, Server, Service};
use crate::mcp::pin;

/// What is imported of an MCP server, and under what name.
#[derive(Clone, Debug)]
pub struct McpOptions {
    /// The service's name.
    pub name: String,
    /// Where the server is.
    pub server: Server,
    /// How it is authenticated to; not at all where it is left out.
    pub auth: Option<Auth>,
    /// Which tools: names of tools or methods, where `*` stands for anything. All, where it is empty.
    pub only: Vec<String>,
}

impl McpOptions {
    /// A catalogue with this service alone, without a method: enough to ask for its tools.
    ///
    /// # Errors
    /// When the name can be no service's.
    pub fn catalogue(&self, services: &Path) -> Result<Catalogue, ImportError> {
        if !is_identifier(&self.name) {
            return Err(ImportError::Name(self.name.clone()));
        }
        Ok(Catalogue::of([Service {
            name: self.name.clone(),
            summary: String::new(),
            folder: services.join(&self.name),
            kind: Kind::Mcp(self.server.clone()),
            auth: self.auth.iter().cloned().collect(),
            limits: Limits::default(),
            methods: std::collections::BTreeMap::new(),
        }]))
    }
}

/// Makes a service of what a server lists ([`crate::Services::tools`]). Each method is one that writes, whatever the server
/// calls it: that is for a person to decide.
///
/// # Errors
/// When too much is chosen, or nothing.
pub fn mcp(options: &McpOptions, tools: &[Value]) -> Result<Imported, ImportError> {
    let mut left_out = Vec::new();
    let mut chosen: Vec<(String, &Value)> = Vec::new();
    let sharing = sharing(tools);
    for tool in tools {
        let name = tool["name"].as_str().unwrap_or_default();
        let base = method_name(name);
        let others = sharing.get(&base).filter(|names| names.len() > 1);
        let method = others.map_or_else(|| base.clone(), |_| told_apart(&base, name));
        let is_chosen = |pattern: &String| {
            [name, base.as_str(), method.as_str()]
                .iter()
                .any(|name| matches(pattern, name))
        };
        if !options.only.is_empty() && !options.only.iter().any(is_chosen) {
            continue;
        }
        if tools.iter().filter(|other| other["name"] == tool["name"]).count() > 1 {
            left_out.push(LeftOut {
                what: format!("tool {name}"),
                why: "the server has two of this name".to_owned(),
            });
            continue;
        }
        if chosen.iter().any(|(taken, _)| *taken == method) {
            left_out.push(LeftOut {
                what: format!("tool {name}"),
                why: format!("another one is called {method} already"),
            });
            continue;
        }
        if let Some(names) = others {
            let called = names
                .iter()
                .map(|name| format!("{name} is {}", told_apart(&base, name)));
            left_out.push(LeftOut {
                what: format!("the name {base}"),
                why: format!(
                    "{} tools would have it, so none has: {}",
                    names.len(),
                    called.collect::<Vec<_>>().join(", ")
                ),
            });
        }
        chosen.push((method, tool));
    }
    if chosen.is_empty() {
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).take(50).collect();
        return Err(ImportError::Nothing(if names.is_empty() {
            "the server has no tool".to_owned()
        } else {
            format!("the server has {}", names.join(", "))
        }));
    }
    if chosen.len() > MAX_METHODS {
        return Err(ImportError::TooMany {
            count: chosen.len(),
            parts: format!("{} tools", tools.len()),
        });
    }
    left_out.sort();
    left_out.dedup();
    let approved: Vec<Value> = chosen.iter().map(|(_, tool)| pin::approved(tool)).collect();
    Ok(Imported {
        name: options.name.clone(),
        methods: chosen.iter().map(|(method, _)| method.clone()).collect(),
        slots: options
            .auth
            .iter()
            .flat_map(|auth| auth.required().into_iter().map(str::to_owned))
            .collect(),
        left_out,
        files: vec![
            (PathBuf::from("service.toml"), definition(options, &chosen)),
            (PathBuf::from(TOOLS), pretty(&Value::Array(approved))),
        ],
    })
}

/// The file of what was approved.
const TOOLS: &str = "tools.json";

fn definition(options: &McpOptions, chosen: &[(String, &Value)]) -> String {
    let mut toml = String::new();
    let _ = writeln!(
        toml,
        "name = {}\nsummary = {}\nkind = \"mcp\"\n\n[server]",
        quoted(&options.name),
        quoted(&format!("The tools of the MCP server {}", options.name))
    );
    match &options.server {
        Server::Url { url, .. } => {
            let _ = writeln!(toml, "url = {}", quoted(url));
        }
        Server::Command(command) => {
            let _ = writeln!(toml, "command = {}", inline(&command.words.clone().into()));
            if !command.read.is_empty() {
                let read: Vec<_> = command.read.iter().map(|path| path.to_string_lossy()).collect();
                let _ = writeln!(toml, "read = {}", inline(&read.into()));
            }
            if !command.ports.is_empty() {
                let _ = writeln!(toml, "ports = {}", inline(&command.ports.clone().into()));
            }
        }
    }
    if let Some(auth) = &options.auth {
        let _ = writeln!(toml, "\n[auth]\nkind = {}", quoted(auth.kind()));
        match auth {
            Auth::Header { name, .. } | Auth::Environment { name } => {
                let _ = writeln!(toml, "name = {}", quoted(name));
            }
            _ => {}
        }
    }
    for (method, tool) in chosen {
        let name = tool["name"].as_str().unwrap_or_default();
        let described = ["description", "title"]
            .iter()
            .find_map(|key| tool[key].as_str().filter(|text| !text.trim().is_empty()));
        let summary = write::line(write::sentence(described.unwrap_or(name)));
        let _ = writeln!(toml, "\n[methods.{method}]\nsummary = {}", quoted(&summary));
        if tool["annotations"]["readOnlyHint"] == true {
            toml.push_str("# The server says that this tool only reads. If you believe it: \"read\".\n");
        }
        let _ = writeln!(
            toml,
            "access = \"write\"\ntool = {}\npin = {}",
            quoted(name),
            quoted(&pin::pin(tool))
        );
    }
    toml
}

/// The names of tools that would make the same method's name, by that name.
fn sharing(tools: &[Value]) -> BTreeMap<String, BTreeSet<&str>> {
    let mut sharing = BTreeMap::<_, BTreeSet<_>>::new();
    for name in tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default()) {
        sharing.entry(method_name(name)).or_default().insert(name);
    }
    sharing
}

/// A method's name for a tool: an identifier.
fn method_name(tool: &str) -> String {
    match write::lower_name(tool) {
        name if name.is_empty() => "tool".to_owned(),
        name if !is_identifier(&name) => format!("{name}Tool"),
        name => name,
    }
}

/// A name for a tool whose own would be another's too. It depends on no order of the server's: what was granted to one is never
/// the other's when both are imported anew.
fn told_apart(base: &str, tool: &str) -> String {
    let base: String = base.chars().take(55).collect();
    format!("{base}_{}", hex::encode(&Sha256::digest(tool)[..4]))
}

/// What a server says now of the tools that a service was made of.
#[derive(Clone, PartialEq, Debug)]
pub struct Review {
    /// The methods whose tools are not as they were approved.
    pub changed: Vec<Changed>,
    /// Tools that no method of the service calls.
    pub offered: Vec<String>,
}

/// A method whose tool is not as it was approved.
#[derive(Clone, PartialEq, Debug)]
pub struct Changed {
    /// The method.
    pub method: String,
    /// The server's name of the tool.
    pub tool: String,
    /// What changed, in words.
    pub what: Vec<&'static str>,
    /// What was approved.
    pub was: Value,
    /// What the server says now; nothing where it does not have the tool any more, or two of its name. It is what an untrusted
    /// party says.
    pub now: Option<Value>,
}

/// Holds what a server lists now ([`crate::Services::tools`]) against what was approved.
#[must_use]
pub fn review(service: &Service, tools: &[Value]) -> Review {
    let mut changed = Vec::new();
    let mut known = BTreeSet::new();
    for method in service.methods.values() {
        let Action::Mcp(tool) = &method.action else { continue };
        known.insert(tool.name.as_str());
        let mut listed = tools.iter().filter(|listed| listed["name"] == *tool.name);
        let now = listed.next().filter(|_| listed.next().is_none()).map(pin::approved);
        if now.as_ref().is_some_and(|now| pin::pin(now) == tool.pin) {
            continue;
        }
        changed.push(Changed {
            method: method.name.clone(),
            tool: tool.name.clone(),
            what: now
                .as_ref()
                .map(|now| pin::changes(&tool.approved, now))
                .unwrap_or_default(),
            was: tool.approved.clone(),
            now,
        });
    }
    let names = tools.iter().filter_map(|tool| tool["name"].as_str());
    Review {
        changed,
        offered: names.filter(|name| !known.contains(name)).map(str::to_owned).collect(),
    }
}

impl Review {
    /// Writes into the service's definition that what the server says now is approved. Tools that are gone stay refused.
    ///
    /// # Errors
    /// When the files cannot be read or written, or the service could not be used with what they would say; they are left as
    /// they were then.
    pub fn approve(&self, service: &Service) -> Result<(), ImportError> {
        let (definition, tools) = (service.folder.join("service.toml"), service.folder.join(TOOLS));
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| ImportError::Read {
                path: path.to_owned(),
                source,
            })
        };
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).map_err(|source| ImportError::Write {
                path: path.to_owned(),
                source,
            })
        };
        let (old_definition, old_tools) = (read(&definition)?, read(&tools)?);
        let mut text = old_definition.clone();
        let mut approved: Vec<Value> = serde_json::from_str(&old_tools).unwrap_or_default();
        for changed in &self.changed {
            let Some(now) = &changed.now else { continue };
            text = text.replace(&pin::pin(&changed.was), &pin::pin(now));
            for tool in approved.iter_mut().filter(|tool| tool["name"] == *changed.tool) {
                tool.clone_from(now);
            }
        }
        // Where this ends in between, the pins do not fit, and the service is refused.
        let written = write(&tools, &pretty(&Value::Array(approved))).and_then(|()| write(&definition, &text));
        let checked = written.and_then(|()| match Catalogue::check(&service.folder) {
            mistakes if mistakes.is_empty() => Ok(()),
            mistakes => Err(ImportError::Mistakes(mistakes)),
        });
        if checked.is_err() {
            write(&tools, &old_tools)?;
            write(&definition, &old_definition)?;
        }
        checked
    }
}
