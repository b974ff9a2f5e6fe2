//! Names as a way to carry data out: a name below a wildcard reaches whoever answers for it, so what it says is looked at.

use std::collections::{HashMap, HashSet};

use policy::{Host, HostPattern};

use super::Bucket;
use crate::{Code, Denied};

/// Names that one session may know.
const MOST: usize = 10_000;
/// The longest part between dots that a star stands for, and the most that it stands for in all.
const LONGEST_LABEL: usize = 40;
const LONGEST: usize = 100;
/// From this length on a part is measured, and must have no more than so many bits in each letter: words and numbers have
/// fewer, a hash in hexadecimal at most as many, packed data has more.
const MEASURED: usize = 24;
const BITS: f64 = 4.0;

#[derive(Default)]
pub(crate) struct Names {
    known: HashSet<Host>,
}

impl Names {
    /// Whether a name may be used that `pattern` matches, which takes one of `left` where it is new. One that a rule spells
    /// out always may.
    pub(crate) fn admit(&mut self, name: &Host, pattern: &HostPattern, left: &mut Bucket) -> Result<(), Denied> {
        if pattern.destination().is_some() || self.known.contains(name) {
            return Ok(());
        }
        if smuggles(name, pattern) {
            return Err(Denied::new(
                Code::SuspiciousName,
                format!(
                    "{name} is not used: what stands for the star of `{pattern}` is long or looks like packed data"
                ),
                "ask whoever runs this installation to name this host in a rule, if it is one",
            ));
        }
        if self.known.len() >= MOST || !left.take() {
            return Err(Denied::new(
                Code::TooManyNames,
                format!("{name} is not used: this session uses new names below `{pattern}` too fast"),
                "wait a minute, or ask whoever runs this installation to name the hosts in a rule",
            ));
        }
        self.known.insert(name.clone());
        Ok(())
    }
}

/// Whether what the stars stand for looks like data rather than a name.
fn smuggles(name: &Host, pattern: &HostPattern) -> bool {
    let pattern = pattern.to_string();
    let base = pattern.trim_start_matches('*');
    let base = base.rsplit_once(':').map_or(base, |(base, _)| base);
    let starred = name.as_str().strip_suffix(base).unwrap_or(name.as_str());
    starred.len() > LONGEST
        || starred
            .split('.')
            .any(|label| label.len() > LONGEST_LABEL || (label.len() >= MEASURED && bits(label) > BITS))
}

/// Shannon's entropy: bits in each letter.
fn bits(label: &str) -> f64 {
    let mut counts: HashMap<u8, u32> = HashMap::new();
    for byte in label.bytes() {
        *counts.entry(byte).or_default() += 1;
    }
    let length = f64::from(u32::try_from(label.len()).unwrap_or(u32::MAX));
    counts
        .values()
        .map(|count| f64::from(*count) / length)
        .map(|share| -share * share.log2())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smuggled(name: &str, pattern: &str) -> bool {
        smuggles(&name.parse().unwrap(), &pattern.parse().unwrap())
    }

    #[test]
    fn hosts_that_exist_look_like_names() {
        for (name, pattern) in [
            ("raw.example.com", "*.example.com"),
            ("d1a2b3c4d5e6f7.cdn.example", "*.cdn.example"),
            ("ec2-203-0-113-25.eu-west-1.compute.example", "**.compute.example:443"),
            ("0123456789abcdef0123456789abcdef.r2.example", "*.r2.example"),
            ("123e4567-e89b-12d3-a456-426614174000.apps.example", "*.apps.example"),
            ("acme-production-artifacts-backup.s3.example", "*.s3.example:*"),
            ("a.b.c.d.e.example.com", "**"),
        ] {
            assert!(!smuggled(name, pattern), "{name}");
        }
    }

    #[test]
    fn packed_data_does_not() {
        for (name, pattern) in [
            ("mfrggzdfmztwq2lknnwg23tpobyxe43u.example.com", "*.example.com"),
            ("onswg4tfoqqgs4zanbuwizdfnyqg63ra.x.example.com", "**.example.com:443"),
            (&format!("{}.example.com", "ab".repeat(21)), "*.example.com"),
            (&format!("{}example.com", "abcdefghi.".repeat(11)), "**.example.com"),
        ] {
            assert!(smuggled(name, pattern), "{name}");
        }
    }
}
