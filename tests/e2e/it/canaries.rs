//! Planted secrets, and the search for them in every spelling.

use std::fs::{self, File};
use std::path::Path;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use rand::distr::{Alphanumeric, SampleString};

/// How every canary begins that a test makes itself; those who look for them are told.
pub(crate) const MARK: &str = "CNRY";

/// A new one.
pub(crate) fn canary() -> String {
    format!("{MARK}{}", Alphanumeric.sample_string(&mut rand::rng(), 28))
}

/// Canaries by their names, and what finds them.
pub(crate) struct Canaries {
    spellings: Vec<String>,
    search: AhoCorasick,
}

impl Canaries {
    pub(crate) fn new(canaries: &[(&str, &[u8])]) -> Self {
        let (mut spellings, mut patterns) = (Vec::new(), Vec::new());
        for (name, value) in canaries {
            assert!(value.len() >= 16, "{name} is too short to be looked for");
            for (spelling, pattern) in spelled(value) {
                spellings.push(format!("{name}, {spelling}"));
                patterns.push(pattern);
            }
        }
        // Names are written in small letters wherever they pass.
        let search = AhoCorasickBuilder::new()
            .ascii_case_insensitive(true)
            .build(patterns)
            .expect("patterns of canaries");
        Self { spellings, search }
    }

    /// Which are in some bytes.
    pub(crate) fn found(&self, bytes: &[u8]) -> Vec<&str> {
        let mut found: Vec<&str> = self
            .search
            .find_iter(bytes)
            .map(|place| self.spellings[place.pattern().as_usize()].as_str())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Which are in the files below a folder (or in the one file), by path; the folders of `but` are left out.
    pub(crate) fn found_below(&self, folder: &Path, but: &[&Path]) -> Vec<String> {
        if but.contains(&folder) {
            return Vec::new();
        }
        let Ok(kind) = fs::symlink_metadata(folder).map(|data| data.file_type()) else {
            return Vec::new();
        };
        if kind.is_dir() {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            return entries.flat_map(|entry| self.found_below(&entry.path(), but)).collect();
        }
        if !kind.is_file() {
            return Vec::new();
        }
        let Ok(file) = File::open(folder) else {
            return Vec::new();
        };
        let mut found: Vec<String> = self
            .search
            .stream_find_iter(file)
            .map_while(Result::ok)
            .map(|place| format!("{}: {}", folder.display(), self.spellings[place.pattern().as_usize()]))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn spelled(value: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let middle = value.len() / 2;
    let mut spelled = vec![
        ("as it is", value.to_vec()),
        ("backwards", value.iter().rev().copied().collect()),
        ("its first half", value[..middle].to_vec()),
        ("its second half", value[middle..].to_vec()),
        ("in hexadecimal", hex::encode(value).into_bytes()),
        ("in base32", base32(value)),
        (
            "in percents",
            value
                .iter()
                .flat_map(|byte| format!("%{byte:02x}").into_bytes())
                .collect(),
        ),
        (
            "in escapes of JSON",
            value
                .iter()
                .flat_map(|byte| format!("\\u{byte:04x}").into_bytes())
                .collect(),
        ),
        ("wide", value.iter().flat_map(|byte| [*byte, 0]).collect()),
    ];
    for before in 0..3 {
        let padded = [&vec![0; before], value].concat();
        let (from, to) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            spelled.push(("in base64", engine.encode(&padded).into_bytes()[from..to].to_vec()));
        }
    }
    spelled
}

/// RFC 4648, the whole groups of five bytes.
fn base32(value: &[u8]) -> Vec<u8> {
    let letters = b"abcdefghijklmnopqrstuvwxyz234567";
    let groups = value.chunks_exact(5);
    groups
        .flat_map(|group| {
            let bits = group.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            (0..8)
                .rev()
                .map(move |place| letters[usize::from((bits >> (place * 5)) as u8 & 31)])
        })
        .collect()
}

#[test]
fn every_spelling_is_found_and_nothing_else() {
    let canaries = Canaries::new(&[
        ("one", b"CNRYabcdefghijklmnop012345"),
        ("other", b"CNRYzyxwvutsrqponmlk543210"),
    ]);
    for (spelling, pattern) in spelled(b"CNRYabcdefghijklmnop012345") {
        let text = [b"some words, ", pattern.as_slice(), b" and more".as_slice()].concat();
        let found = canaries.found(&text);
        assert!(
            !found.is_empty() && found.iter().all(|found| found.starts_with("one,")),
            "{spelling}: {found:?}"
        );
    }
    assert_eq!(canaries.found(b"CNRY and abcdef, and nothing more"), [""; 0]);
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("below")).unwrap();
    fs::write(
        folder.path().join("below/file"),
        [vec![b'x'; 100_000], b"abcdefghijklmnop012345".to_vec()].concat(),
    )
    .unwrap();
    assert_eq!(canaries.found_below(folder.path(), &[]).len(), 1);
    assert_eq!(canaries.found_below(folder.path(), &[folder.path()]).len(), 0);
}
