use std::path::Path;

use ::knowledge::Knowledge;

use crate::Recipe;

const SMALL: &str = r#"description = "A small one."
date = 2026-11-01
[debian]
suite = "trixie"
packages = ["busybox-static"]
[user]
name = "agent"
id = 1000
folder = "/workspace"
"#;

fn parse(more: &str) -> Result<Recipe, String> {
    let text = format!("{more}\n");
    // Keys of the whole recipe stand before its first table.
    let (first, rest) = text
        .split_once("[[")
        .map_or((&*text, String::new()), |(first, rest)| (first, format!("[[{rest}")));
    let text = format!("{first}{SMALL}{rest}");
    Recipe::parse("small", &text, Path::new("images/small/image.toml")).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error} {}", source.unwrap_or_default())
    })
}

fn knowledge(more: &str) -> Knowledge {
    parse(more).unwrap().knowledge().unwrap().clone()
}

#[test]
fn what_is_left_out_is_the_usual() {
    let knowledge = knowledge("[[repositories]]\nurl = \"https://git.example.com/acme/app.git\"");
    assert_eq!((knowledge.refresh.as_secs(), knowledge.time.as_secs()), (1_800, 1_200));
    let repository = &knowledge.repositories[0];
    assert_eq!((repository.name.as_str(), repository.branch.as_deref()), ("app", None));
    assert_eq!(repository.host, ("git.example.com".to_owned(), 443));
}

#[test]
fn every_form_of_a_url_names_a_host_and_a_folder() {
    for (url, name, host, port) in [
        ("https://git.example.com/acme/app.git", "app", "git.example.com", 443),
        ("https://git.example.com:8443/app/", "app", "git.example.com", 8443),
        ("http://10.0.0.5/a/b", "b", "10.0.0.5", 80),
        (
            "ssh://git@git.example.com:2222/acme/app",
            "app",
            "git.example.com",
            2222,
        ),
        ("git@git.example.com:acme/app.git", "app", "git.example.com", 22),
        ("git@git.example.com:app.git", "app", "git.example.com", 22),
    ] {
        let knowledge = knowledge(&format!("[[repositories]]\nurl = {url:?}"));
        let repository = &knowledge.repositories[0];
        assert_eq!(
            (repository.name.as_str(), repository.host.0.as_str(), repository.host.1),
            (name, host, port)
        );
        assert_eq!(knowledge.repository_hosts().len(), 1);
    }
}

#[test]
fn a_mistake_is_named_with_its_line_and_what_to_write() {
    for (written, line, words) in [
        (
            "refresh = \"soon\"\n[[repositories]]\nurl = \"https://a.example/b\"",
            1,
            "from 1m to 30d",
        ),
        ("refresh = \"30m\"", 1, "add [[repositories]]"),
        (
            "\n[[repositories]]\nurl = \"git.example.com/app\"",
            12,
            "https://git.example.com/acme/app.git",
        ),
        ("\n[[repositories]]\nurl = \"file:///etc/shadow\"", 12, "should be like"),
        (
            "\n[[repositories]]\nurl = \"--upload-pack=x@a:b\"",
            12,
            "should be like",
        ),
        (
            "\n[[repositories]]\nurl = \"https://me:secret@a.example/b\"",
            12,
            "let a rule of belljar.toml, [egress.rules.NAME],",
        ),
        (
            "\n[[repositories]]\nname = \"../etc\"\nurl = \"https://a.example/b\"",
            12,
            "the name of a folder",
        ),
        (
            "\n[[repositories]]\nurl = \"https://a.example/.git\"",
            12,
            "such as name = \"app\"",
        ),
        (
            "\n[[repositories]]\nurl = \"https://a.example/b\"\nbranch = \"--help\"",
            13,
            "such as \"main\"",
        ),
        (
            "\n[[repositories]]\nurl = \"https://a.example/b\"\n[[repositories]]\nurl = \"https://c.example/b\"",
            13,
            "two repositories named \"b\"",
        ),
        (
            "\n[[repositories]]\nurl = \"https://a.example/b\"\n[knowledge]\nbuild = [\"\"]",
            14,
            "a command for the shell",
        ),
        (
            "\n[[repositories]]\nurl = \"https://a.example/b\"\n[knowledge]\ntime = \"9d\"",
            14,
            "knowledge.time = \"9d\" should be a time from 1s to 6h",
        ),
        (
            "\n[[repositories]]\nurl = \"https://a.example/b\"\n[knowledge]\negress = [\"https://x.example\"]",
            14,
            "such as \"packages.example.com\"",
        ),
    ] {
        let said = parse(written).unwrap_err();
        assert!(said.contains(&format!("line {line}: ")), "{written}: {said}");
        assert!(said.contains(words), "{written}: {said}");
        assert!(said.contains("images/small/image.toml"), "{written}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let said = parse("\n[[repositories]]\nurl = \"https://a.example/b\"\nbranches = [\"main\"]").unwrap_err();
    assert!(said.contains("line 13") && said.contains("branches"), "{said}");
}

#[test]
fn the_image_has_the_folder_and_is_not_built_anew_for_what_comes_later() {
    let one = parse("\n[[repositories]]\nurl = \"https://a.example/b\"").unwrap();
    let folder = &one.wanted.folders[Path::new("/knowledge")];
    assert_eq!(folder.owner, 1000);
    let other = parse("refresh = \"1h\"\n[[repositories]]\nurl = \"https://a.example/b\"").unwrap();
    assert_eq!(one.key(), other.key());
    assert_eq!(one.knowledge().unwrap().key(), other.knowledge().unwrap().key());
    let another = parse("\n[[repositories]]\nurl = \"https://a.example/c\"").unwrap();
    assert_ne!(one.knowledge().unwrap().key(), another.knowledge().unwrap().key());
    let without = parse("").unwrap();
    assert!(without.knowledge().is_none());
    assert_ne!(one.key(), without.key(), "the folder would be missing");
}
