//! `{{ result.0.json.mean | fixed 2 }}`: values out of the last tool results.

use std::borrow::Cow;

use serde_json::{Deserializer, Value};

use super::request::Request;

/// Puts values in the place of every `{{ … }}` of a text.
pub(super) fn fill(text: &str, request: &Request) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((expression, after)) = after.split_once("}}") else {
            return Err(format!("a {{{{ has no }}}}: {:?}", shortened(rest)));
        };
        filled.push_str(before);
        match value(expression, request)? {
            Value::String(text) => filled.push_str(&text),
            other => filled.push_str(&other.to_string()),
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Fills every text within a value. A text that is one `{{ … }}` and nothing else becomes the value itself.
pub(super) fn fill_value(value_of: &Value, request: &Request) -> Result<Value, String> {
    Ok(match value_of {
        Value::String(text) => {
            let whole = text.trim().strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
            match whole.filter(|expression| !expression.contains("{{")) {
                Some(expression) => value(expression, request)?,
                None => Value::String(fill(text, request)?),
            }
        }
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| fill_value(item, request))
                .collect::<Result<_, _>>()?,
        ),
        Value::Object(fields) => {
            let filled = fields
                .iter()
                .map(|(key, field)| Ok::<_, String>((key.clone(), fill_value(field, request)?)));
            Value::Object(filled.collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

fn value(expression: &str, request: &Request) -> Result<Value, String> {
    let expression = expression.trim();
    let (path, format) = match expression.split_once('|') {
        Some((path, format)) => (path.trim(), Some(format.trim())),
        None => (expression, None),
    };
    let found = look_up(path, request).map_err(|problem| format!("{{{{ {path} }}}} has no value: {problem}"))?;
    let Some(format) = format else {
        return Ok(found);
    };
    let places = format
        .strip_prefix("fixed ")
        .and_then(|places| places.trim().parse::<usize>().ok());
    let Some(places) = places.filter(|places| *places <= 20) else {
        return Err(format!(
            "{{{{ {expression} }}}}: there is no format {format:?}; there is: fixed 0 … fixed 20"
        ));
    };
    let number = found.as_f64().or_else(|| found.as_str()?.trim().parse().ok());
    let number =
        number.ok_or_else(|| format!("{{{{ {expression} }}}}: {} is no number", shortened(&found.to_string())))?;
    Ok(Value::String(format!("{number:.places$}")))
}

fn look_up(path: &str, request: &Request) -> Result<Value, String> {
    let mut steps = path.split('.');
    match steps.next() {
        Some("prompt") if steps.next().is_none() => return Ok(Value::String(request.prompt.clone())),
        Some("turn") if steps.next().is_none() => return Ok(request.turn.into()),
        Some("result") => {}
        _ => return Err("a path is prompt, turn, result.0.text or result.0.json.some.key".to_owned()),
    }
    let number = steps.next().unwrap_or_default();
    let count = request.results.len();
    let text = number.parse().ok().and_then(|place: usize| request.results.get(place));
    let text = text.ok_or_else(|| format!("there is no result {number:?}: there are {count}, counted from 0"))?;
    match steps.next() {
        Some("text") if steps.next().is_none() => Ok(Value::String(text.clone())),
        Some("json") => {
            let whole = json_in(text).ok_or_else(|| format!("the result is no JSON: {:?}", shortened(text)))?;
            steps.try_fold(whole, |value, step| {
                let next = match &value {
                    Value::Array(items) => step.parse().ok().and_then(|place: usize| items.get(place)),
                    other => other.get(step),
                };
                next.cloned()
                    .ok_or_else(|| format!("there is no {step:?} in {}", shortened(&value.to_string())))
            })
        }
        _ => Err("after the result's number stands .text or .json".to_owned()),
    }
}

/// The JSON of a result: all of it, or the first object or list that begins a line.
fn json_in(text: &str) -> Option<Value> {
    if let Ok(value) = serde_json::from_str(text.trim()) {
        return Some(value);
    }
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(place, _)| place + 1));
    lines
        .filter(|start| text[*start..].starts_with(['{', '[']))
        .find_map(|start| Deserializer::from_str(&text[start..]).into_iter().next()?.ok())
}

fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(200) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}
