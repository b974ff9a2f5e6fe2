//! Threat 107: a repository whose own configuration is an attack.

use std::process::Command;

use serde_json::json;

use crate::bench::Bench;

/// What must never be run.
const HIT: &str = "hit.sh";

fn git(bench: &Bench, arguments: &[&str]) {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.com",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(arguments)
        .current_dir(bench.at(""))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A repository of two commits.
fn repository() -> Bench {
    let bench = Bench::new();
    git(&bench, &["init", "--quiet"]);
    bench.put("code.txt", "one\ntwo\n");
    git(&bench, &["add", "code.txt"]);
    git(&bench, &["commit", "--quiet", "-m", "First"]);
    bench.put("code.txt", "one\n2\n");
    git(&bench, &["commit", "--quiet", "-am", "Second"]);
    bench
}

const LOOKS: &[&str] = &[
    "git status",
    "git status --short --branch",
    "git log --oneline",
    "git log -p",
    "git log --stat --all",
    "git log -p --format='%h %G? %GS %(describe)'",
    "git show HEAD",
    "git show HEAD:code.txt",
    "git diff",
    "git diff HEAD~1",
    "git diff --stat HEAD~1 HEAD",
    "git diff --cached",
    "git blame code.txt",
    "git grep -n two",
    "git grep one HEAD~1",
    "git ls-files --others",
    "git ls-tree -r HEAD",
    "git branch -a",
    "git tag",
    "git remote -v",
    "git rev-parse --abbrev-ref HEAD",
    "git rev-list --count HEAD",
    "git describe --always",
    "git shortlog -sn HEAD",
    "git for-each-ref",
    "git cat-file -p HEAD",
    "git diff-tree -p HEAD",
    "git count-objects -v",
];

#[tokio::test]
async fn a_repository_is_looked_at() {
    let bench = repository();
    bench.put("code.txt", "one\n3\n");
    for (command, expected) in [
        ("git log --oneline", "Second\n"),
        ("git status --short", " M code.txt\n"),
        ("git diff", "-2\n+3\n"),
        ("git show HEAD~1:code.txt", "one\ntwo\n"),
        ("git show HEAD", "-two\n+2\n"),
        ("git blame -s code.txt", "1) one"),
        ("git grep -n one", "code.txt:1:one\n"),
        ("git branch", "* main\n"),
        ("git rev-list --count HEAD", "2\n"),
    ] {
        let said = bench.ok("safebash", json!({ "command": command })).await;
        assert!(said.contains(expected), "{command}: {said}");
    }
}

#[tokio::test]
async fn threat_107_a_repositorys_own_configuration_runs_nothing() {
    let bench = repository();
    let hit = bench.at(HIT);
    bench.put(HIT, format!("#!/bin/sh\ntouch {}\ncat\n", bench.at("hit").display()));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&hit, mode).unwrap();
    let hit = hit.display().to_string();
    for (key, value) in [
        ("core.fsmonitor", hit.clone()),
        ("core.pager", hit.clone()),
        ("core.editor", hit.clone()),
        ("core.sshCommand", hit.clone()),
        ("core.askPass", hit.clone()),
        ("core.gitProxy", hit.clone()),
        ("core.alternateRefsCommand", hit.clone()),
        ("core.hooksPath", bench.at("hooks").display().to_string()),
        ("pager.log", hit.clone()),
        ("pager.diff", hit.clone()),
        ("pager.status", hit.clone()),
        ("interactive.diffFilter", hit.clone()),
        ("diff.external", hit.clone()),
        ("diff.evil.command", hit.clone()),
        ("diff.evil.textconv", hit.clone()),
        ("filter.evil.clean", hit.clone()),
        ("filter.evil.smudge", hit.clone()),
        ("filter.evil.process", hit.clone()),
        ("filter.evil.required", "true".to_owned()),
        ("merge.evil.driver", hit.clone()),
        ("log.showSignature", "true".to_owned()),
        ("gpg.program", hit.clone()),
        ("gpg.ssh.program", hit.clone()),
        ("gpg.x509.program", hit.clone()),
        ("credential.helper", format!("!{hit}")),
        ("protocol.allow", "always".to_owned()),
        ("protocol.ext.allow", "always".to_owned()),
        ("remote.origin.url", format!("ext::{hit}")),
        ("remote.origin.promisor", "true".to_owned()),
        ("remote.origin.uploadpack", hit.clone()),
        ("extensions.partialClone", "origin".to_owned()),
        ("submodule.recurse", "true".to_owned()),
        ("status.submoduleSummary", "true".to_owned()),
        ("alias.log", format!("!{hit}")),
        ("alias.lg", format!("!{hit}")),
        ("trailer.x.command", hit.clone()),
        ("uploadpack.packObjectsHook", hit.clone()),
        ("sequence.editor", hit.clone()),
        ("help.autocorrect", "1".to_owned()),
        ("help.browser", "evil".to_owned()),
        ("browser.evil.cmd", hit.clone()),
        ("core.repositoryFormatVersion", "1".to_owned()),
    ] {
        git(&bench, &["config", key, &value]);
    }
    bench.put(".gitattributes", "* diff=evil filter=evil merge=evil\n");
    std::fs::create_dir_all(bench.at(".git/info")).unwrap();
    std::fs::write(bench.at(".git/info/attributes"), "* diff=evil filter=evil\n").unwrap();
    for folder in ["hooks", ".git/hooks"] {
        for hook in [
            "post-index-change",
            "pre-commit",
            "post-checkout",
            "fsmonitor-watchman",
            "reference-transaction",
        ] {
            std::fs::create_dir_all(bench.at(folder)).unwrap();
            std::fs::copy(bench.at(HIT), bench.at(folder).join(hook)).unwrap();
        }
    }
    // A change of the same length, so that Git has to look at the content.
    bench.put("code.txt", "one\n3\n");
    for command in LOOKS {
        // It may fail (the configuration asks for what it cannot have); it must not run anything.
        let result = bench.call("safebash", json!({ "command": command })).await;
        assert!(
            !bench.at("hit").exists(),
            "{command} ran a program: {}",
            crate::bench::words(&result)
        );
    }
    for alias in [
        "git lg",
        "git log --ext-diff",
        "git diff --textconv",
        "git -c core.pager=x log",
    ] {
        let said = bench.error("safebash", json!({ "command": alias })).await;
        assert!(said.starts_with("not run: "), "{alias}: {said}");
    }
    // The attack is real: Git itself, asked the same, runs what it is told.
    let _ = Command::new("git")
        .args(["status"])
        .current_dir(bench.at(""))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(bench.at("hit").exists(), "the repository is no attack at all");
}

#[tokio::test]
async fn threat_107_a_repository_elsewhere_is_not_looked_at() {
    let bench = Bench::new();
    // Above the workspace, and named by a file in it.
    let above = bench.outside("");
    let output = Command::new("git")
        .args(["init", "--quiet"])
        .arg(above.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = bench.error("safebash", json!({ "command": "git status" })).await;
    assert!(said.contains("not a git repository"), "{said}");
    bench.put(
        ".git",
        format!("gitdir: {}\n", above.parent().unwrap().join(".git").display()),
    );
    bench.error("safebash", json!({ "command": "git status" })).await;
}
