//! The page of threats: every attempt in `threats.txt`, and the tests that are named after its number.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

const LIST: &str = include_str!("threats.txt");
const PAGE: &str = "docs/threats.md";
/// Where tests are.
const FOLDERS: [&str; 4] = ["bins", "crates", "tests", "services"];

/// Groups of which every attempt has a test.
const WHOLE: [&str; 6] = ["A.", "B.", "C.", "D.", "E.", "H."];

const BEGINNING: &str = "# Threats

What a sandbox, a model, an upstream or a stranger may try, and the tests that try it. A number stays the same for ever; some numbers are
not in use. A dash: no test tries it yet; in groups A to E and H none may be missing.

This page is generated: `cargo xtask threats`. A test belongs to a number by its name, `threat_019_…`.
";

/// Tests by number: name and file.
type Tests = BTreeMap<u32, Vec<(String, String)>>;

/// Writes the page anew, or only says whether it is up to date.
pub(crate) fn page(check: bool) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = root.parent().context("the workspace has a folder")?;
    let mut tests = Tests::new();
    for folder in FOLDERS {
        find(root, &root.join(folder), &mut tests)?;
    }
    let page = written(LIST, &tests)?;
    let path = root.join(PAGE);
    if !check {
        return fs::write(&path, page).with_context(|| format!("could not write {}", path.display()));
    }
    if fs::read_to_string(&path).unwrap_or_default() != page {
        bail!("{PAGE} is not what the tests say; `cargo xtask threats` writes it anew");
    }
    Ok(())
}

fn find(root: &Path, folder: &Path, tests: &mut Tests) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            find(root, &path, tests)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let file = path.strip_prefix(root)?.display().to_string();
            for name in tests_of(&text) {
                let numbers = numbers_of(name);
                if numbers.is_empty() {
                    bail!("{name} in {file} has no number of three digits, such as `threat_019_…`");
                }
                for number in numbers {
                    tests.entry(number).or_default().push((name.to_owned(), file.clone()));
                }
            }
        }
    }
    Ok(())
}

/// The names of the tests of attacks in a file: functions that are marked as tests, and that no mark leaves out; or that a macro
/// makes tests of, in whose list their name stands.
fn tests_of(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut is_test, mut ignored) = (false, false);
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            is_test |= ["#[test]", "#[tokio::test"].iter().any(|mark| line.starts_with(mark));
            ignored |= line.starts_with("#[ignore");
            continue;
        }
        if let Some(name) = function_of(line) {
            let listed = || text.contains(&format!("{name},"));
            if name.starts_with("threat_") && !ignored && (is_test || listed()) {
                found.push(name);
            }
            (is_test, ignored) = (false, false);
        }
    }
    found
}

/// The name of the function that a line declares.
fn function_of(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// The numbers that a test is named after: `threat_019_…`, `threat_061_and_062_…`.
fn numbers_of(name: &str) -> Vec<u32> {
    name.split('_')
        .skip(1)
        .filter(|part| *part != "and")
        .map_while(|part| part.parse().ok().filter(|_| part.len() == 3))
        .collect()
}

fn written(list: &str, tests: &Tests) -> anyhow::Result<String> {
    let mut page = BEGINNING.to_owned();
    let (mut known, mut untried) = (Vec::new(), Vec::new());
    let mut whole = false;
    for line in list.lines() {
        if let Some(group) = line.strip_prefix("# ") {
            whole = WHOLE.iter().any(|letter| group.starts_with(letter));
            write!(page, "\n## {group}\n\n| | attempt | tests |\n|---|---|---|\n")?;
            continue;
        }
        let (number, attempt) = line
            .split_once(' ')
            .with_context(|| format!("{line:?} is no number with words"))?;
        let number: u32 = number.parse().with_context(|| format!("{line:?} has no number"))?;
        known.push(number);
        let found: Vec<String> = tests
            .get(&number)
            .into_iter()
            .flatten()
            .map(|(name, file)| format!("`{name}` in {file}"))
            .collect();
        let found = if found.is_empty() {
            untried.extend(whole.then_some(number));
            "–".to_owned()
        } else {
            found.join("<br>")
        };
        writeln!(page, "| {number} | {attempt} | {found} |")?;
    }
    if !untried.is_empty() {
        bail!("no test is named after the threats {untried:?}, whose groups are to be tried whole");
    }
    for (number, found) in tests {
        if !known.contains(number) {
            bail!("{found:?} are named after {number}, which is not in the list of threats");
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_belongs_to_the_numbers_in_its_name() {
        let text = "    #[tokio::test(flavor = \"multi_thread\")]\n    async fn threat_061_and_062_what_is_no_token() {\n\
            fn threat_063_that_nobody_runs() {\n#[test]\n#[ignore = \"slow\"]\nfn threat_064_that_is_left_out() {\n\
            #[test]\nfn another() {\non_each! {\n    threat_065_of_a_macro,\n}\nfn threat_065_of_a_macro(by: By) {\n";
        assert_eq!(
            tests_of(text),
            ["threat_061_and_062_what_is_no_token", "threat_065_of_a_macro"]
        );
        assert_eq!(numbers_of("threat_061_and_062_what_is_no_token"), [61, 62]);
        assert_eq!(numbers_of("threat_017_10_000_connections"), [17]);
    }

    #[test]
    fn a_number_that_is_not_listed_is_a_mistake() {
        let tests = Tests::from([(3, vec![("threat_003_x".to_owned(), "a.rs".to_owned())])]);
        assert!(written("# F. B\n4 c\n", &tests).is_err());
        let page = written("# F. B\n3 c\n4 d\n", &tests).unwrap();
        assert!(
            page.contains("| 3 | c | `threat_003_x` in a.rs |\n| 4 | d | – |"),
            "{page}"
        );
    }

    #[test]
    fn a_group_that_is_to_be_whole_has_a_test_for_each_number() {
        let tests = Tests::from([(3, vec![("threat_003_x".to_owned(), "a.rs".to_owned())])]);
        assert!(written("# B. B\n3 c\n", &tests).is_ok());
        assert!(written("# B. B\n3 c\n4 d\n", &tests).is_err());
    }
}
