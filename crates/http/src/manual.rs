//! `docs/api.md`, written from the description.

use std::fmt::Write as _;

use serde_json::Value;

/// The API as a page for people, from the description as JSON.
#[must_use]
pub fn manual() -> String {
    let description = serde_json::to_value(crate::description()).unwrap_or_default();
    let mut text = String::from(
        "# The HTTP API\n\n\
         Generated from the code, as is the OpenAPI description `docs/api.json` (also at `GET /api/v1/openapi.json`).\n\n\
         Every request but `GET /healthz` carries `Authorization: Bearer <token>` (`POST /api/proxy` that of a session); a token in a URL is refused. The first start of `belljar serve`\n\
         makes the first token, `belljar token add` makes more. What is not yours does not exist (404).\n\n\
         An error is `{\"error\": {\"code\": \"not_found\", \"message\": \"…\"}}`: the code is for programs, the message for people.\n\
         Times are milliseconds since 1970 (UTC), money is whole nano-dollars (10⁻⁹ US dollars).\n\n\
         ```sh\n\
         curl -H \"Authorization: Bearer $BELLJAR_TOKEN\" -d '{\"key\": \"first\"}' http://127.0.0.1:7717/api/v1/sessions\n\
         ```\n",
    );
    let empty = serde_json::Map::new();
    let object = |value: &'_ Value| value.as_object().cloned().unwrap_or_else(|| empty.clone());
    for (path, item) in object(&description["paths"]) {
        for (method, operation) in object(&item) {
            let _ = write!(text, "\n## {} {path}\n\n{}\n", method.to_uppercase(), words(&operation));
            if operation["parameters"].is_array() {
                text.push('\n');
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let _ = writeln!(
                    text,
                    "- `{}` ({}): {}",
                    parameter["name"].as_str().unwrap_or_default(),
                    parameter["in"].as_str().unwrap_or_default(),
                    parameter["description"].as_str().unwrap_or("names it"),
                );
            }
            if let Some(body) = content(&operation["requestBody"]) {
                let _ = write!(text, "\nSends {body}.");
            }
            if let Some(body) = content(&operation["responses"]["200"]) {
                let _ = write!(text, "\nAnswers with {body}.");
            }
            text.push('\n');
        }
    }
    text.push_str("\n## Types\n");
    for (name, schema) in object(&description["components"]["schemas"]) {
        let _ = write!(text, "\n### {name}\n\n");
        if let Some(about) = schema["description"].as_str() {
            let _ = writeln!(text, "{about}\n");
        }
        members(&mut text, &schema, "");
    }
    text
}

fn words(operation: &Value) -> String {
    let part = |name: &str| operation[name].as_str().unwrap_or_default().trim().to_owned();
    format!("{}\n\n{}", part("summary"), part("description"))
        .trim_end()
        .to_owned()
}

/// A body in words: its schema's name, or its media type.
fn content(body: &Value) -> Option<String> {
    let (media_type, content) = body["content"].as_object()?.iter().next()?;
    Some(match content["schema"]["$ref"].as_str() {
        Some(name) => format!("[{0}](#{1}) as `{media_type}`", short(name), short(name).to_lowercase()),
        None => format!("`{media_type}`"),
    })
}

fn short(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap_or(reference)
}

/// The members of a schema, one line each; alternatives one below the other.
fn members(text: &mut String, schema: &Value, indent: &str) {
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap_or_default()))
            .collect();
        let _ = writeln!(text, "{indent}- {}", words.join(", "));
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let about = member["description"].as_str().unwrap_or_default().replace('\n', " ");
        let _ = writeln!(text, "{indent}- `{name}` ({}): {about}", kind(member));
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        for part in schema[choice].as_array().into_iter().flatten() {
            let about = part["description"].as_str().unwrap_or_default();
            let _ = writeln!(text, "{indent}- {} {about}", kind(part));
            members(text, part, &format!("{indent}  "));
        }
    }
}

fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return format!("[{0}](#{1})", short(reference), short(reference).to_lowercase());
    }
    if let Some(parts) = schema["oneOf"].as_array() {
        return parts.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap_or_default()));
        return words.collect::<Vec<_>>().join(", ");
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "anything".into(),
    }
}
