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
    let error = parse(&format!("pakages = []\n{SMALL}")).unwrap_err();
    let RecipeError::Parse { source, .. } = error else {
        panic!("{error}")
    };
    assert!(source.to_string().contains("pakages"), "{source}");
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
