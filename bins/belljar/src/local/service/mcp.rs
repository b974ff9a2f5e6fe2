//! Services of MCP servers: made of what a server says of its tools, and approved anew where it says otherwise.

use std::path::Path;

use anyhow::bail;
use cli::{ClientError, harmless};
use lifecycle::Tasks;
use serde_json::{Value, json};
use services::import::{McpOptions, Review, mcp, review};
use services::{Auth, Command, Kind, Server};

use super::{Read, made, next, place, ready};
use crate::arguments::ImportArguments;
use crate::config::Settings;
use crate::end::End;

/// The longest description that is shown whole, in characters.
const SHOWN: usize = 2_000;

/// Asks a server for its tools, and makes a service of them.
pub(super) async fn import(
    settings: &Settings,
    arguments: &ImportArguments,
    server: &str,
    json: bool,
) -> anyhow::Result<End> {
    let services = place(settings, arguments.folder.as_deref());
    let options = McpOptions {
        name: arguments.name.clone().unwrap_or_default(),
        server: at(server, arguments),
        auth: arguments.auth.as_deref().map(auth).transpose()?,
        only: arguments.only.clone(),
    };
    let tools = asked(settings, &options.catalogue(&services)?, &options.name).await?;
    let imported = mcp(&options, &tools)?;
    let folder = imported.write(&services)?;
    made(&imported, &folder, json)?;
    if json {
        return Ok(End::Done);
    }
    let reading = tools
        .iter()
        .filter(|tool| tool["annotations"]["readOnlyHint"] == true)
        .filter_map(|tool| tool["name"].as_str());
    let reading: Vec<&str> = reading.collect();
    cli::line("Every method may change something, until you write access = \"read\" in its definition.")?;
    if !reading.is_empty() {
        cli::line(format_args!(
            "The server says that these only read: {}",
            harmless(&reading.join(", "))
        ))?;
    }
    cli::line("What the tools say of themselves stands in tools.json; read it before you allow any.")?;
    if settings
        .services
        .get(&imported.name)
        .is_none_or(|bound| bound.auth.is_empty())
    {
        next(&imported)?;
    }
    Ok(End::Done)
}

/// Shows what a server says otherwise than when it was approved, and approves it where that is asked for.
pub(super) async fn approve(
    settings: &Settings,
    read: &Read,
    name: &str,
    yes: bool,
    json: bool,
) -> anyhow::Result<End> {
    let service = read.service(name)?;
    if !matches!(service.kind, Kind::Mcp(_)) {
        bail!("the service {name} is no MCP server, so there is nothing to approve");
    }
    let tools = asked(settings, &read.catalogue, name).await?;
    let review = review(service, &tools);
    if yes {
        review.approve(service)?;
    }
    if json {
        let changed = review.changed.iter().map(
            |changed| json!({ "method": changed.method, "tool": changed.tool, "was": changed.was, "now": changed.now }),
        );
        cli::line(
            json!({ "service": name, "changed": changed.collect::<Vec<_>>(), "offered": review.offered, "approved": yes }),
        )?;
    } else {
        show(&review, name, yes)?;
    }
    let gone = review.changed.iter().any(|changed| changed.now.is_none());
    Ok(if review.changed.is_empty() || yes && !gone {
        End::Done
    } else {
        End::Found
    })
}

fn show(review: &Review, name: &str, yes: bool) -> Result<(), ClientError> {
    for changed in &review.changed {
        let Some(now) = &changed.now else {
            cli::line(format_args!(
                "{name}.{}: the server has no tool {} any more, or two of that name",
                changed.method,
                harmless(&changed.tool)
            ))?;
            continue;
        };
        cli::line(format_args!(
            "{name}.{}: {} changed",
            changed.method,
            changed.what.join(" and ")
        ))?;
        for key in ["description", "inputSchema", "outputSchema"] {
            if changed.was.get(key) != now.get(key) {
                cli::line(format_args!("  {key} was {}", text(changed.was.get(key))))?;
                cli::line(format_args!("  {key} is  {}", text(now.get(key))))?;
            }
        }
    }
    if !review.offered.is_empty() {
        cli::line(format_args!(
            "The server also has: {}",
            harmless(&review.offered.join(", "))
        ))?;
    }
    if review.changed.is_empty() {
        cli::line(format_args!("{name} is as it was approved"))?;
    } else if yes {
        cli::line("Approved. Restart the control plane, which reads definitions when it starts.")?;
    } else {
        cli::line(format_args!(
            "Nothing is approved. If this is what you want the agent to call: belljar service approve {name} --yes"
        ))?;
    }
    Ok(())
}

fn text(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "nothing".to_owned();
    };
    let written = value.to_string();
    let shown: String = harmless(&written).chars().take(SHOWN).collect();
    if shown.len() < written.len() {
        format!("{shown}… ({} bytes)", written.len())
    } else {
        shown
    }
}

async fn asked(settings: &Settings, catalogue: &services::Catalogue, name: &str) -> anyhow::Result<Vec<Value>> {
    let tasks = Tasks::new();
    let services = ready(settings, catalogue, name, &tasks)?;
    let tools = services.tools(name).await;
    drop(services);
    tasks.shut_down(std::time::Duration::from_secs(2)).await;
    match tools {
        Ok(tools) => Ok(tools),
        Err(failure) => match &failure.remedy {
            Some(remedy) => bail!("{}; {}", harmless(&failure.message), harmless(remedy)),
            None => bail!("{}", harmless(&failure.message)),
        },
    }
}

fn at(server: &str, arguments: &ImportArguments) -> Server {
    if server.starts_with("http://") || server.starts_with("https://") {
        return Server::Url {
            url: server.to_owned(),
            headers: Vec::new(),
        };
    }
    Server::Command(Command {
        words: server.split_whitespace().map(str::to_owned).collect(),
        environment: Vec::new(),
        read: arguments.read.iter().map(|path| absolute(path)).collect(),
        ports: arguments.port.clone(),
    })
}

fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn auth(text: &str) -> anyhow::Result<Auth> {
    match text.split_once(':') {
        None if text == "bearer" => Ok(Auth::Bearer),
        Some(("header", name)) if !name.is_empty() => Ok(Auth::Header {
            name: name.to_ascii_lowercase(),
            prefix: String::new(),
        }),
        Some(("environment", name)) if !name.is_empty() => Ok(Auth::Environment { name: name.to_owned() }),
        _ => bail!("--auth is {text:?}: write bearer, header:NAME or environment:VARIABLE"),
    }
}
