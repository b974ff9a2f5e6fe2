//! From `"{owner}/{+path}"` to pieces.

use serde_json::{Map, Value};

use super::{Argument, PathTemplate, Piece, Template};

/// A text is no template; in words, with what to write instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Malformed {
    /// Where in the value: a JSON pointer.
    pub(crate) pointer: String,
    pub(crate) problem: String,
    pub(crate) remedy: &'static str,
}

const BRACES: &str = "write {name} for an argument, and {{ or }} for a brace";

/// One part of a text, before it is known what it may be.
enum Part {
    Literal(String),
    Place(String),
}

fn parts(text: &str) -> Result<Vec<Part>, (String, &'static str)> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '}' if letters.peek() == Some(&letter) => {
                literal.push(letter);
                letters.next();
            }
            '}' => return Err((format!("{text:?} has a }} without a {{"), BRACES)),
            '{' => {
                let mut place = String::new();
                loop {
                    match letters.next() {
                        Some('}') => break,
                        Some('{') | None => return Err((format!("{text:?} has a {{ without a }}"), BRACES)),
                        Some(letter) => place.push(letter),
                    }
                }
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(Part::Place(place));
            }
            letter => literal.push(letter),
        }
    }
    if !literal.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

fn argument(place: &str) -> Result<Argument, (String, &'static str)> {
    let names: Vec<String> = place.split('.').map(str::to_owned).collect();
    let is_name = |name: &String| {
        !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "_-$@".contains(letter))
    };
    if names.iter().all(is_name) {
        Ok(Argument(names))
    } else {
        Err((format!("{{{place}}} names no argument"), BRACES))
    }
}

/// Reads a text in a query, a header or a body.
pub(crate) fn pieces(text: &str) -> Result<Vec<Piece>, (String, &'static str)> {
    parts(text)?
        .into_iter()
        .map(|part| match part {
            Part::Literal(literal) => Ok(Piece::Literal(literal)),
            Part::Place(place) if place.starts_with('+') => {
                Err((format!("{{{place}}} stands outside a path"), "leave the + away"))
            }
            Part::Place(place) => argument(&place).map(Piece::Argument),
        })
        .collect()
}

