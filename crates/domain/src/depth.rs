//! How deep JSON may be nested that somebody else wrote.

use serde_json::Value;

/// The deepest nesting of what a tool or a method is given. It is stored, and handed on, within other JSON, and readers give up
/// at 128: what could be written and never read again would end its session.
pub const DEEPEST: usize = 64;

/// Whether JSON is nested deeper than [`DEEPEST`].
#[must_use]
pub fn is_too_deep(value: &Value) -> bool {
    let mut left = vec![(value, 0)];
    while let Some((value, depth)) = left.pop() {
        if depth == DEEPEST && (value.is_array() || value.is_object()) {
            return true;
        }
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => left.extend(members.values().map(|member| (member, depth + 1))),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_deeper_than_readers_bear_is_known_wherever_it_lies() {
        let nested = |depth: usize| {
            (1..depth).fold(json!([]), |inner, level| {
                if level % 2 == 0 {
                    json!([inner])
                } else {
                    json!({ "in": inner })
                }
            })
        };
        assert!(!is_too_deep(&json!("flat")) && !is_too_deep(&nested(DEEPEST)));
        assert!(is_too_deep(&nested(DEEPEST + 1)));
        assert!(is_too_deep(&json!({ "a": 1, "b": nested(DEEPEST), "c": [] })));
    }
}
