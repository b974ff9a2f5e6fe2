//! From a call's arguments to a request that reaches nothing but its own place.

mod path;
mod query;
mod value;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use url::Url;

use crate::definition::{Body, CursorPlace, Next, Pages, Template, Unfit};
use crate::plan::{HttpMethod, HttpPlan};

pub(crate) use query::{encode, write};

/// A request as it is made, with or without the credential; so it never prints.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub(crate) verb: http::Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Cloning shares it.
    pub(crate) body: Bytes,
}

impl Outgoing {
    /// Makes the request of a call. The arguments were checked against the method's schema.
    pub(crate) fn new(
        plan: &HttpPlan,
        method: &HttpMethod,
        pages: Option<&Pages>,
        mut arguments: Map<String, Value>,
        idempotency_key: &str,
    ) -> Result<Self, Unfit> {
        let cursor = match pages {
            Some(pages) => cursor(&mut arguments, &pages.next)?.map(|cursor| (&pages.cursor, cursor)),
            None => None,
        };
        let arguments = Value::Object(arguments);
        let request = &method.request;

        let mut pairs = Vec::new();
        for (name, template) in &request.query {
            if let Some(value) = value::fill(template, &arguments)? {
                query::flatten(name, &value, plan.api.nesting, &mut pairs)?;
            }
        }
        if let Some((CursorPlace::Query(name), cursor)) = &cursor {
            pairs.retain(|(present, _)| present != name);
            query::flatten(name, cursor, plan.api.nesting, &mut pairs)?;
        }
        let cursor = match cursor {
            Some((CursorPlace::Body(names), cursor)) => Some((&names[..], cursor)),
            _ => None,
        };

        let mut url = path::below(&plan.base, &request.path, &arguments)?;
        if !pairs.is_empty() {
            url.set_query(Some(&write(&pairs)));
        }
        let mut headers = plan.headers.clone();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        headers.entry(ACCEPT).or_insert_with(|| method.accept.clone());
        let (content_type, body) = body(&request.body, &arguments, plan, cursor)?;
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        for (name, template) in &method.headers {
            if let Some(value) = value::fill(template, &arguments)? {
                headers.insert(name, header(name, &value)?);
            }
        }
        if let Some(name) = &method.idempotency_header
            && let Ok(key) = HeaderValue::from_str(idempotency_key)
        {
            headers.insert(name, key);
        }
        Ok(Self {
            verb: request.verb.clone(),
            url,
            headers,
            body,
        })
    }
}

/// Takes the cursor out of the arguments, as the value that is sent.
fn cursor(arguments: &mut Map<String, Value>, next: &Next) -> Result<Option<Value>, Unfit> {
    let Some(Value::String(cursor)) = arguments.remove("cursor") else {
        return Ok(None);
    };
    let foreign = Unfit {
        argument: "cursor".to_owned(),
        reason: "is none that this method gave as `next`",
    };
    match next {
        Next::Number { .. } | Next::Offset { .. } => {
            let digits = cursor.bytes().all(|letter| letter.is_ascii_digit());
            let number = cursor.parse::<u64>().ok().filter(|_| digits).ok_or(foreign)?;
            Ok(Some(number.into()))
        }
        _ if cursor.is_empty() => Err(foreign),
        _ => Ok(Some(Value::String(cursor))),
    }
}

/// The body and what it is.
fn body(
    body: &Body,
    arguments: &Value,
    plan: &HttpPlan,
    cursor: Option<(&[String], Value)>,
) -> Result<(Option<&'static str>, Bytes), Unfit> {
    const JSON: Option<&str> = Some("application/json");
    match body {
        Body::None => Ok((None, Bytes::new())),
        Body::Json(template) => {
            let value = value::fill(template, arguments)?;
            match put(value, cursor) {
                Some(value) => Ok((JSON, value.to_string().into())),
                None => Ok((None, Bytes::new())),
            }
        }
        Body::Form(fields) => {
            let fields = put(Some(object(fields, arguments)?), cursor).unwrap_or_default();
            let mut pairs = Vec::new();
            for (name, value) in fields.as_object().into_iter().flatten() {
                query::flatten(name, value, plan.api.nesting, &mut pairs)?;
            }
            Ok((Some("application/x-www-form-urlencoded"), write(&pairs).into()))
        }
        Body::GraphQl { document, variables } => {
            let variables = put(Some(object(variables, arguments)?), cursor);
            let body = serde_json::json!({ "query": document, "variables": variables });
            Ok((JSON, body.to_string().into()))
        }
    }
}

fn object(fields: &[(String, Template)], arguments: &Value) -> Result<Value, Unfit> {
    let mut object = Map::new();
    for (name, template) in fields {
        match value::fill(template, arguments)? {
            // The rest of the arguments stands beside the others.
            Some(Value::Object(rest)) if name.is_empty() => object.extend(rest),
            Some(value) => {
                object.insert(name.clone(), value);
            }
            None => {}
        }
    }
    Ok(Value::Object(object))
}

/// Puts a value at a place of an object, making what is not there.
fn put(value: Option<Value>, place: Option<(&[String], Value)>) -> Option<Value> {
    let Some((names, cursor)) = place else { return value };
    let mut whole = value.unwrap_or_default();
    let mut at = &mut whole;
    for name in names {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[name.as_str()];
    }
    *at = cursor;
    Some(whole)
}

fn header(name: &HeaderName, value: &Value) -> Result<HeaderValue, Unfit> {
    let text = value::scalar(value).unwrap_or_default();
    HeaderValue::from_str(&text).map_err(|_| Unfit {
        argument: format!("of the header {name}"),
        reason: "has characters that a header cannot carry: line breaks or control characters",
    })
}
