//! A row, whose columns are read by name.

use std::str::FromStr;
use std::sync::Arc;

use domain::Timestamp;
use hashbrown::HashMap;
use rusqlite::Statement;
use rusqlite::types::ValueRef;

use crate::stored::corrupt;
use crate::{Hash, StoreError};

/// Where each column of a statement stands.
#[derive(Debug)]
pub(crate) struct Columns(HashMap<String, usize>);

impl Columns {
    pub(crate) fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
        let mut places = HashMap::with_capacity(statement.column_count());
        for place in 0..statement.column_count() {
            places.entry(statement.column_name(place)?.to_owned()).or_insert(place);
        }
        Ok(Self(places))
    }
}

/// A row that a statement gave.
#[derive(Debug)]
pub(crate) struct Row {
    columns: Arc<Columns>,
    values: Vec<Value>,
}

#[derive(Debug)]
enum Value {
    Null,
    Integer(i64),
    Real,
    /// A text or a blob: joined blobs are a text to the database, of any bytes.
    Bytes(Vec<u8>),
}

impl Row {
    pub(crate) fn of(row: &rusqlite::Row<'_>, columns: &Arc<Columns>) -> rusqlite::Result<Self> {
        let places = row.as_ref().column_count();
        let mut values = Vec::with_capacity(places);
        for place in 0..places {
            values.push(match row.get_ref(place)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(value) => Value::Integer(value),
                ValueRef::Real(_) => Value::Real,
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
            });
        }
        Ok(Self {
            columns: Arc::clone(columns),
            values,
        })
    }

    /// Bytes of its texts and blobs.
    pub(crate) fn size(&self) -> usize {
        let sizes = self.values.iter().map(|value| match value {
            Value::Bytes(bytes) => bytes.len(),
            Value::Null | Value::Integer(_) | Value::Real => 0,
        });
        sizes.sum()
    }

    fn value(&self, name: &str) -> Result<&Value, StoreError> {
        let place = self.columns.0.get(name);
        place
            .and_then(|place| self.values.get(*place))
            .ok_or_else(|| corrupt("row", format!("it has no column {name}")))
    }

    pub(crate) fn integer(&self, name: &str) -> Result<i64, StoreError> {
        self.integer_or_none(name)?.ok_or_else(|| is_null(name))
    }

    pub(crate) fn integer_or_none(&self, name: &str) -> Result<Option<i64>, StoreError> {
        match self.value(name)? {
            Value::Null => Ok(None),
            Value::Integer(value) => Ok(Some(*value)),
            other @ (Value::Real | Value::Bytes(_)) => Err(is_other(name, "a whole number", other)),
        }
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8], StoreError> {
        self.bytes_or_none(name)?.ok_or_else(|| is_null(name))
    }

    pub(crate) fn bytes_or_none(&self, name: &str) -> Result<Option<&[u8]>, StoreError> {
        match self.value(name)? {
            Value::Null => Ok(None),
            Value::Bytes(bytes) => Ok(Some(bytes)),
            other @ (Value::Real | Value::Integer(_)) => Err(is_other(name, "bytes", other)),
        }
    }

    /// The bytes of a column, and nothing else of the row.
    pub(crate) fn into_bytes(mut self, name: &str) -> Result<Vec<u8>, StoreError> {
        self.bytes(name)?;
        match self.columns.0.get(name).map(|place| self.values.swap_remove(*place)) {
            Some(Value::Bytes(bytes)) => Ok(bytes),
            _ => Err(is_null(name)),
        }
    }

    pub(crate) fn str(&self, name: &str) -> Result<&str, StoreError> {
        self.str_or_none(name)?.ok_or_else(|| is_null(name))
    }

    pub(crate) fn str_or_none(&self, name: &str) -> Result<Option<&str>, StoreError> {
        let bytes = self.bytes_or_none(name)?;
        bytes
            .map(|bytes| std::str::from_utf8(bytes).map_err(|source| corrupt("text", source)))
            .transpose()
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, StoreError> {
        self.str(name).map(str::to_owned)
    }

    pub(crate) fn text_or_none(&self, name: &str) -> Result<Option<String>, StoreError> {
        Ok(self.str_or_none(name)?.map(str::to_owned))
    }

    pub(crate) fn time(&self, name: &str) -> Result<Timestamp, StoreError> {
        self.integer(name).map(Timestamp)
    }

    pub(crate) fn time_or_none(&self, name: &str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.integer_or_none(name)?.map(Timestamp))
    }

    pub(crate) fn hash(&self, name: &str) -> Result<Hash, StoreError> {
        let hash = <[u8; 32]>::try_from(self.bytes(name)?).map_err(|source| corrupt("hash", source))?;
        Ok(Hash(hash))
    }

    pub(crate) fn id<T>(&self, name: &str) -> Result<T, StoreError>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        self.str(name)?.parse().map_err(|source| corrupt("id", source))
    }

    pub(crate) fn id_or_none<T>(&self, name: &str) -> Result<Option<T>, StoreError>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        self.str_or_none(name)?
            .map(|text| text.parse().map_err(|source| corrupt("id", source)))
            .transpose()
    }
}

fn is_null(name: &str) -> StoreError {
    corrupt("row", format!("its column {name} is empty"))
}

fn is_other(name: &str, wanted: &str, found: &Value) -> StoreError {
    let found = match found {
        Value::Null => "nothing",
        Value::Integer(_) => "a whole number",
        Value::Real => "a number with a point",
        Value::Bytes(_) => "bytes",
    };
    corrupt("row", format!("its column {name} holds {found} and not {wanted}"))
}
