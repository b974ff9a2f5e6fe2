//! What only services of kind `mcp` have.

use std::path::Path;

use serde_json::Value;

use super::http::{headers, outside_url};
use super::method::{Common, common};
use super::schemas::Schemas;
use super::table::{Mistakes, Table};
use crate::definition::source::{Source, whole};
use crate::definition::{Access, Action, Answer, Auth, Command, Kind, Method, Pointer, Server, Tool};
use crate::mcp::{pin, result, schema};
use crate::schema::Schema;

/// The file with what was approved.
const FILE: &str = "tools.json";
const REMEDY: &str = "`belljar service import --mcp` makes it, from what the server says";

/// Reads where the server is.
pub(super) fn read(table: &Table<'_>, auth: &[Auth]) -> Option<Kind> {
    let Some(server) = table.table("server") else {
        if !table.has("server") {
            table.mistake(
                "",
                "there is no server",
                "write [server], with url = \"https://…\" or command = [\"program\", …]",
            );
        }
        return None;
    };
    let read = match (server.has("url"), server.has("command")) {
        (true, false) => server
            .text("url")
            .and_then(|url| outside_url(&server, "url", url))
            .map(|url| Server::Url {
                url,
                headers: headers(&server),
            }),
        (false, true) => command(&server).map(Server::Command),
        _ => {
            server.mistake(
                "",
                "the server is nowhere, or at two places",
                "write one of url and command",
            );
            None
        }
    };
    server.finish();
    let read = read?;
    for way in auth {
        let fits = match (&read, way) {
            (Server::Url { .. }, Auth::Environment { .. } | Auth::Query { .. } | Auth::AwsSigV4 { .. }) => false,
            (Server::Url { .. }, Auth::All(parts)) => !parts.iter().any(|part| matches!(part.auth, Auth::Query { .. })),
            (Server::Url { .. }, _) => true,
            (Server::Command(_), way) => matches!(way, Auth::Environment { .. }),
        };
        if !fits {
            let remedy = match &read {
                Server::Url { .. } => "write bearer, basic, header or one of the kinds that ask for a token",
                Server::Command(_) => "write kind = \"environment\", with the name of the variable",
            };
            table.mistake(
                "auth",
                format!("such a server takes no credential of kind {}", way.kind()),
                remedy,
            );
        }
    }
    Some(Kind::Mcp(read))
}

fn command(table: &Table<'_>) -> Option<Command> {
    let words: Vec<String> = table.texts("command").into_iter().map(str::to_owned).collect();
    if words.first().is_none_or(|word| word.trim().is_empty()) {
        table.mistake("command", "there is no program", "write [\"program\", \"argument\"]");
        return None;
    }
    let environment = table.pairs("environment");
    for (name, _) in environment.iter().filter(|(name, _)| !is_variable(name)) {
        table.mistake(
            "environment",
            format!("{name:?} can be no variable of it"),
            "write capital letters, digits and _; PATH, HOME, TMPDIR and LD_… are not yours to set",
        );
    }
    let read = table.texts("read");
    for path in read
        .iter()
        .filter(|path| !Path::new(path).is_absolute() || **path == "/")
    {
        table.mistake(
            "read",
            format!("{path:?} is no folder of its own"),
            "write a whole path, such as \"/opt/server\"",
        );
    }
    let ports: Option<Vec<u16>> = match table.value("ports") {
        None => Some(Vec::new()),
        Some(Value::Array(ports)) => ports
            .iter()
            .map(|port| {
                port.as_u64()
                    .and_then(|port| u16::try_from(port).ok())
                    .filter(|port| *port > 0)
            })
            .collect(),
        Some(_) => None,
    };
    if ports.is_none() {
        table.mistake(
            "ports",
            "these are no TCP ports",
            "write a list of numbers, such as [443]",
        );
    }
    Some(Command {
        words,
        environment: environment
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect(),
        read: read.into_iter().map(Into::into).collect(),
        ports: ports?,
    })
}

