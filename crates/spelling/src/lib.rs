//! What people who mistyped a word are told: which one they are likely to mean, and which there are.

/// The known word that a mistyped one is likely to mean.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|candidate| (distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed or changed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, candidate) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *candidate);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// `a, b or c`.
#[must_use]
pub fn either<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_means_the_nearest_and_a_strange_one_none() {
        let known = ["packages", "suite", "variant", "npm"];
        for (word, meant) in [
            ("pakages", Some("packages")),
            ("Suite", Some("suite")),
            ("nmp", None),
            ("np", Some("npm")),
            ("quark", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }

    #[test]
    fn words_are_listed_as_people_do() {
        assert_eq!(either(["a", "b", "c"]), "a, b or c");
        assert_eq!(either(["a"]), "a");
        assert_eq!(either([]), "");
    }
}
