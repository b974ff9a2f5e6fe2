//! Services as tools of the Model Context Protocol: streamable HTTP without sessions, one JSON answer to each request.
//!
//! A tool is a method, called `service-method`: no name of either has a `-`, so no two have one name. A call goes the way of a
//! call from `exec`: the control plane decides on it, audits it, and adds what authenticates it. (modelcontextprotocol.io,
//! revision 2025-11-25, and those before.)

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use domain::MessageId;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use protocol::{MethodGrant, SERVICE_REQUEST_PARTS, ServiceFailure, ServiceGrant, ServiceRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Offered;
use super::door::{Body, json_body};

/// Revisions that are spoken, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The longest result that goes into an answer: a model is to read it.
const RESULT_BYTES: usize = 1 << 20;

/// What JSON-RPC calls a request that is none, a method that is none, and arguments that do not fit.
const NO_REQUEST: i32 = -32_600;
const NO_METHOD: i32 = -32_601;
const UNFIT: i32 = -32_602;

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
}

/// Answers one message. What is not read of it stays in the body.
pub(super) async fn answer(offered: &Offered, body: &mut Option<Incoming>) -> Response<Body> {
    // Held to the end: a message in memory has its place, whatever it wants.
    let read = async {
        let place = offered.place().await?;
        let whole = match body {
            Some(body) => super::body::call(body).await?,
            None => Bytes::new(),
        };
        Ok::<_, ServiceFailure>((place, whole))
    };
    let (_place, whole) = match read.await {
        Ok(read) => read,
        Err(failure) => {
            let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::BAD_REQUEST);
            return json_body(status, &error(&Value::Null, NO_REQUEST, &failure.message));
        }
    };
    let message: Message = match protocol::parse(SERVICE_REQUEST_PARTS, &whole) {
        Ok(message) => message,
        Err(wrong) => {
            let words = format!("this is no JSON-RPC message: {wrong}");
            return json_body(StatusCode::BAD_REQUEST, &error(&Value::Null, NO_REQUEST, &words));
        }
    };
    let Message { id, method, params } = message;
    let (Some(id @ (Value::String(_) | Value::Number(_))), Some(method)) = (id, method) else {
        // A notification, or an answer to what was never asked.
        return accepted();
    };
    let answer = match method.as_str() {
        "initialize" => Ok(initialized(&params)),
        "ping" => Ok(json!({})),
        "tools/list" => {
            Ok(json!({"tools": offered.tools().map(|(name, _, method)| tool(&name, method)).collect::<Vec<_>>()}))
        }
        "tools/call" => offered.call_tool(&params).await,
        _ => Err((
            NO_METHOD,
            format!(
                "there is no method {:?} here",
                method.chars().take(80).collect::<String>()
            ),
        )),
    };
    let answer = match answer {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, words)) => error(&id, code, &words),
    };
    json_body(StatusCode::OK, &answer)
}

fn accepted() -> Response<Body> {
    let nothing = Full::new(Bytes::new()).map_err(|never| match never {});
    let mut response = Response::new(nothing.boxed_unsync());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn error(id: &Value, code: i32, words: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": words}})
}

fn initialized(params: &Value) -> Value {
    let wanted = params["protocolVersion"].as_str().unwrap_or_default();
    let revision = REVISIONS
        .iter()
        .find(|revision| **revision == wanted)
        .unwrap_or(&REVISIONS[0]);
    json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "belljar", "version": env!("CARGO_PKG_VERSION")},
        "instructions": "Methods of the services that this session may use. What is denied is not listed.",
    })
}

fn tool(name: &str, method: &MethodGrant) -> Value {
    let mut schema = method.arguments.clone();
    if schema.get("type").is_none()
        && let Some(schema) = schema.as_object_mut()
    {
        // Clients insist on it.
        schema.insert("type".to_owned(), "object".into());
    }
    json!({
        "name": name, "description": method.summary, "inputSchema": schema,
        "annotations": {"readOnlyHint": method.read_only, "openWorldHint": true},
    })
}

impl Offered {
    /// The tools: name, service, method.
    fn tools(&self) -> impl Iterator<Item = (String, &ServiceGrant, &MethodGrant)> {
        self.services
            .iter()
            .flat_map(|service| service.tools.iter().map(move |method| (service, method)))
            .map(|(service, method)| (format!("{}-{}", service.name, method.name), service, method))
    }

    async fn call_tool(&self, params: &Value) -> Result<Value, (i32, String)> {
        let wanted = params["name"].as_str().unwrap_or_default();
        let Some((_, service, method)) = self.tools().find(|(name, ..)| name == wanted) else {
            let shown: String = wanted.chars().take(80).collect();
            return Err((UNFIT, format!("there is no tool {shown:?} here")));
        };
        let request = ServiceRequest {
            service: service.name.clone(),
            method: method.name.clone(),
            args: params["arguments"].clone(),
            call: None,
            // A client that tries again means another call, so it is of this one alone.
            idempotency_key: Some(format!("mcp-{}", MessageId::new())),
        };
        Ok(match self.result(&request).await {
            Ok(result) => result,
            Err(failure) => {
                let remedy = failure.remedy.map(|remedy| format!("\n{remedy}")).unwrap_or_default();
                let words = format!("{} ({}, {}){remedy}", failure.message, failure.code, failure.status);
                json!({"content": [{"type": "text", "text": words}], "isError": true})
            }
        })
    }

    async fn result(&self, request: &ServiceRequest) -> Result<Value, ServiceFailure> {
        let body = Bytes::from(serde_json::to_vec(request).unwrap_or_default());
        let mut answer = self.ask(&body).await?;
        let mut bytes = Vec::new();
        loop {
            match answer.body.chunk().await {
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                Ok(None) => break,
                Err(_) => return Err(ServiceFailure::new(502, "link_lost", "the result broke off")),
            }
            if bytes.len() > RESULT_BYTES {
                let words = format!("the result is longer than {RESULT_BYTES} bytes");
                let remedy = "ask for less, or call it from code and write the result to a file";
                return Err(ServiceFailure::new(413, "too_long", words).remedy(remedy));
            }
        }
        let media_type = answer
            .media_type
            .as_ref()
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        Ok(content(media_type, bytes, request))
    }
}

/// A result as a client reads it.
fn content(media_type: &str, bytes: Vec<u8>, request: &ServiceRequest) -> Value {
    let kind = media_type.split(';').next().unwrap_or_default();
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(binary) => {
            let data = STANDARD.encode(binary.as_bytes());
            let part = if kind.starts_with("image/") {
                json!({"type": "image", "data": data, "mimeType": kind})
            } else {
                let address = format!("belljar://{}/{}", request.service, request.method);
                json!({"type": "resource", "resource": {"uri": address, "mimeType": kind, "blob": data}})
            };
            return json!({"content": [part], "isError": false});
        }
    };
    let structured = serde_json::from_str::<Value>(&text).ok().filter(Value::is_object);
    let mut result = json!({"content": [{"type": "text", "text": text}], "isError": false});
    if let Some(structured) = structured.filter(|_| kind == "application/json") {
        result["structuredContent"] = structured;
    }
    result
}
