//! Whatever is done to a query: it is refused, or what runs means what was checked.

use sql::Dialect::{self, MySql, Postgres, Snowflake, Sqlite};
use sql::check;

/// Pieces that attacks are made of.
const PIECES: [&str; 48] = [
    "SELECT",
    "1",
    "a",
    "t",
    ",",
    "(",
    ")",
    "'",
    "''",
    "\"",
    "`",
    ";",
    "--",
    "-- ",
    "\n",
    "/*",
    "*/",
    "/*!",
    "#",
    "\\",
    "$$",
    "$1",
    "?",
    "@",
    "FROM t",
    "WHERE",
    "INTO",
    "OUTFILE 'x'",
    "FOR UPDATE",
    "UNION",
    "WITH x AS (",
    "DELETE FROM t",
    "RETURNING *",
    "DROP TABLE t",
    "pg_sleep(1)",
    "lower(a)",
    "SLEEP(1)",
    "::text",
    "E'",
    "U&'",
    "N'",
    "||",
    "->>",
    "ORDER BY",
    "LIMIT 1",
    "AS",
    "IN (1)",
    "TABLE(",
];

const SEEDS: [&str; 6] = [
    "SELECT a, lower(b) FROM t WHERE c = 'x' ORDER BY a LIMIT 10",
    "WITH x AS (SELECT 1 AS a) SELECT x.a FROM x JOIN t ON t.a = x.a",
    "SELECT count(*) FROM t GROUP BY a HAVING count(*) > 1",
    "SELECT 'it''s', \"b\" FROM t",
    "SELECT CASE WHEN a = 1 THEN 'x' ELSE 'y' END FROM t UNION ALL SELECT b FROM u",
    "SELECT sum(a) OVER (PARTITION BY b ORDER BY c) FROM t",
];

/// The same numbers each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }

    fn place(&mut self, text: &str) -> usize {
        let place = self.below(text.len() + 1);
        (0..=place).rev().find(|place| text.is_char_boundary(*place)).unwrap()
    }
}

fn mutated(numbers: &mut Numbers) -> String {
    let mut text = SEEDS[numbers.below(SEEDS.len())].to_owned();
    for _ in 0..=numbers.below(4) {
        let place = numbers.place(&text);
        match numbers.below(4) {
            0 => {
                let other = numbers.place(&text);
                text.replace_range(place.min(other)..place.max(other), "");
            }
            1 => {
                let other = numbers.place(&text);
                let copy = text[place.min(other)..place.max(other)].to_owned();
                text.insert_str(place, &copy);
            }
            _ => text.insert_str(place, &format!(" {} ", PIECES[numbers.below(PIECES.len())])),
        }
    }
    text
}

fn tried(dialect: Dialect, seed: u64) -> usize {
    let rounds = if std::env::var_os("BELLJAR_TEST_FULL").is_some() {
        50_000
    } else {
        3_000
    };
    let mut numbers = Numbers(seed);
    let mut passed = 0;
    for _ in 0..rounds {
        let text = mutated(&mut numbers);
        let Ok(checked) = check(dialect, &text) else { continue };
        passed += 1;
        // What passed is stable, names the same, and shows no sign of a write outside of quotes.
        let again = check(dialect, &checked.text)
            .unwrap_or_else(|refusal| panic!("{text} -> {}: {}", checked.text, refusal.why));
        assert_eq!(again, checked, "{text}");
        let bare = without_quotes(&checked.text).to_uppercase();
        let marks: &[&str] = if dialect == Postgres {
            &[";", "/*", "--"]
        } else {
            &[";", "/*", "--", "#", "@"]
        };
        assert!(
            !marks.iter().any(|mark| bare.contains(mark)),
            "{text} -> {}",
            checked.text
        );
        let written = writes(&bare);
        assert!(written.is_empty(), "{written:?}: {text} -> {}", checked.text);
    }
    passed
}

/// The text without what stands in quotes.
fn without_quotes(text: &str) -> String {
    let mut bare = String::new();
    let mut open = None;
    for letter in text.chars() {
        match open {
            Some(quote) if quote == letter => open = None,
            Some(_) => {}
            None if matches!(letter, '\'' | '"' | '`') => open = Some(letter),
            None => bare.push(letter),
        }
    }
    bare
}

/// The words of a bare text that no query has. After AS, a dot and a cast a word is a name.
fn writes(bare: &str) -> Vec<&str> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let words = bare.split(|letter| !is_name(letter)).filter(|word| !word.is_empty());
    let found = words.filter(|word| {
        let before = bare
            .get(..word.as_ptr().addr() - bare.as_ptr().addr())
            .unwrap_or_default()
            .trim_end();
        let is_named = before.ends_with([':', '.']) || before.ends_with(" AS");
        ["DELETE", "DROP", "INTO", "PG_SLEEP"].contains(word) && !is_named
    });
    found.collect()
}

#[test]
fn threat_102_mutations_are_refused_or_stable() {
    for (dialect, seed) in [(Postgres, 1), (MySql, 2), (Snowflake, 3), (Sqlite, 4)] {
        let passed = tried(dialect, seed);
        assert!(passed > 50, "{dialect:?}: only {passed} mutations were queries");
    }
}
