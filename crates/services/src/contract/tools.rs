//! An MCP server that has the tools that were approved, and gives recorded answers.
//!
//! It speaks the protocol of 2025-11-25, without sessions and streams, which every client may be answered with.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::Script;
use crate::Exchange;

/// What a message is answered.
pub(super) enum Reply {
    /// A message.
    Message(Value),
    /// A refusal before there is one, as it was recorded.
    Refusal(Exchange),
}

/// The answer to a message; none where it wants none.
pub(super) fn reply(message: &Value, tools: &[Value], script: &Mutex<Script>) -> Option<Reply> {
    let id = message.get("id")?;
    let parameters = &message["params"];
    let answered = match message["method"].as_str() {
        Some("initialize") => json!({ "result": {
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "contract", "version": "1" },
        } }),
        Some("tools/list") => json!({ "result": { "tools": tools } }),
        Some("tools/call") => match call(parameters, script) {
            Ok(answer) => answer,
            Err(refusal) => return Some(Reply::Refusal(refusal)),
        },
        _ => json!({ "error": { "code": -32601, "message": "there is no such method" } }),
    };
    let mut reply = json!({ "jsonrpc": "2.0", "id": id });
    if let (Some(reply), Value::Object(answered)) = (reply.as_object_mut(), answered) {
        reply.extend(answered);
    }
    Some(Reply::Message(reply))
}

/// Checks a call against the next exchange, and gives the recorded answer: a result, or an object with `error`. An exchange with a status
/// that is not good is an answer by itself.
fn call(parameters: &Value, script: &Mutex<Script>) -> Result<Value, Exchange> {
    let failed = json!({ "error": { "code": -32603, "message": "nothing was recorded" } });
    let made = format!("tools/call {}", parameters["name"].as_str().unwrap_or_default());
    let Ok(mut script) = script.lock() else {
        return Ok(failed);
    };
    let Some(exchange) = script.exchanges.pop_front() else {
        script.wrong.push(format!("{made} was made, and none was recorded"));
        return Ok(failed);
    };
    if made != exchange.request {
        script
            .wrong
            .push(format!("the call was {made}, recorded is {}", exchange.request));
    }
    let sent = parameters.get("arguments").cloned().unwrap_or_else(|| json!({}));
    script.hold(&made, exchange.body.as_ref(), &sent, true);
    if exchange.status >= 300 {
        return Err(exchange);
    }
    Ok(match exchange.answer.get("error") {
        Some(error) => json!({ "error": error }),
        None => json!({ "result": exchange.answer }),
    })
}
