//! Where this machine's own apt finds Debian.

use std::collections::BTreeSet;
use std::path::Path;

/// Names of Debian's suites, by which a source is known to be Debian's and not another distribution's.
const SUITES: &[&str] = &[
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
];

/// Sources of a suite as lines of a sources.list, taken from where this machine's own apt finds the suite it has; none
/// where this machine is no Debian.
pub(super) fn of_this_machine(suite: &str) -> Vec<String> {
    let apt = Path::new("/etc/apt");
    let mut texts: Vec<String> = std::fs::read_to_string(apt.join("sources.list")).into_iter().collect();
    let more = std::fs::read_dir(apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten();
    let mut more: Vec<_> = more.map(|entry| entry.path()).collect();
    more.sort();
    let used = |path: &Path| path.extension().is_some_and(|end| end == "list" || end == "sources");
    texts.extend(
        more.iter()
            .filter(|path| used(path))
            .filter_map(|path| std::fs::read_to_string(path).ok()),
    );
    lines_for(suite, texts.iter().flat_map(|text| addresses(text)))
}

/// Which part of Debian's archive an address has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Main,
    Updates,
    Security,
}

fn lines_for(suite: &str, addresses: impl Iterator<Item = (Part, String)>) -> Vec<String> {
    let addresses: BTreeSet<(Part, String)> = addresses.collect();
    let has_updates = !matches!(suite, "sid" | "unstable" | "testing");
    let line = |(part, address): &(Part, String)| {
        let end = match part {
            Part::Main => "",
            Part::Updates => "-updates",
            Part::Security => "-security",
        };
        format!("deb {address} {suite}{end} main")
    };
    if !addresses.iter().any(|(part, _)| *part == Part::Main) {
        return Vec::new();
    }
    addresses
        .iter()
        .filter(|(part, _)| has_updates || *part == Part::Main)
        .map(line)
        .collect()
}

/// Debian's addresses in a file of sources, whether of one line each or of paragraphs.
fn addresses(text: &str) -> Vec<(Part, String)> {
    let mut found = Vec::new();
    for paragraph in text.split("\n\n") {
        let field = |name: &str| {
            let line = paragraph
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().split_whitespace()
        };
        let is_on = field("Enabled").next() != Some("no");
        if is_on && field("Types").any(|kind| kind == "deb") {
            for suite in field("Suites") {
                found.extend(field("URIs").filter_map(|address| address_of(suite, address)));
            }
        }
    }
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("deb ") else {
            continue;
        };
        // What stands in brackets are options.
        let rest = rest.trim_start();
        let rest = if rest.starts_with('[') {
            rest.split_once(']').map_or("", |(_, rest)| rest)
        } else {
            rest
        };
        let mut words = rest.split_whitespace();
        if let (Some(address), Some(suite)) = (words.next(), words.next()) {
            found.extend(address_of(suite, address));
        }
    }
    found
}

fn address_of(suite: &str, address: &str) -> Option<(Part, String)> {
    let (name, part) = match suite.split_once(['-', '/']) {
        None => (suite, Part::Main),
        Some((name, "updates")) if !suite.contains('/') => (name, Part::Updates),
        Some((name, "security")) if !suite.contains('/') => (name, Part::Security),
        Some(_) => return None,
    };
    let over_network = address.starts_with("http://") || address.starts_with("https://");
    (over_network && SUITES.contains(&name)).then(|| (part, address.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        lines_for("trixie", addresses(text).into_iter())
    }

    #[test]
    fn paragraphs_are_understood() {
        let text = "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\n\
                    Types: deb\n# a remark\nURIs: http://mirror.test/security\nSuites: bookworm-security\n\n\
                    Types: deb\nURIs: https://other.test/node\nSuites: nodistro\n\n\
                    Types: deb\nEnabled: no\nURIs: http://off.test/debian\nSuites: bookworm\n";
        assert_eq!(
            lines(text),
            [
                "deb http://mirror.test/debian trixie main",
                "deb http://mirror.test/debian trixie-updates main",
                "deb http://mirror.test/security trixie-security main",
            ]
        );
    }

    #[test]
    fn single_lines_are_understood() {
        let text = "# deb http://old.test/debian stable main\n\
                    deb [signed-by=/usr/share/keyrings/a.gpg arch=amd64] https://mirror.test/debian trixie main contrib\n\
                    deb-src https://mirror.test/debian trixie main\n\
                    deb https://mirror.test/security trixie-security main\n\
                    deb https://mirror.test/debian trixie-backports main\n";
        assert_eq!(
            lines(text),
            [
                "deb https://mirror.test/debian trixie main",
                "deb https://mirror.test/security trixie-security main",
            ]
        );
    }

    #[test]
    fn another_distributions_sources_are_not_debians() {
        let text = "Types: deb\nURIs: http://mirror.test/ubuntu\nSuites: noble noble-updates noble-security\n";
        assert_eq!(lines(text), Vec::<String>::new());
    }
}
