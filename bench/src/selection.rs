//! Which measures are wanted.

use anyhow::bail;

/// Every measure there is.
const ALL: &[&str] = &[
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9",
    "G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "P1", "P2", "P3", "P4",
];

/// The measures that take very long, and are made only when they are named.
const ON_DEMAND: &[&str] = &["P3"];

/// The measures that are wanted.
pub(crate) struct Selection(Vec<&'static str>);

impl Selection {
    /// From a list parted by commas; empty for all that are not on demand.
    pub(crate) fn parse(list: &str) -> anyhow::Result<Self> {
        let mut wanted = Vec::new();
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match ALL.iter().find(|known| known.eq_ignore_ascii_case(name)) {
                Some(known) => wanted.push(*known),
                None => bail!("there is no measure {name}; there are {}", ALL.join(", ")),
            }
        }
        if wanted.is_empty() {
            wanted = ALL.iter().copied().filter(|name| !ON_DEMAND.contains(name)).collect();
        }
        Ok(Self(wanted))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    pub(crate) fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_named_is_all_but_what_takes_very_long() {
        let all = Selection::parse("").unwrap();
        assert!(all.has("S1") && all.has("P4") && !all.has("P3"));
        let some = Selection::parse("s1, P3").unwrap();
        assert!(some.has("S1") && some.has("P3") && !some.any(&["S4", "G1"]));
        assert!(Selection::parse("Z9").is_err());
    }
}