/// Reads a path.
pub(crate) fn path(text: &str) -> Result<PathTemplate, (String, &'static str)> {
    if !text.starts_with('/') || text.starts_with("//") || text.contains("://") {
        return Err((
            format!("{text:?} is no path below base_url"),
            "begin it with one /; the host stands in base_url alone, and no argument may name one",
        ));
    }
    let pieces = parts(text)?
        .into_iter()
        .map(|part| match part {
            Part::Literal(literal) => {
                if literal.split('/').any(|segment| segment == "." || segment == "..") {
                    return Err((
                        format!("{text:?} has a segment . or .."),
                        "write the path that is meant",
                    ));
                }
                if literal.contains(['?', '#', '\\', ' ']) || literal.chars().any(char::is_control) {
                    let remedy =
                        "write parameters as query = { name = \"{name}\" }, and other letters in percent-encoding";
                    return Err((format!("{text:?} is more than a path"), remedy));
                }
                Ok(Piece::Literal(literal))
            }
            Part::Place(place) => match place.strip_prefix('+') {
                Some(place) => argument(place).map(Piece::Segments),
                None => argument(&place).map(Piece::Argument),
            },
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(PathTemplate(pieces))
}

impl Template {
    /// Reads a value: its texts are templates, all else stands as it is. `taken` are the arguments that `{*}` leaves out.
    pub(crate) fn parse(value: &Value, pointer: &str, taken: &[String]) -> Result<Self, Malformed> {
        Ok(match value {
            Value::String(text) => {
                if text == "{*}" {
                    return Ok(Self::Rest(taken.to_vec()));
                }
                let pieces = pieces(text).map_err(|(problem, remedy)| Malformed {
                    pointer: pointer.to_owned(),
                    problem,
                    remedy,
                })?;
                match pieces.as_slice() {
                    [Piece::Argument(argument)] => Self::Argument(argument.clone()),
                    [Piece::Literal(text)] => Self::Fixed(Value::String(text.clone())),
                    [] => Self::Fixed(Value::String(String::new())),
                    _ => Self::Text(pieces),
                }
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(index, item)| Self::parse(item, &format!("{pointer}/{index}"), taken));
                Self::folded(Self::List(items.collect::<Result<_, _>>()?))
            }
            Value::Object(map) => {
                let fields = map.iter().map(|(key, value)| {
                    let value = Self::parse(value, &crate::definition::source::below(pointer, key), taken)?;
                    Ok((key.clone(), value))
                });
                Self::folded(Self::Object(fields.collect::<Result<_, _>>()?))
            }
            fixed => Self::Fixed(fixed.clone()),
        })
    }

    /// What has no place for an argument in it is one fixed value.
    fn folded(self) -> Self {
        match self {
            Self::List(items) if items.iter().all(|item| matches!(item, Self::Fixed(_))) => {
                let items = items.into_iter().filter_map(Self::into_fixed);
                Self::Fixed(Value::Array(items.collect()))
            }
            Self::Object(fields) if fields.iter().all(|(_, value)| matches!(value, Self::Fixed(_))) => {
                let fields = fields
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value.into_fixed()?)));
                Self::Fixed(Value::Object(fields.collect::<Map<_, _>>()))
            }
            other => other,
        }
    }

    fn into_fixed(self) -> Option<Value> {
        match self {
            Self::Fixed(value) => Some(value),
            _ => None,
        }
    }

    /// Every argument that it has a place for.
    pub(crate) fn arguments(&self) -> Vec<&Argument> {
        match self {
            Self::Fixed(_) | Self::Rest(_) => Vec::new(),
            Self::Argument(argument) => vec![argument],
            Self::Text(pieces) => self::arguments(pieces).collect(),
            Self::List(items) => items.iter().flat_map(Self::arguments).collect(),
            Self::Object(fields) => fields.iter().flat_map(|(_, value)| value.arguments()).collect(),
        }
    }

    /// Whether it takes all arguments that are named nowhere else.
    pub(crate) fn takes_rest(&self) -> bool {
        match self {
            Self::Rest(_) => true,
            Self::Fixed(_) | Self::Argument(_) | Self::Text(_) => false,
            Self::List(items) => items.iter().any(Self::takes_rest),
            Self::Object(fields) => fields.iter().any(|(_, value)| value.takes_rest()),
        }
    }
}

/// Every argument that a text has a place for.
pub(crate) fn arguments(pieces: &[Piece]) -> impl Iterator<Item = &Argument> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Literal(_) => None,
        Piece::Argument(argument) | Piece::Segments(argument) => Some(argument),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(name: &str) -> Argument {
        Argument(name.split('.').map(str::to_owned).collect())
    }

    #[test]
    fn texts_become_places() {
        let template = Template::parse(
            &json!({ "a": "{x.y}", "b": "n:{x}", "c": "{{}}", "d": [1, "z"] }),
            "",
            &[],
        );
        let Template::Object(fields) = template.unwrap() else {
            panic!()
        };
        assert_eq!(fields[0].1, Template::Argument(named("x.y")));
        assert_eq!(
            fields[1].1,
            Template::Text(vec![Piece::Literal("n:".into()), Piece::Argument(named("x"))])
        );
        assert_eq!(fields[2].1, Template::Fixed(json!("{}")));
        assert_eq!(fields[3].1, Template::Fixed(json!([1, "z"])));
    }

    #[test]
    fn threat_074_paths_stay_below_the_base() {
        let PathTemplate(pieces) = path("/repos/{owner}/contents/{+path}").unwrap();
        assert_eq!(pieces[1], Piece::Argument(named("owner")));
        assert_eq!(pieces[3], Piece::Segments(named("path")));
        for bad in [
            "x",
            "//evil.example",
            "https://{host}/x",
            "/a/../b",
            "/a?b=c",
            "/{a",
            "/a}",
            "/{a b}",
            "/{}",
            "/a b",
        ] {
            assert!(path(bad).is_err(), "{bad} is taken");
        }
    }
}
