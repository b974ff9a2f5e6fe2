//! Values: those that are bound, and those that come back.

use std::error::Error;

use bytes::BytesMut;
use serde_json::Value;
use tokio_postgres::Column;
use tokio_postgres::types::{Format, FromSql, IsNull, Kind, ToSql, Type};

use crate::sql::rows::Cell;
use crate::{Code, Failure};

/// A value that is bound, as text: the server knows its type.
#[derive(Debug)]
pub(super) struct Parameter<'a>(pub(super) &'a Value);

impl ToSql for Parameter<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let text = match (self.0, kind.kind()) {
            (Value::Null, _) => return Ok(IsNull::Yes),
            (Value::Array(items), Kind::Array(_)) => array(items),
            (value, _) if *kind == Type::JSON || *kind == Type::JSONB => value.to_string(),
            (value, _) => plain(value),
        };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.to_sql(kind, out)
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `{"a","b",NULL}`
fn array(items: &[Value]) -> String {
    let items: Vec<String> = items
        .iter()
        .map(|item| match item {
            Value::Null => "NULL".to_owned(),
            Value::Array(inner) => array(inner),
            other => format!("\"{}\"", plain(other).replace('\\', "\\\\").replace('"', "\\\"")),
        })
        .collect();
    format!("{{{}}}", items.join(","))
}

/// A text as it came.
pub(super) struct Text<'r>(pub(super) &'r str);

impl<'r> FromSql<'r> for Text<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(raw)?))
    }

    fn accepts(kind: &Type) -> bool {
        [Type::TEXT, Type::VARCHAR, Type::JSON, Type::NAME].contains(kind)
    }
}

/// How a column is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Truth,
    Number,
    Float,
    Json,
    Bytes,
    Text,
}

/// A statement inside of one that writes its values as text.
pub(super) struct Wrapped {
    pub(super) text: String,
    /// Whether it is a query, and not the explanation of one.
    pub(super) is_query: bool,
    columns: Vec<(String, String, Shape)>,
}

impl Wrapped {
    pub(super) fn new(what: &str, text: &str, columns: &[Column], limit: u64) -> Result<Self, Failure> {
        let refused = |problem: String, remedy: &str| {
            Err(Failure::new(Code::InvalidArguments, format!("{what}: {problem}")).remedy(remedy))
        };
        if columns.is_empty() {
            return refused(
                "the statement gives no columns".to_owned(),
                "write SELECT with at least one column",
            );
        }
        let mut described = Vec::with_capacity(columns.len());
        let mut written = Vec::with_capacity(columns.len());
        for (index, column) in columns.iter().enumerate() {
            let (name, kind) = (column.name().to_owned(), column.type_());
            let place = format!("q.c{index}");
            let Some((shape, expression)) = read(kind, &place) else {
                return refused(
                    format!("the column {name} is of the type {kind}, which is not handed out"),
                    "name the fields you need, or convert it to text where that is meant",
                );
            };
            written.push(expression);
            described.push((name, kind.name().to_owned(), shape));
        }
        let is_query = !text
            .trim_start()
            .get(..7)
            .is_some_and(|word| word.eq_ignore_ascii_case("explain"));
        let text = if is_query {
            let names: Vec<String> = (0..columns.len()).map(|index| format!("c{index}")).collect();
            format!(
                "SELECT {} FROM ({text}\n) AS q ({}) LIMIT {}",
                written.join(", "),
                names.join(", "),
                limit.saturating_add(1)
            )
        } else {
            text.to_owned()
        };
        Ok(Self {
            text,
            is_query,
            columns: described,
        })
    }

    /// Names and types of the columns.
    pub(super) fn described(&self) -> Vec<(String, String)> {
        self.columns
            .iter()
            .map(|(name, kind, _)| (name.clone(), kind.clone()))
            .collect()
    }

    pub(super) fn cell(&self, index: usize, text: Option<&str>) -> Cell {
        let (Some(text), Some((_, _, shape))) = (text, self.columns.get(index)) else {
            return Cell::null();
        };
        match shape {
            Shape::Truth => Cell::truth(text == "true"),
            Shape::Number => Cell::number(text),
            Shape::Float => Cell::float(text),
            Shape::Json => Cell::json(text),
            Shape::Bytes => Cell::text(&text.replace('\n', "")),
            Shape::Text => Cell::text(text),
        }
    }
}

/// How a value of a type is written as text by functions of the server's own. No cast that somebody made is asked.
fn read(kind: &Type, place: &str) -> Option<(Shape, String)> {
    let cast = format!("{place}::pg_catalog.text");
    let as_json = format!("pg_catalog.to_json({place})::pg_catalog.text");
    let ours = kind.schema() == "pg_catalog";
    Some(match kind.kind() {
        Kind::Simple if ours => match *kind {
            Type::BOOL => (Shape::Truth, cast),
            Type::INT2 | Type::INT4 | Type::INT8 | Type::OID | Type::NUMERIC => (Shape::Number, cast),
            Type::FLOAT4 | Type::FLOAT8 => (Shape::Float, cast),
            Type::JSON | Type::JSONB => (Shape::Json, cast),
            Type::BYTEA => (Shape::Bytes, format!("pg_catalog.encode({place}, 'base64')")),
            Type::DATE | Type::TIMESTAMP | Type::TIMESTAMPTZ => (Shape::Json, as_json),
            Type::UNKNOWN | Type::TEXT | Type::VARCHAR => (Shape::Text, cast),
            _ => (Shape::Text, shown(place)),
        },
        Kind::Array(item) if *item == Type::INT8 || *item == Type::NUMERIC => (
            Shape::Json,
            format!("pg_catalog.to_json({place}::pg_catalog.text[])::pg_catalog.text"),
        ),
        Kind::Array(item) if item.schema() == "pg_catalog" && matches!(item.kind(), Kind::Simple) => {
            (Shape::Json, as_json)
        }
        Kind::Simple | Kind::Enum(_) | Kind::Range(_) | Kind::Multirange(_) => (Shape::Text, shown(place)),
        _ => return None,
    })
}

/// As the type's own output writes it.
fn shown(place: &str) -> String {
    format!("CASE WHEN {place} IS NOT NULL THEN pg_catalog.format('%s', {place}) END")
}
