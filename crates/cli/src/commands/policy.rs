//! Who may do what, layer by layer.

use std::io::Write;

use serde_json::Value;

use crate::arguments::ExplainArguments;
use crate::terminal::one_line;
use crate::{Client, ClientError, Outcome};

use super::{encoded, output, resolve};

/// Prints what each layer says and what comes of it. What is denied is said to the shell too.
pub(super) async fn explain(client: &Client, arguments: &ExplainArguments, json: bool) -> Result<Outcome, ClientError> {
    let mut path = format!(
        "/policy/explain?question={}&door={}",
        encoded(&arguments.question),
        encoded(&arguments.door)
    );
    if let Some(user) = &arguments.user {
        path.push_str(&format!("&user={}", encoded(user)));
    }
    if let Some(session) = &arguments.session {
        path.push_str(&format!("&session={}", resolve(client, session).await?));
    }
    let explained: Value = client.get(&path).await?;
    let mut out = std::io::stdout().lock();
    let text = |value: &Value| one_line(value.as_str().unwrap_or_default(), 400);
    let outcome = &explained["decision"]["outcome"];
    if json {
        writeln!(out, "{explained}").map_err(output)?;
    } else {
        for layer in explained["layers"].as_array().into_iter().flatten() {
            let said = layer["outcome"].as_str().unwrap_or("—");
            writeln!(out, "{said:<6} {}", text(&layer["reason"])).map_err(output)?;
        }
        for notice in explained["notices"].as_array().into_iter().flatten() {
            writeln!(out, "\nnotice: {}", text(notice)).map_err(output)?;
        }
        let decision = &explained["decision"];
        let line = format!("{}: {}", text(outcome), text(&decision["reason"]));
        writeln!(out, "\n{line} [{}]", text(&decision["rule"])).map_err(output)?;
    }
    Ok(if outcome == "deny" {
        Outcome::Denied
    } else {
        Outcome::Done
    })
}
