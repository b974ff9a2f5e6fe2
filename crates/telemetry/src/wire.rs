//! Spans as OTLP writes them: an `ExportTraceServiceRequest` as JSON.

use serde_json::{Value as Json, json};

use crate::span::{Data, Value};

/// The kind of a span within one program.
const INTERNAL: u8 = 1;
/// The status of what failed.
const ERROR: u8 = 2;

/// The request that tells of these spans.
pub(crate) fn request(spans: &[Data]) -> Json {
    let spans: Vec<_> = spans.iter().map(span).collect();
    let scope = json!({ "name": "belljar", "version": env!("CARGO_PKG_VERSION") });
    let resource = [
        attribute("service.name", &Value::from("belljar")),
        attribute("service.version", &Value::from(env!("CARGO_PKG_VERSION"))),
    ];
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
}

fn span(data: &Data) -> Json {
    let attributes = data.attributes.iter().map(|(key, value)| attribute(key, value));
    let status = match &data.failure {
        Some(code) => json!({ "code": ERROR, "message": code }),
        None => json!({}),
    };
    json!({
        "traceId": format!("{:032x}", data.place.trace.0),
        "spanId": format!("{:016x}", data.place.span.0),
        "parentSpanId": data.place.parent.map_or_else(String::new, |parent| format!("{:016x}", parent.0)),
        "name": data.name,
        "kind": INTERNAL,
        // Numbers of 64 bits are texts in this form of JSON.
        "startTimeUnixNano": data.start.to_string(),
        "endTimeUnixNano": data.end.to_string(),
        "attributes": attributes.collect::<Vec<_>>(),
        "status": status,
    })
}

fn attribute(key: &str, value: &Value) -> Json {
    let value = match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Whole(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": key, "value": value })
}

/// How many spans a collector says that it has not taken, though it took the request.
pub(crate) fn rejected(answer: &[u8]) -> u64 {
    let answer: Json = serde_json::from_slice(answer).unwrap_or_default();
    let rejected = &answer["partialSuccess"]["rejectedSpans"];
    rejected
        .as_u64()
        .or_else(|| rejected.as_str()?.parse().ok())
        .unwrap_or(0)
}
