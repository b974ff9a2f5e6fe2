//! `pages = { items = "/results", cursor = "after", next = "/paging/next/after" }`

use super::table::Table;
use crate::definition::{CursorPlace, Next, Pages, Pointer};

/// Reads how a long list is asked for.
pub(super) fn read(table: Table<'_>) -> Option<Pages> {
    let items = table.value("items").map_or_else(
        || {
            table.required(
                "items",
                "\"/results\", the JSON pointer of the list in an answer, or \"\" where the answer is the list",
            );
            None
        },
        |_| pointer(&table, "items"),
    );
    let cursor = table.required("cursor", "\"after\", the parameter that takes the cursor");
    let cursor = cursor.map(|cursor| match cursor.strip_prefix("body:") {
        Some(path) => CursorPlace::Body(path.split('.').map(str::to_owned).collect()),
        None => CursorPlace::Query(cursor.to_owned()),
    });
    let next = next(&table);
    table.finish();
    Some(Pages {
        items: items?,
        cursor: cursor?,
        next: next?,
    })
}

fn next(table: &Table<'_>) -> Option<Next> {
    let more = table.has("more").then(|| pointer(table, "more")).flatten();
    let ways = ["next", "next_link", "next_url", "last_item", "first_page", "offset"];
    let given: Vec<&str> = ways.into_iter().filter(|way| table.has(way)).collect();
    let [given] = given.as_slice() else {
        table.mistake(
            "",
            "it is not said how the next page is found, or in two ways",
            "write one of next = \"/paging/next/after\", next_link = \"page\" (a parameter of the Link header's next URL), \
             next_url = [\"/links/next\", \"page\"], last_item = \"/id\", first_page = 1 or offset = true",
        );
        return None;
    };
    match *given {
        "next" => Some(Next::Body {
            at: pointer(table, "next")?,
            more,
        }),
        "next_link" => table.text("next_link").map(|name| Next::Link(name.to_owned())),
        "next_url" => match table.texts("next_url").as_slice() {
            [at, parameter] if at.starts_with('/') => Some(Next::Url {
                at: Pointer((*at).to_owned()),
                parameter: (*parameter).to_owned(),
            }),
            _ => {
                table.mistake(
                    "next_url",
                    "next_url is no pair",
                    "write next_url = [\"/links/next\", \"page\"]: where the URL stands, and its parameter",
                );
                None
            }
        },
        "last_item" => {
            let at = pointer(table, "last_item");
            if more.is_none() {
                table.mistake("last_item", "last_item needs more", "write more = \"/has_more\"");
            }
            Some(Next::LastItem { at: at?, more: more? })
        }
        "first_page" => Some(Next::Number {
            first: table.whole("first_page", 0, 1)?,
            more,
        }),
        _ => table.flag("offset").map(|_| Next::Offset { more }),
    }
}

/// A JSON pointer.
pub(super) fn pointer(table: &Table<'_>, key: &'static str) -> Option<Pointer> {
    let text = table
        .value(key)?
        .as_str()
        .filter(|text| text.is_empty() || text.starts_with('/'));
    if text.is_none() {
        table.mistake(
            key,
            format!("{key} is no JSON pointer"),
            "begin it with /, such as \"/data/items\"",
        );
    }
    text.map(|text| Pointer(text.to_owned()))
}
