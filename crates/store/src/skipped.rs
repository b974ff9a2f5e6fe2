//! Messages that are told and shown no longer. They stay where they are, in the chain.

use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::{StoreError, stored};

/// Ranges of a history, in order, none touching another: each from after its first place up to its second.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Skipped(Vec<(i64, i64)>);

impl Skipped {
    /// From a row with `skipped`.
    pub(crate) fn of(row: &Row) -> Result<Self, StoreError> {
        match row.str("skipped")? {
            "" => Ok(Self::default()),
            text => serde_json::from_str(text).map_err(|source| stored::corrupt("list of messages", source)),
        }
    }

    /// As it is stored.
    pub(crate) fn text(&self) -> Result<String, StoreError> {
        if self.0.is_empty() {
            return Ok(String::new());
        }
        serde_json::to_string(self).map_err(|source| stored::corrupt("list of messages", source))
    }

    pub(crate) fn contains(&self, position: i64) -> bool {
        self.0
            .iter()
            .any(|(after, last)| *after < position && position <= *last)
    }

    /// With those after one place, up to another which is the last.
    pub(crate) fn and(mut self, after: i64, last: i64) -> Self {
        if after >= last {
            return self;
        }
        self.0.retain(|(begin, _)| *begin < after);
        match self.0.last_mut() {
            Some((_, end)) if *end >= after => *end = last,
            _ => self.0.push((after, last)),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_after_what_was_skipped_is_one_range() {
        let twice = Skipped::default().and(4, 9).and(9, 12);
        assert_eq!(twice, Skipped(vec![(4, 12)]));
        let further = Skipped::default().and(4, 9).and(2, 12);
        assert_eq!(further, Skipped(vec![(2, 12)]));
        let apart = Skipped::default().and(4, 9).and(11, 12).and(12, 12);
        assert_eq!(apart, Skipped(vec![(4, 9), (11, 12)]));
        let seen: Vec<i64> = (1..=13).filter(|position| !apart.contains(*position)).collect();
        assert_eq!(seen, [1, 2, 3, 4, 10, 11, 13]);
    }
}
