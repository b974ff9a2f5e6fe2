use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use super::*;

/// A repository with a commit, and the folder that is `/knowledge`.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(init: &[&str]) -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["served", "knowledge"] {
            fs::create_dir(place.folder.path().join(name)).unwrap();
        }
        place.git(&[&["init", "--quiet", "--initial-branch=trunk"], init].concat());
        place.commit("one");
        place
    }

    fn served(&self) -> String {
        self.folder.path().join("served").display().to_string()
    }

    /// In the repository that is fetched from.
    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.served());
        git.args(["-c", "user.name=ada", "-c", "user.email=ada@example.com"]);
        well(&git.args(arguments).env("HOME", self.folder.path()).output().unwrap());
    }

    fn commit(&self, text: &str) {
        fs::write(Path::new(&self.served()).join("file"), text).unwrap();
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", text]);
    }

    fn run(&self, script: &str) -> Output {
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", script])
            .current_dir(self.folder.path().join("knowledge"));
        shell.env("HOME", self.folder.path()).env("RAN", self.ran());
        let variables = [("NAME", "app"), ("URL", &self.served()), ("BRANCH", "")];
        shell.envs(variables).output().unwrap()
    }

    fn ran(&self) -> std::path::PathBuf {
        self.folder.path().join("ran")
    }

    fn app(&self) -> std::path::PathBuf {
        self.folder.path().join("knowledge/app")
    }

    fn file(&self) -> String {
        fs::read_to_string(self.app().join("file")).unwrap()
    }

    /// What a build of another repository may have written.
    fn plant(&self) {
        let git = self.app().join(".git");
        let order = "echo ran >> \"$RAN\"";
        fs::create_dir_all(git.join("hooks")).unwrap();
        for hook in [
            "post-checkout",
            "reference-transaction",
            "post-merge",
            "post-index-change",
        ] {
            let path = git.join("hooks").join(hook);
            fs::write(&path, format!("#!/bin/sh\n{order}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir_all(git.join("info")).unwrap();
        fs::write(git.join("info/attributes"), "* filter=planted\n").unwrap();
        let config = git.join("config");
        for (key, value) in [
            ("core.fsmonitor", format!("{order}; true")),
            ("filter.planted.smudge", format!("{order}; cat")),
            ("filter.planted.clean", format!("{order}; cat")),
            ("remote.origin.uploadpack", format!("{order}; git-upload-pack")),
        ] {
            let mut set = Command::new("git");
            well(
                &set.args(["config", "--file"])
                    .arg(&config)
                    .args([key, &value])
                    .output()
                    .unwrap(),
            );
        }
    }
}

fn well(ran: &Output) {
    assert!(ran.status.success(), "{ran:?}");
}

#[test]
fn what_a_build_wrote_for_git_to_run_is_not_run_by_the_next_fetch() {
    let place = Place::new(&[]);
    well(&place.run(FETCH));
    assert_eq!(place.file(), "one");
    place.plant();
    well(&place.run("git -C app fetch; git -C app status; git -C app checkout --force trunk"));
    assert!(place.ran().exists(), "what was planted is harmless: this shows nothing");
    fs::remove_file(place.ran()).unwrap();
    place.plant();
    place.commit("two");
    well(&place.run(FETCH));
    assert_eq!(place.file(), "two");
    assert!(!place.ran().exists(), "it was run");
    // Another place where git would look for settings.
    let elsewhere = place.folder.path().join("elsewhere");
    fs::rename(place.app().join(".git"), &elsewhere).unwrap();
    symlink(&elsewhere, place.app().join(".git")).unwrap();
    place.commit("three");
    well(&place.run(FETCH));
    assert_eq!(place.file(), "three");
    assert!(place.app().join(".git").is_dir() && !place.app().join(".git").is_symlink());
}

#[test]
fn sessions_find_no_settings_that_a_build_wrote_and_can_pull() {
    for init in [&[][..], &["--object-format=sha256"]] {
        let place = Place::new(init);
        well(&place.run(FETCH));
        place.plant();
        well(&place.run(SEAL));
        place.commit("two");
        well(&place.run("git -C app status"));
        well(&place.run(PULL));
        assert_eq!(place.file(), "two", "{init:?}");
        assert!(!place.ran().exists(), "it was run");
        // What is left is what the next fetch goes on from.
        place.commit("three");
        well(&place.run(FETCH));
        assert_eq!(place.file(), "three", "{init:?}");
    }
    let place = Place::new(&[]);
    let sealed = place.run(SEAL);
    let said = String::from_utf8_lossy(&sealed.stdout).into_owned();
    assert!(!sealed.status.success() && said.contains("/knowledge/app"), "{said}");
}
