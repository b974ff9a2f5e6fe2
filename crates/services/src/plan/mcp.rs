//! What only services of kind `mcp` need to be called.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dial::Allow;

use super::{MethodPlan, Problems, Shared};
use crate::client::{Client, ClientError};
use crate::credentials::Credentials;
use crate::definition::{Auth, Server, Service};
use crate::mcp::{Launch, McpPlan, Parts, Way, Wire};
use crate::settings::ServiceSettings;

/// The least time and room that a connection and a list of tools are given, whatever the methods have.
const CONNECT: Duration = Duration::from_secs(30);
const LIST_BYTES: u64 = 1 << 20;

/// Binds the definition of an MCP server to what the operator says. Nothing where a problem was said.
pub(super) fn plan(
    service: &Arc<Service>,
    server: &Server,
    methods: &HashMap<String, MethodPlan>,
    settings: &ServiceSettings,
    shared: &Shared,
    problems: &mut Problems<'_>,
) -> Result<Option<McpPlan>, ClientError> {
    let credentials = Credentials::new(
        &service.name,
        &service.auth,
        settings.auth.clone(),
        shared.secrets.clone(),
    );
    // An answer may say the same twice, as text and structured, and as a string in a string.
    let bytes = methods
        .values()
        .map(|method| method.answer_bytes)
        .max()
        .unwrap_or_default();
    let bytes = bytes.saturating_mul(3).max(LIST_BYTES);
    let way = match server {
        Server::Url { url, headers } => {
            let base = problems.base(settings.base_url.as_ref().unwrap_or(url), settings);
            let headers = problems.headers(headers);
            let Some(base) = base else { return Ok(None) };
            let allow = Allow {
                networks: settings.addresses.clone(),
            };
            let timeout = methods.values().map(|method| method.timeout).max().unwrap_or_default();
            Way::Url(Wire(Arc::new(Parts {
                what: service.name.clone(),
                base,
                headers,
                client: Client::new(&service.name, shared.tls.clone(), shared.dialer.clone(), allow)?,
                credentials,
                tasks: shared.tasks.clone(),
                timeout: timeout.max(CONNECT),
                bytes,
                broken: Default::default(),
            })))
        }
        Server::Command(command) => {
            if settings.base_url.is_some() || !settings.addresses.is_empty() {
                problems.say(
                    "base_url",
                    "the service is a program on this machine, which has no address",
                    "take base_url and addresses away",
                );
                return Ok(None);
            }
            Way::Program(Arc::new(Launch {
                folder: service.folder.clone(),
                command: command.clone(),
                variable: service.auth.iter().find_map(|auth| match auth {
                    Auth::Environment { name } => Some(name.clone()),
                    _ => None,
                }),
                credentials,
                tasks: shared.tasks.clone(),
            }))
        }
    };
    Ok(Some(McpPlan::new(&service.name, way, bytes)))
}
