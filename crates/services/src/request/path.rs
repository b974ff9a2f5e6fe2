//! Paths with places for arguments. No argument changes the host or climbs out of its place.

use percent_encoding::percent_decode_str;
use serde_json::Value;
use url::Url;

use super::query::encode;
use super::value::scalar;
use crate::definition::{Argument, PathTemplate, Piece, Unfit};

/// How often an upstream may decode a path: each layer is looked at.
const DECODED: usize = 3;

/// The URL of a path below a base.
pub(crate) fn below(base: &Url, template: &PathTemplate, arguments: &Value) -> Result<Url, Unfit> {
    let mut path = base.path().trim_end_matches('/').to_owned();
    for piece in &template.0 {
        match piece {
            Piece::Literal(literal) => path.push_str(literal),
            Piece::Argument(argument) => {
                let text = text(argument, arguments)?;
                check(argument, &text)?;
                path.extend(encode(&text));
            }
            Piece::Segments(argument) => {
                let text = text(argument, arguments)?;
                for (place, segment) in text.split('/').enumerate() {
                    check(argument, segment)?;
                    if place > 0 {
                        path.push('/');
                    }
                    path.extend(encode(segment));
                }
            }
        }
    }
    let mut url = base.clone();
    url.set_path(&path);
    // Whatever a parser would change is not what was checked.
    if url.path() != path || url.origin() != base.origin() {
        return Err(unfit("of the path", "makes a path that is read in more than one way"));
    }
    Ok(url)
}

fn text<'v>(argument: &Argument, arguments: &'v Value) -> Result<std::borrow::Cow<'v, str>, Unfit> {
    argument.of(arguments).and_then(scalar).ok_or_else(|| {
        unfit(
            &argument.to_string(),
            "stands in the path: give a string, a number or a boolean",
        )
    })
}

/// A segment is not empty and names neither this place nor the one above, however often it is decoded.
fn check(argument: &Argument, segment: &str) -> Result<(), Unfit> {
    let wrong = |reason| Err(unfit(&argument.to_string(), reason));
    let mut decoded = segment.to_owned();
    for _ in 0..=DECODED {
        if decoded.trim_ascii().is_empty() {
            return wrong("stands in the path: it must not be empty");
        }
        if decoded.contains(char::is_control) {
            return wrong("stands in the path: it must have no control characters");
        }
        let climbs = |part: &str| {
            // What stands behind a semicolon is taken off by some.
            let name = part.split(';').next().unwrap_or_default().trim_ascii();
            name == "." || name == ".."
        };
        if decoded.split(['/', '\\']).any(climbs) {
            return wrong("stands in the path: it must not name `.` or `..`");
        }
        let next = percent_decode_str(&decoded).decode_utf8_lossy().into_owned();
        if next == decoded {
            break;
        }
        decoded = next;
    }
    Ok(())
}

fn unfit(argument: &str, reason: &'static str) -> Unfit {
    Unfit {
        argument: argument.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn url(value: &str, segments: bool) -> Result<String, Unfit> {
        let argument = Argument(vec!["id".to_owned()]);
        let template = PathTemplate(vec![
            Piece::Literal("/contacts/".to_owned()),
            if segments {
                Piece::Segments(argument)
            } else {
                Piece::Argument(argument)
            },
            Piece::Literal("/notes".to_owned()),
        ]);
        let base = Url::parse("https://api.example.com:8443/v1").unwrap();
        below(&base, &template, &json!({ "id": value })).map(String::from)
    }

    #[test]
    fn an_argument_is_one_segment_or_several() {
        let base = "https://api.example.com:8443/v1/contacts";
        assert_eq!(url("a b", false).unwrap(), format!("{base}/a%20b/notes"));
        assert_eq!(url("feature/x", false).unwrap(), format!("{base}/feature%2Fx/notes"));
        assert_eq!(url("src/ü.rs", true).unwrap(), format!("{base}/src/%C3%BC.rs/notes"));
        assert_eq!(url("..a..", false).unwrap(), format!("{base}/..a../notes"));
        assert_eq!(url("100%", false).unwrap(), format!("{base}/100%25/notes"));
    }

    #[test]
    fn threat_074_no_argument_climbs_out_of_its_path_or_changes_the_host() {
        for bad in [
            "",
            " ",
            ".",
            "..",
            "../admin",
            "a/../../admin",
            "a\\..\\admin",
            "%2e%2e",
            "%2e%2e%2fadmin",
            "%252e%252e%252fadmin",
            "%25252e%25252e",
            "..;/admin",
            "a\r\nHost: evil",
            "a%00b",
            "\u{0}",
        ] {
            assert!(url(bad, false).is_err(), "{bad:?}");
            assert!(url(bad, true).is_err(), "{bad:?}");
        }
        for bad in ["/etc", "a//b", "a/", "a/./b"] {
            assert!(url(bad, true).is_err(), "{bad:?}");
        }
        for odd in [
            "@evil.com",
            "//evil.com",
            "?x=1",
            "#x",
            "a:b@c",
            "http://evil.com",
            "[::1]",
        ] {
            let made = Url::parse(&url(odd, false).unwrap()).unwrap();
            assert_eq!(made.host_str(), Some("api.example.com"), "{odd}");
            assert_eq!((made.query(), made.fragment()), (None, None), "{odd}");
            assert!(
                made.path().starts_with("/v1/contacts/") && made.path().ends_with("/notes"),
                "{odd}"
            );
        }
    }
}
