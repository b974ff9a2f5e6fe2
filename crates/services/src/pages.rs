//! One page of a long list, and where the next one is.

use http::HeaderMap;
use http::header::LINK;
use serde_json::Value;
use url::Url;

use crate::definition::{Next, Pages, Pointer};
use crate::select::Json;

/// The list of a page, and the cursor of the next: `{"items":[…],"next":"…"|null}`. None where the page has no list.
///
/// `cursor` is what this page was asked for with. A URL that the upstream gives is taken apart, never followed.
pub(crate) fn page(
    pages: &Pages,
    page: Json<'_>,
    headers: &HeaderMap,
    base: &Url,
    cursor: Option<&str>,
) -> Option<String> {
    let list = page.at(&pages.items.0)?;
    let items = list.list()?;
    let more = |at: &Pointer| page.value_at(&at.0).map(|more| is_true(&more));
    let has_more = |at: &Option<Pointer>| at.as_ref().and_then(more) != Some(false);
    let next = match &pages.next {
        Next::Body { at, more } => has_more(more).then(|| page.value_at(&at.0).and_then(text)).flatten(),
        Next::Link(parameter) => link(headers).and_then(|url| parameter_of(base, &url, parameter)),
        Next::Url { at, parameter } => page
            .value_at(&at.0)
            .and_then(text)
            .and_then(|url| parameter_of(base, &url, parameter)),
        Next::LastItem { at, more: place } => (more(place) == Some(true))
            .then(|| items.last().and_then(|item| item.value_at(&at.0)).and_then(text))
            .flatten(),
        Next::Number { first, more } => (!items.is_empty() && has_more(more))
            .then(|| (number(cursor).unwrap_or(*first).saturating_add(1)).to_string()),
        Next::Offset { more } => (!items.is_empty() && has_more(more))
            .then(|| (number(cursor).unwrap_or(0).saturating_add(items.len() as u64)).to_string()),
    };
    let next = Value::from(next);
    let mut answer = String::with_capacity(list.text().len() + 64);
    answer.push_str("{\"items\":");
    answer.push_str(list.text());
    answer.push_str(",\"next\":");
    answer.push_str(&next.to_string());
    answer.push('}');
    Some(answer)
}

fn number(cursor: Option<&str>) -> Option<u64> {
    cursor?.parse().ok()
}

/// A cursor is a text or a number; none is absent, null or empty.
fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Some say whether there is more with a boolean, some by what there is.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(truth) => *truth,
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(list) => !list.is_empty(),
        Value::Object(_) => true,
    }
}

/// The URL that a `Link` header calls next (RFC 8288).
fn link(headers: &HeaderMap) -> Option<String> {
    headers
        .get_all(LINK)
        .iter()
        .filter_map(|header| header.to_str().ok())
        .find_map(|header| {
            let mut rest = header;
            while let Some((_, after)) = rest.split_once('<') {
                let (url, after) = after.split_once('>')?;
                let parameters = after.split('<').next().unwrap_or_default();
                let is_next = parameters.split([';', ',']).any(|parameter| {
                    parameter.split_once('=').is_some_and(|(name, value)| {
                        name.trim().eq_ignore_ascii_case("rel")
                            && value
                                .trim()
                                .trim_matches('"')
                                .split_ascii_whitespace()
                                .any(|relation| relation.eq_ignore_ascii_case("next"))
                    })
                });
                if is_next {
                    return Some(url.trim().to_owned());
                }
                rest = after;
            }
            None
        })
}

/// A parameter of a URL's query.
fn parameter_of(base: &Url, url: &str, parameter: &str) -> Option<String> {
    let url = base.join(url).ok()?;
    let value = url.query_pairs().find(|(name, _)| name == parameter)?.1.into_owned();
    Some(value).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::CursorPlace;

    fn at(pointer: &str) -> Pointer {
        Pointer(pointer.to_owned())
    }

    fn next(next: Next, body: &str, link: &str, cursor: Option<&str>) -> Value {
        let pages = Pages {
            items: at("/items"),
            cursor: CursorPlace::Query("after".to_owned()),
            next,
        };
        let mut headers = HeaderMap::new();
        headers.insert(LINK, link.parse().unwrap());
        let base = Url::parse("https://api.example.com/v1").unwrap();
        let json = Json::check(body.as_bytes()).unwrap();
        let answer = page(&pages, json, &headers, &base, cursor).unwrap();
        serde_json::from_str::<Value>(&answer).unwrap()["next"].take()
    }

    #[test]
    fn the_next_page_is_found_as_the_upstream_tells_it() {
        let body = || Next::Body {
            at: at("/next"),
            more: Some(at("/more")),
        };
        assert_eq!(next(body(), r#"{"items":[],"next":"a b"}"#, "", None), "a b");
        assert_eq!(next(body(), r#"{"items":[],"next":7,"more":true}"#, "", None), "7");
        for end in [
            r#"{"items":[]}"#,
            r#"{"items":[],"next":null}"#,
            r#"{"items":[],"next":""}"#,
            r#"{"items":[],"next":"a","more":false}"#,
        ] {
            assert_eq!(next(body(), end, "", None), Value::Null, "{end}");
        }
        let last = || Next::LastItem {
            at: at("/id"),
            more: at("/more"),
        };
        let items = r#"{"items":[{"id":"a"},{"id":"b"}],"more":true}"#;
        assert_eq!(next(last(), items, "", None), "b");
        assert_eq!(next(last(), r#"{"items":[{"id":"a"}]}"#, "", None), Value::Null);
        let number = || Next::Number { first: 1, more: None };
        assert_eq!(next(number(), items, "", None), "2");
        assert_eq!(next(number(), items, "", Some("9")), "10");
        assert_eq!(next(number(), r#"{"items":[]}"#, "", Some("9")), Value::Null);
        let offset = || Next::Offset {
            more: Some(at("/more")),
        };
        assert_eq!(next(offset(), items, "", Some("10")), "12");
        assert_eq!(next(offset(), r#"{"items":[1],"more":false}"#, "", None), Value::Null);
    }

    #[test]
    fn threat_038_a_next_url_is_taken_apart_and_never_followed() {
        let link = || Next::Link("page".to_owned());
        let body = r#"{"items":[1]}"#;
        let header =
            r#"<https://api.example.com/v1/x?page=1>; rel="prev", <https://evil.com/?page=3&x=1>; rel="last next""#;
        assert_eq!(next(link(), body, header, None), "3");
        assert_eq!(next(link(), body, r#"</x?page=4>; REL=next"#, None), "4");
        for none in [
            "",
            "<https://a/?page=1>; rel=prev",
            "<https://a/>; rel=next",
            "<a",
            "<>; rel=next",
        ] {
            assert_eq!(next(link(), body, none, None), Value::Null, "{none}");
        }
        let url = Next::Url {
            at: at("/next"),
            parameter: "cursor".to_owned(),
        };
        let body = r#"{"items":[],"next":"http://169.254.169.254/?cursor=a%26b"}"#;
        assert_eq!(next(url, body, "", None), "a&b");
    }
}
