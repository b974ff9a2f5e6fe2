//! The routing table that stands in the system prompt.

use std::fmt::Write;

use crate::Skill;

/// The most bytes of descriptions that a model is shown at the start.
const BUDGET: usize = 4_000;
/// What a description keeps however many skills there are.
const LEAST: usize = 60;

/// One line a skill, complete and in the order of their names, so that the same skills always make the same bytes.
///
/// Where the descriptions are too much in sum, the long ones are shortened alike; none is left out.
#[must_use]
pub fn catalogue<'a>(skills: impl IntoIterator<Item = &'a Skill>) -> String {
    let mut skills: Vec<&Skill> = skills.into_iter().collect();
    skills.sort_by(|one, other| one.name.cmp(&other.name));
    let longest = longest_within(skills.iter().map(|skill| skill.description.len()));
    let mut text = String::new();
    for skill in skills {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- {}: {}", skill.name, shortened(&skill.description, longest));
    }
    text
}

/// The length to which descriptions are cut so that together they stay within the budget.
fn longest_within(lengths: impl Iterator<Item = usize>) -> usize {
    let mut lengths: Vec<usize> = lengths.collect();
    lengths.sort_unstable();
    let mut left = BUDGET;
    for (index, length) in lengths.iter().enumerate() {
        let share = left / (lengths.len() - index);
        if *length > share {
            return share.max(LEAST);
        }
        left -= length;
    }
    usize::MAX
}

/// The text, or its beginning up to a word's end and `…`.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let room = text.floor_char_boundary(most.saturating_sub('…'.len_utf8()));
    let end = text[..room].rfind(' ').unwrap_or(room);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frontmatter;

    fn skill(name: &str, description: &str) -> Skill {
        Skill {
            name: name.into(),
            description: description.into(),
            body: String::new(),
            front: Frontmatter::default(),
            folder: name.into(),
        }
    }

    #[test]
    fn the_order_does_not_depend_on_how_they_came() {
        let (a, b) = (skill("a", "First."), skill("b", "Second."));
        assert_eq!(catalogue(&[b.clone(), a.clone()]), "- a: First.\n- b: Second.\n");
        assert_eq!(catalogue(&[a, b]), "- a: First.\n- b: Second.\n");
    }

    #[test]
    fn many_skills_are_all_there_and_short_ones_stay_whole() {
        let mut skills: Vec<_> = (0..50)
            .map(|n| skill(&format!("s{n:02}"), &"wörter ".repeat(100)))
            .collect();
        skills.push(skill("tiny", "Says hello."));
        let text = catalogue(&skills);
        assert_eq!(text.lines().count(), 51);
        assert!(text.contains("- tiny: Says hello.\n"));
        assert!(text.len() < BUDGET + 51 * 12, "{}", text.len());
    }
}