/// Whether a server's program may be given a variable of this name.
pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_uppercase() || letter == '_')
        && name
            .chars()
            .all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_')
        && !["PATH", "HOME", "TMPDIR", "LANG"].contains(&name)
        && !name.starts_with("LD_")
}

/// What was approved of the server's tools.
pub(super) struct Tools(Option<Source>);

impl Tools {
    /// Reads `tools.json` of a service of this kind.
    pub(super) fn read(kind: &str, folder: &Path, mistakes: &Mistakes) -> Self {
        if kind != "mcp" {
            return Self(None);
        }
        match Source::read(&folder.join(FILE)) {
            Ok(source) if source.value.is_array() => Self(Some(source)),
            Ok(source) => {
                mistakes.add(source.mistake("", "what was approved is no list of tools", REMEDY));
                Self(None)
            }
            Err(_) if !folder.join(FILE).exists() => {
                mistakes.add(whole(
                    &folder.join(FILE),
                    "there is nothing that says which tools were approved",
                    REMEDY,
                ));
                Self(None)
            }
            Err(wrong) => {
                mistakes.extend(wrong);
                Self(None)
            }
        }
    }
}

/// Reads a method: which tool it is, and that what was approved of it is pinned. Its schemas are the tool's, unless it has
/// narrower ones of its own.
pub(super) fn method(table: Table<'_>, name: &str, tools: &Tools, schemas: &Schemas<'_>) -> Option<Method> {
    let Common {
        summary,
        access,
        arguments,
        result,
        limits,
    } = common(&table, schemas);
    let idempotent = table.flag("idempotent").unwrap_or(access == Some(Access::Read));
    let tool = table.required("tool", "\"the server's name of it\"");
    let pin = table.required("pin", "\"sha256:…\"");
    let approved = tool.zip(tools.0.as_ref()).and_then(|(tool, source)| {
        let all = source.value.as_array().into_iter().flatten();
        let mut named = all.filter(|approved| approved["name"] == *tool);
        let found = named.next();
        if found.is_none() {
            table.mistake("tool", format!("the tool {tool:?} is not in {FILE}"), REMEDY);
        }
        if named.next().is_some() {
            table.mistake(
                "tool",
                format!("{FILE} has two tools {tool:?}, and nobody knows which was approved"),
                "take away the one that you did not approve",
            );
        }
        found
    });
    if let (Some(approved), Some(pin)) = (approved, pin)
        && pin::pin(approved) != pin
    {
        table.mistake(
            "pin",
            format!("what {FILE} says of the tool is not what this pins"),
            "take both files as they were approved; `belljar service approve` changes both",
        );
    }
    let own = (table.has("arguments"), table.has("result"));
    table.finish();
    let (tool, pin, approved) = (tool?.to_owned(), pin?.to_owned(), approved?);
    Some(Method {
        name: name.to_owned(),
        summary: summary?,
        access: access?,
        idempotent,
        arguments: if own.0 { arguments? } else { takes(approved) },
        result: if own.1 { result } else { Some(gives(approved)) },
        action: Action::Mcp(Tool {
            name: tool,
            pin,
            approved: pin::approved(approved),
        }),
        answer: Answer::Json,
        select: Pointer::default(),
        pages: None,
        idempotency_header: None,
        limits,
        fixtures: Vec::new(),
    })
}

/// What a tool takes: an object with nothing but what is named, unless it says otherwise.
fn takes(approved: &Value) -> Schema {
    let mut schema = schema::standing_alone(&approved["inputSchema"]);
    schema["type"] = "object".into();
    if let Some(map) = schema.as_object_mut() {
        map.entry("properties")
            .or_insert_with(|| Value::Object(serde_json::Map::new()));
        map.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    Schema::new(schema)
}

/// What a tool gives.
fn gives(approved: &Value) -> Schema {
    Schema::new(match approved.get("outputSchema") {
        Some(declared) if declared.is_object() => schema::standing_alone(declared),
        _ => result::unsaid(),
    })
}
