//! Queries and forms: names and values, each percent-encoded whole.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::value::scalar;
use crate::definition::{Nesting, Unfit};

/// What stands for itself everywhere in a URL; everything else is encoded, so no value can be read as structure.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A text as one name, value or segment of a URL.
pub(crate) fn encode(text: &str) -> impl Iterator<Item = &str> {
    utf8_percent_encode(text, ENCODED)
}

/// `a=1&b=2`
pub(crate) fn write(pairs: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.extend(encode(name));
        text.push('=');
        text.extend(encode(value));
    }
    text
}

/// Adds a value under a name: lists and objects as the service's nesting says.
pub(crate) fn flatten(
    name: &str,
    value: &Value,
    nesting: Nesting,
    pairs: &mut Vec<(String, String)>,
) -> Result<(), Unfit> {
    match value {
        Value::Null => {}
        Value::Array(list) => match nesting {
            Nesting::Comma => {
                let texts: Option<Vec<_>> = list.iter().map(scalar).collect();
                let texts = texts.ok_or_else(|| Unfit {
                    argument: name.to_owned(),
                    reason: "stands in a list that is joined by commas, so it must hold strings, numbers and booleans",
                })?;
                if !texts.is_empty() {
                    pairs.push((name.to_owned(), texts.join(",")));
                }
            }
            Nesting::Repeat | Nesting::Brackets | Nesting::Indices => {
                for (place, element) in list.iter().enumerate() {
                    let name = match nesting {
                        Nesting::Brackets => format!("{name}[]"),
                        Nesting::Indices => format!("{name}[{place}]"),
                        Nesting::Repeat | Nesting::Comma => name.to_owned(),
                    };
                    flatten(&name, element, nesting, pairs)?;
                }
            }
        },
        Value::Object(fields) => {
            for (field, value) in fields {
                flatten(&format!("{name}[{field}]"), value, nesting, pairs)?;
            }
        }
        Value::String(_) | Value::Number(_) | Value::Bool(_) => {
            pairs.extend(scalar(value).map(|text| (name.to_owned(), text.into_owned())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_objects_stand_as_the_service_wants_them() {
        let value = json!({"a": [1, "x&y=z"], "b": {"c": true}, "n": null});
        let written = |nesting| {
            let mut pairs = Vec::new();
            flatten("q", &value, nesting, &mut pairs).unwrap();
            percent_encoding::percent_decode_str(&write(&pairs))
                .decode_utf8()
                .unwrap()
                .into_owned()
        };
        assert_eq!(written(Nesting::Repeat), "q[a]=1&q[a]=x&y=z&q[b][c]=true");
        assert_eq!(written(Nesting::Comma), "q[a]=1,x&y=z&q[b][c]=true");
        assert_eq!(written(Nesting::Brackets), "q[a][]=1&q[a][]=x&y=z&q[b][c]=true");
        assert_eq!(written(Nesting::Indices), "q[a][0]=1&q[a][1]=x&y=z&q[b][c]=true");
    }

    #[test]
    fn threat_074_a_value_cannot_become_another_parameter() {
        let pairs = [("q".to_owned(), "a&admin=1#x?y=ü %00\r\n".to_owned())];
        assert_eq!(write(&pairs), "q=a%26admin%3D1%23x%3Fy%3D%C3%BC%20%2500%0D%0A");
    }
}
