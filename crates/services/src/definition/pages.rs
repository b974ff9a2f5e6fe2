//! How a long list is read page by page.

use super::Pointer;

/// How a long list is read page by page.
///
/// To the caller all lists are alike: a paged method takes the optional argument `cursor` (a string that it gave before),
/// and its result is `{ "items": […], "next": "…" | null }`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Where the items stand in the answer.
    pub items: Pointer,
    /// Where the cursor goes in the request.
    pub cursor: CursorPlace,
    /// How the cursor of the next page is found.
    pub next: Next,
}

/// Where a cursor goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CursorPlace {
    /// A parameter of the query.
    Query(String),
    /// A place in the JSON body, a field of the form, or a variable of the GraphQL document: names from the outside in.
    Body(Vec<String>),
}

/// How the cursor of the next page is found in an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// At this place; none where it is absent, null, empty, or `more` is there and false.
    Body {
        /// The place.
        at: Pointer,
        /// Where the answer says whether there is more.
        more: Option<Pointer>,
    },
    /// This parameter of the URL that the `Link` header calls `next`. The URL itself is never followed.
    Link(String),
    /// This parameter of the URL at this place. The URL itself is never followed.
    Url {
        /// The place.
        at: Pointer,
        /// The parameter.
        parameter: String,
    },
    /// This place of the last item, while `more` is true.
    LastItem {
        /// The place in the item.
        at: Pointer,
        /// Where the answer says whether there is more.
        more: Pointer,
    },
    /// Pages are numbered, the first being this; the number is sent as a number. There is no next after a page without
    /// items, or where `more` is false.
    Number {
        /// The first page's number.
        first: u64,
        /// Where the answer says whether there is more.
        more: Option<Pointer>,
    },
    /// Items are skipped: the cursor is how many came before, sent as a number. There is no next after a page without
    /// items, or where `more` is false.
    Offset {
        /// Where the answer says whether there is more.
        more: Option<Pointer>,
    },
}
