//! The description as a whole.

use serde_json::{Map, Number, Value};
use serde_yaml_ng::Value as Yaml;
use url::Url;

use super::ImportError;

/// The longest description that is read.
pub(super) const MAX_BYTES: usize = 48 << 20;
/// How many references lead to references.
const MAX_HOPS: usize = 16;

/// A description.
pub(super) struct Document {
    pub(super) root: Value,
    /// Whether it is of version 3.0, whose schemas are not quite JSON Schema.
    pub(super) is_old: bool,
}

impl Document {
    pub(super) fn read(text: &str) -> Result<Self, ImportError> {
        if text.len() > MAX_BYTES {
            return Err(ImportError::TooLarge(text.len()));
        }
        let root = match serde_json::from_str(text) {
            Ok(root) => root,
            Err(_) => plain(serde_yaml_ng::from_str(text).map_err(ImportError::Unreadable)?),
        };
        let version = root["openapi"].as_str().unwrap_or_default();
        if !version.starts_with("3.0") && !version.starts_with("3.1") {
            let said = match (&root["openapi"], &root["swagger"]) {
                (Value::String(version), _) => format!("openapi {version}"),
                (_, Value::String(version)) => format!("swagger {version}; convert it to OpenAPI 3 first"),
                _ => "no version".into(),
            };
            return Err(ImportError::Version(said));
        }
        let is_old = version.starts_with("3.0");
        Ok(Self { root, is_old })
    }

    /// The value that a reference names, or the value itself; none where it leads out of the document or in a circle.
    pub(super) fn follow<'d>(&'d self, mut value: &'d Value) -> Option<&'d Value> {
        for _ in 0..MAX_HOPS {
            match value.get("$ref") {
                Some(Value::String(reference)) => value = self.root.pointer(reference.strip_prefix('#')?)?,
                _ => return Some(value),
            }
        }
        None
    }

    /// Where the API is.
    pub(super) fn base_url(&self, said: Option<&str>) -> Result<String, ImportError> {
        let url = match said {
            Some(url) => good(url.to_owned()),
            None => server_url(&self.root["servers"][0]),
        };
        url.map_err(|written| {
            ImportError::NoServer(if written.is_empty() {
                "no server".into()
            } else {
                written
            })
        })
    }
}

/// The address of a server, with its variables' defaults; as it is written where that is none.
pub(super) fn server_url(server: &Value) -> Result<String, String> {
    let mut written = server["url"].as_str().unwrap_or_default().to_owned();
    for (name, variable) in server["variables"].as_object().into_iter().flatten() {
        if let Some(default) = variable["default"].as_str() {
            written = written.replace(&format!("{{{name}}}"), default);
        }
    }
    good(written)
}

fn good(written: String) -> Result<String, String> {
    let good = Url::parse(&written).ok().filter(|url| {
        ["http", "https"].contains(&url.scheme())
            && url.host_str().is_some()
            && url.username().is_empty()
            && url.query().is_none()
            && url.fragment().is_none()
            && !written.contains(['{', '}'])
    });
    good.map(|url| url.as_str().trim_end_matches('/').to_owned())
        .ok_or(written)
}

/// YAML as JSON: keys become texts.
fn plain(yaml: Yaml) -> Value {
    match yaml {
        Yaml::Null => Value::Null,
        Yaml::Bool(flag) => Value::Bool(flag),
        Yaml::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (.., number) => number.and_then(Number::from_f64).map_or(Value::Null, Value::Number),
        },
        Yaml::String(text) => Value::String(text),
        Yaml::Sequence(items) => Value::Array(items.into_iter().map(plain).collect()),
        Yaml::Mapping(map) => Value::Object(
            map.into_iter()
                .filter_map(|(key, value)| Some((word(&key)?, plain(value))))
                .collect::<Map<_, _>>(),
        ),
        Yaml::Tagged(tagged) => plain(tagged.value),
    }
}

fn word(key: &Yaml) -> Option<String> {
    match key {
        Yaml::String(text) => Some(text.clone()),
        Yaml::Number(number) => Some(number.to_string()),
        Yaml::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}
