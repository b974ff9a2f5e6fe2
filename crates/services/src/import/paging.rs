//! Pages, where a description lets them be seen.

use serde_json::Value;

use super::document::Document;

/// What was seen.
pub(super) struct Found<'d> {
    /// The parameter that takes the cursor.
    pub(super) parameter: String,
    /// The schema of one item.
    pub(super) item: &'d Value,
    /// As it is written in a definition.
    pub(super) pages: String,
}

/// Names of parameters that take a cursor.
const CURSORS: [&str; 10] = [
    "after",
    "cursor",
    "next_cursor",
    "next_page_token",
    "next_token",
    "nextToken",
    "pageToken",
    "page_token",
    "pagetoken",
    "start_cursor",
];
/// Where answers name the next cursor.
const NEXT: [&str; 14] = [
    "/next_cursor",
    "/nextCursor",
    "/next_page_token",
    "/nextPageToken",
    "/next_token",
    "/nextToken",
    "/paging/next/after",
    "/pagination/cursor",
    "/pagination/next_cursor",
    "/pagination/nextCursor",
    "/meta/next_cursor",
    "/meta/nextCursor",
    "/page/next_cursor",
    "/cursor",
];
/// Where answers say whether there is more.
const MORE: [&str; 6] = [
    "/has_more",
    "/hasMore",
    "/pagination/has_next_page",
    "/pagination/has_more",
    "/meta/has_more",
    "/has_next_page",
];

/// Pages of a list: the answer has one list and names a cursor that a parameter takes, or its `Link` header says where the
/// next page is.
pub(super) fn find<'d>(
    document: &'d Document,
    answer: &'d Value,
    query: &[(String, String)],
    operation: &'d Value,
) -> Option<Found<'d>> {
    let answer = document.follow(answer)?;
    let (items, item) = list(document, answer)?;
    if let Some(parameter) = CURSORS.iter().find(|name| has(query, name))
        && let Some(next) = NEXT.iter().find(|pointer| schema(document, answer, pointer).is_some())
    {
        let more = MORE.iter().find(|pointer| schema(document, answer, pointer).is_some());
        let more = more.map_or_else(String::new, |more| format!(", more = \"{more}\""));
        let pages = format!("{{ items = \"{items}\", cursor = \"{parameter}\", next = \"{next}\"{more} }}");
        return Some(Found {
            parameter: (*parameter).to_owned(),
            item,
            pages,
        });
    }
    let good = operation["responses"]
        .as_object()?
        .iter()
        .find(|(status, _)| status.starts_with('2'))?
        .1;
    let headers = document.follow(good)?.get("headers")?.as_object()?;
    if headers.keys().any(|name| name.eq_ignore_ascii_case("link")) && has(query, "page") {
        let pages = format!("{{ items = \"{items}\", cursor = \"page\", next_link = \"page\" }}");
        return Some(Found {
            parameter: "page".into(),
            item,
            pages,
        });
    }
    None
}

fn has(query: &[(String, String)], name: &str) -> bool {
    query.iter().any(|(parameter, _)| parameter == name)
}

/// Where the one list of an answer stands, and the schema of its items.
fn list<'d>(document: &'d Document, answer: &'d Value) -> Option<(String, &'d Value)> {
    if answer["type"] == "array" {
        return Some((String::new(), answer.get("items")?));
    }
    let lists: Vec<(&String, &Value)> = answer["properties"]
        .as_object()?
        .iter()
        .filter_map(|(name, schema)| Some((name, document.follow(schema)?)))
        .filter(|(_, schema)| schema["type"] == "array")
        .collect();
    let [(name, schema)] = lists.as_slice() else {
        return None;
    };
    let plain = name
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    plain.then_some((format!("/{name}"), schema.get("items")?))
}

/// The schema of a part of an answer.
fn schema<'d>(document: &'d Document, answer: &'d Value, pointer: &str) -> Option<&'d Value> {
    pointer
        .split('/')
        .skip(1)
        .try_fold(answer, |part, name| document.follow(part)?.get("properties")?.get(name))
}
