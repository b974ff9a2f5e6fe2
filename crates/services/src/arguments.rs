//! Arguments of a call, checked against the method's schema.

use domain::{DEEPEST, is_too_deep};
use jsonschema::{PatternOptions, Validator};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::urls::is_outward;
use crate::{Code, Failure};

/// Problems that are told at once.
const TOLD: usize = 5;

/// What a method's arguments must be.
#[derive(Debug)]
pub(crate) struct Arguments {
    validator: Validator,
    /// The most bytes of them.
    bytes: u64,
}

impl Arguments {
    /// Prepares a schema. Nothing is fetched, patterns take linear time, and a `format` is checked: what is a URL leads to the
    /// public network.
    pub(crate) fn new(schema: &Value, bytes: u64) -> Result<Self, String> {
        let mut options = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .with_pattern_options(PatternOptions::regex())
            .should_validate_formats(true);
        for format in ["uri", "url", "iri", "uri-reference", "iri-reference"] {
            options = options.with_format(format, is_outward);
        }
        let validator = options.offline().build(schema).map_err(|error| error.to_string())?;
        Ok(Self { validator, bytes })
    }

    /// Reads arguments: an object that fits the schema. `what` is the method, in words.
    pub(crate) fn read(&self, what: &str, arguments: &RawValue) -> Result<Map<String, Value>, Failure> {
        let text = arguments.get();
        if text.len() as u64 > self.bytes {
            return Err(Failure::new(
                Code::ArgumentsTooLarge,
                format!(
                    "{what}: the arguments have {} bytes, the method takes {}",
                    text.len(),
                    self.bytes
                ),
            )
            .remedy("hand in less at once"));
        }
        let wrong = |problem: String| {
            Failure::new(Code::InvalidArguments, format!("{what}: {problem}"))
                .remedy("call it with the arguments that its types say")
        };
        // A call without arguments.
        let text = if text == "null" { "{}" } else { text };
        let value: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("the arguments cannot be read: {error}")))?;
        if is_too_deep(&value) {
            return Err(wrong(format!("the arguments are nested deeper than {DEEPEST} levels")));
        }
        let problems: Vec<String> = self
            .validator
            .iter_errors(&value)
            .take(TOLD)
            .map(|error| match error.instance_path().as_str() {
                "" => error.masked_with("the value").to_string(),
                at => format!("{}: {}", &at[1..], error.masked_with("the value")),
            })
            .collect();
        match value {
            Value::Object(arguments) if problems.is_empty() => Ok(arguments),
            _ if problems.is_empty() => Err(wrong("the arguments must be an object".to_owned())),
            _ => Err(wrong(problems.join("; "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(schema: &Value, arguments: &str) -> Result<Map<String, Value>, Failure> {
        let arguments = RawValue::from_string(arguments.to_owned()).unwrap();
        Arguments::new(schema, 1_000).unwrap().read("crm.find", &arguments)
    }

    #[test]
    fn threat_074_arguments_fit_the_schema_or_are_refused() {
        let schema = json!({
            "type": "object",
            "properties": {
                "limit": { "type": "integer", "minimum": 1, "maximum": 100 },
                "url": { "type": "string", "format": "uri" },
                "name": { "type": "string", "pattern": "^(a+)+$" },
            },
            "additionalProperties": false,
        });
        assert_eq!(read(&schema, r#"{"limit":5}"#).unwrap()["limit"], 5);
        assert!(read(&schema, "null").unwrap().is_empty());
        assert!(read(&schema, r#"{"url":"https://example.com/x"}"#).is_ok());
        for (bad, words) in [
            (r#"{"limit":-1}"#, "limit: the value is less than the minimum of 1"),
            (r#"{"limit":"5"}"#, "limit: the value is not of type"),
            (r#"{"limit":1.5}"#, "limit: the value is not of type"),
            (r#"{"other":1}"#, "other"),
            (r#"{"__proto__":{}}"#, "__proto__"),
            (
                r#"{"url":"http://169.254.169.254/"}"#,
                "url: the value is not a \"uri\"",
            ),
            ("[]", "the value is not of type"),
            ("\"x\"", "the value is not of type"),
        ] {
            let failure = read(&schema, bad).unwrap_err();
            assert_eq!((failure.code, failure.status()), (Code::InvalidArguments, 422), "{bad}");
            assert!(failure.message.contains(words), "{bad}: {failure}");
        }
        // A pattern that takes others exponential time.
        let hostile = format!(r#"{{"name":"{}b"}}"#, "a".repeat(900));
        assert_eq!(read(&schema, &hostile).unwrap_err().code, Code::InvalidArguments);
        let large = format!(r#"{{"name":"{}"}}"#, "a".repeat(1_000));
        assert_eq!(read(&schema, &large).unwrap_err().code, Code::ArgumentsTooLarge);
        for depth in [64, 200] {
            let deep = format!(r#"{{"name":{}1{}}}"#, "[".repeat(depth), "]".repeat(depth));
            assert_eq!(read(&schema, &deep).unwrap_err().code, Code::InvalidArguments);
        }
        let anything = Arguments::new(&json!({ "type": "object" }), 1_000).unwrap();
        let nested = |depth: usize| format!(r#"{{"name":{}1{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1));
        let read = |depth| anything.read("the method", &RawValue::from_string(nested(depth)).unwrap());
        assert!(read(64).is_ok());
        let failure = read(65).unwrap_err();
        assert_eq!(
            (failure.code, &*failure.message),
            (
                Code::InvalidArguments,
                "the method: the arguments are nested deeper than 64 levels"
            )
        );
    }

    #[test]
    fn a_schema_that_refers_to_elsewhere_is_refused() {
        for elsewhere in ["https://example.com/schema.json", "file:///etc/passwd", "other.json"] {
            assert!(Arguments::new(&json!({ "$ref": elsewhere }), 1).is_err(), "{elsewhere}");
        }
    }
}
