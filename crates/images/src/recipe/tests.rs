use std::collections::BTreeSet;

use super::*;

const SMALL: &str = r#"
    description = "A small one."
    date = 2026-11-01
    [debian]
    suite = "trixie"
    packages = ["busybox-static"]
    [user]
    name = "agent"
    id = 1000
    folder = "/workspace"
"#;

fn parse(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::parse("small", text, Path::new("images/small/image.toml"))
}

#[test]
fn a_day_becomes_its_midnight() {
    assert_eq!(parse(SMALL).unwrap().epoch(), 1_793_491_200);
    let leap = SMALL.replace("2026-11-01", "2000-02-29");
    assert_eq!(parse(&leap).unwrap().epoch(), 951_782_400);
}

#[test]
fn every_change_changes_the_key() {
    let one = parse(SMALL).unwrap();
    assert_eq!(one.key(), parse(SMALL).unwrap().key());
    assert_ne!(one.key(), parse(&SMALL.replace("trixie", "bookworm")).unwrap().key());
}

#[test]
fn all_mistakes_are_named_at_once() {
    let text = SMALL
        .replace("trixie", "--customize-hook=x")
        .replace("busybox-static", "a b")
        .replace("1000", "0")
        + "[npm]\nprettier = \"^3\"\n[files]\n\"/../etc/passwd\" = \"x\"\n";
    let said = parse(&text).unwrap_err().to_string();
    for part in ["debian.suite", "\"a b\"", "\"^3\"", "user.id = 0", "/../etc/passwd"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}

#[test]
fn an_unknown_key_is_refused() {
    let said = parse(&format!("pakages = []\n{SMALL}")).unwrap_err().to_string();
    assert!(said.contains("line 1: unknown key pakages: "), "{said}");
}

/// `BLESS=1` writes anew what is said.
#[test]
fn every_mistake_of_a_recipe_is_told_with_its_line_and_what_to_write() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for name in ["Full_of_mistakes", "no-toml", "empty"] {
        let folder = golden.join(name);
        let said = Recipe::read(&folder).unwrap_err().to_string() + "\n";
        let said = said.replace(&format!("{}/", golden.display()), "");
        let file = folder.join("said.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, &said).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(said, expected, "BLESS=1 writes it anew");
    }
}

/// So that a mistake that is made in the file of mistakes is never passed over: each of its lines that says so is one.
#[test]
fn each_line_that_is_marked_as_a_mistake_is_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/Full_of_mistakes");
    let text = std::fs::read_to_string(folder.join("image.toml")).unwrap();
    let RecipeError::Wrong { faults, .. } = Recipe::read(&folder).unwrap_err() else {
        panic!("it was read");
    };
    let told: BTreeSet<usize> = faults
        .iter()
        .filter_map(|fault| fault.strip_prefix("line ")?.split_once(':')?.0.parse().ok())
        .collect();
    let marked = text.lines().enumerate().filter(|(_, line)| line.contains("# wrong"));
    let marked: BTreeSet<usize> = marked.map(|(index, _)| index + 1).collect();
    assert_eq!(told, marked);
}

#[test]
fn another_machines_packages_are_left_to_it() {
    let text = format!(
        "{SMALL}\n[machine.pdp11.npm]\nnode = \"1.0.0\"\n[machine.{}.npm]\nbun = \"1.0.0\"\n",
        std::env::consts::ARCH
    );
    let recipe = parse(&text).unwrap();
    assert_eq!(recipe.wanted.npm.keys().collect::<Vec<_>>(), ["bun"]);
}
