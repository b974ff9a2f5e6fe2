//! Variables and files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use secret::Because;
use secrets::{Environment, Local};
use tempfile::tempdir;

use crate::{ask, secret};

fn local() -> Local {
    let variables = [("KEY", " a key\n"), ("EMPTY", " ")];
    Local::new(
        variables
            .map(|(name, value)| (name.to_owned(), secret(value)))
            .into_iter()
            .collect::<Environment>(),
    )
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn variables_are_those_that_the_program_was_started_with() {
    assert_eq!(ask(&local(), "env:KEY").unwrap(), "a key");
    let error = ask(&local(), "env:OTHER").unwrap_err();
    assert_eq!(error.because, Because::Absent);
    assert!(error.to_string().contains("set OTHER"), "{error}");
    let error = ask(&local(), "env:EMPTY").unwrap_err();
    assert_eq!(error.because, Because::Unusable);
    assert!(error.to_string().contains("set and empty"), "{error}");
}

#[test]
fn threat_068_a_file_counts_as_it_is_now() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("key");
    let name = format!("file:{}", path.display());
    assert_eq!(ask(&local(), &name).unwrap_err().because, Because::Absent);
    for value in ["first", "other", "third"] {
        // Of one length and within one tick of the clock: no time and no size tells them apart.
        write(&path, &format!("{value}\n"), 0o600);
        assert_eq!(ask(&local(), &name).unwrap(), value);
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(ask(&local(), &name).unwrap_err().because, Because::Absent);
}

#[test]
fn a_file_that_others_can_reach_is_refused_in_words() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("key");
    let name = format!("file:{}", path.display());
    for mode in [0o644, 0o602, 0o601, 0o620, 0o666] {
        write(&path, "a key", mode);
        let error = ask(&local(), &name).unwrap_err();
        assert_eq!(error.because, Because::Unusable);
        let said = error.to_string();
        assert!(
            said.contains(&format!("mode {mode:04o}")) && said.contains("chmod 400"),
            "{said}"
        );
        assert!(!said.contains("a key"), "{said}");
    }
    for mode in [0o400, 0o600, 0o440] {
        write(&path, "a key", mode);
        assert_eq!(ask(&local(), &name).unwrap(), "a key");
    }
    // A link says nothing: what it leads to is looked at.
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(ask(&local(), &format!("file:{}", link.display())).unwrap(), "a key");
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(12_345), None).unwrap();
        let error = ask(&local(), &name).unwrap_err();
        assert!(error.to_string().contains("belongs to user 12345"), "{error}");
    }
}

#[test]
fn what_is_no_text_in_a_plain_file_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("key");
    let name = format!("file:{}", path.display());
    for (content, said) in [
        (&b""[..], "it is empty"),
        (b" \n", "it is empty"),
        (b"\xff\xfe", "it is not text"),
        (&[b'a'; (64 << 10) + 1], "longer than 64 KiB"),
    ] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = ask(&local(), &name).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    // Whoever opened this would wait for ever.
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
        let error = ask(&local(), &format!("file:{}", path.display())).unwrap_err();
        assert!(error.to_string().contains("no plain file"), "{error}");
    }
}

#[test]
fn what_opens_a_store_lies_in_none() {
    for name in ["store:a", "vault:secret/a#b"] {
        let error = ask(&local(), name).unwrap_err();
        assert!(error.to_string().contains("write env:NAME or file:/path"), "{error}");
    }
}
