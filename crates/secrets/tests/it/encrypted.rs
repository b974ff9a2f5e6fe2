//! The encrypted store.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secret::{Because, Credential, SecretName};
use secrets::{Change, EncryptedStore, Environment, KeyFrom, KeyMade, Local, Secrets, StoreError, make_key};
use tempfile::{TempDir, tempdir};

use crate::{ask, secret};

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempdir().unwrap(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("secrets")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key")
    }

    /// The store as another process would open it.
    fn store(&self) -> EncryptedStore {
        EncryptedStore::new(self.file(), KeyFrom::File(self.key()))
    }

    fn source(&self) -> Secrets {
        Secrets::new(Local::new(Environment::default()), self.store(), None)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.file()).unwrap()
    }
}

fn name(text: &str) -> SecretName {
    text.parse().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn secrets_are_set_listed_and_removed() {
    let place = Place::new();
    let (store, source) = (place.store(), place.source());
    assert_eq!(store.list().unwrap(), []);
    let error = ask(&source, "store:crm").unwrap_err();
    assert_eq!(error.because, Because::Absent);
    assert!(error.to_string().contains("belljar secret set crm"), "{error}");

    assert_eq!(store.set(&name("crm"), &secret("hunter2-ä")).unwrap(), Change::New);
    assert_eq!(store.set(&name("db"), &secret("pass word")).unwrap(), Change::New);
    assert_eq!(store.set(&name("crm"), &secret("hunter3")).unwrap(), Change::Replaced);
    let names: Vec<_> = store.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [name("crm"), name("db")]);
    assert_eq!(ask(&source, "store:crm").unwrap(), "hunter3");
    assert_eq!(ask(&source, "store:db").unwrap(), "pass word");

    assert!(store.remove(&name("crm")).unwrap());
    assert!(!store.remove(&name("crm")).unwrap());
    assert_eq!(ask(&source, "store:crm").unwrap_err().because, Because::Absent);
    for (value, said) in [("", "empty"), (&"x".repeat((64 << 10) + 1), "64 KiB")] {
        let error = store.set(&name("crm"), &secret(value)).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn no_value_stands_in_the_file_and_nobody_else_may_read_it() {
    let place = Place::new();
    place.store().set(&name("crm"), &secret("hunter2hunter2")).unwrap();
    let text = String::from_utf8(place.bytes()).unwrap();
    assert!(text.contains("\"crm\"") && !text.contains("hunter2"), "{text}");
    assert_eq!((mode(&place.file()), mode(&place.key())), (0o600, 0o600));
    let once = place.bytes();
    place.store().set(&name("crm"), &secret("hunter2hunter2")).unwrap();
    assert_ne!(place.bytes(), once, "the same value is never sealed alike");
}

/// The way of threat 67 through the store, and of 68: whoever asks has been running all along.
#[test]
fn threat_067_a_change_by_another_process_counts_at_once() {
    let place = Place::new();
    let source = place.source();
    assert!(ask(&source, "store:crm").is_err());
    for value in ["one", "two", "two", "six"] {
        place.store().set(&name("crm"), &secret(value)).unwrap();
        assert_eq!(ask(&source, "store:crm").unwrap(), value);
    }
    place.store().remove(&name("crm")).unwrap();
    assert_eq!(ask(&source, "store:crm").unwrap_err().because, Because::Absent);
    fs::remove_file(place.file()).unwrap();
    assert_eq!(ask(&source, "store:crm").unwrap_err().because, Because::Absent);
}

#[test]
fn writers_wait_for_each_other() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = place.store();
            scope.spawn(move || {
                for number in 0..8 {
                    let name = name(&format!("s{writer}.{number}"));
                    store.set(&name, &secret(name.as_str())).unwrap();
                }
            });
        }
    });
    let source = place.source();
    for entry in place.store().list().unwrap() {
        assert_eq!(
            ask(&source, &format!("store:{}", entry.name)).unwrap(),
            entry.name.as_str()
        );
    }
    assert_eq!(place.store().list().unwrap().len(), 32);
    let mut left: Vec<_> = fs::read_dir(place.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["key", "secrets", "secrets.lock"], "nothing is left over");
}

/// Each byte of the file is changed in turn. What comes out is the secret, where the byte means nothing, or an error; never another.
#[test]
fn whatever_is_altered_is_found_out() {
    let place = Place::new();
    place.store().set(&name("a"), &secret("alpha")).unwrap();
    place.store().set(&name("b"), &secret("bravo")).unwrap();
    let whole = place.bytes();
    let mut refused = 0;
    for position in 0..whole.len() {
        let mut altered = whole.clone();
        altered[position] ^= 1;
        fs::write(place.file(), &altered).unwrap();
        match (ask(&place.source(), "store:a"), ask(&place.source(), "store:b")) {
            (Ok(a), Ok(b)) => assert_eq!((a.as_str(), b.as_str()), ("alpha", "bravo"), "byte {position}"),
            (Err(error), Err(_)) => {
                assert_eq!(error.because, Because::Unusable);
                refused += 1;
            }
            (a, b) => panic!("byte {position}: {a:?} {b:?}"),
        }
    }
    assert!(refused * 10 > whole.len() * 7, "{refused} of {}", whole.len());
    for cut in [0, 1, whole.len() / 2, whole.len() - 3] {
        fs::write(place.file(), &whole[..cut]).unwrap();
        let error = ask(&place.source(), "store:a").unwrap_err();
        assert!(
            error.to_string().contains("no store of secrets, or was cut short"),
            "{error}"
        );
        assert!(
            place.store().set(&name("c"), &secret("x")).is_err(),
            "what is broken is not written over"
        );
    }
}

#[test]
fn entries_are_not_swapped_taken_out_or_brought_back() {
    let place = Place::new();
    let read = || -> serde_json::Value { serde_json::from_slice(&place.bytes()).unwrap() };
    place.store().set(&name("a"), &secret("alpha")).unwrap();
    let before = read();
    place.store().set(&name("b"), &secret("bravo")).unwrap();
    let whole = read();
    type Harm = fn(&mut serde_json::Value, &serde_json::Value);
    let harms: [(&str, Harm); 4] = [
        ("swapped", |now, _| {
            let (a, b) = (now["entries"]["a"].take(), now["entries"]["b"].take());
            now["entries"]["a"] = b;
            now["entries"]["b"] = a;
        }),
        ("renamed", |now, _| {
            let a = now["entries"]["a"].clone();
            now["entries"]["c"] = a;
        }),
        ("taken out", |now, _| {
            now["entries"].as_object_mut().unwrap().remove("b");
        }),
        ("brought back", |now, before| now["entries"] = before["entries"].clone()),
    ];
    for (what, harm) in harms {
        let mut now = whole.clone();
        harm(&mut now, &before);
        fs::write(place.file(), now.to_string()).unwrap();
        let error = ask(&place.source(), "store:a").unwrap_err();
        assert!(error.to_string().contains("was altered or damaged"), "{what}: {error}");
    }
}

#[test]
fn an_older_file_that_was_put_back_is_told_from_the_newer() {
    let place = Place::new();
    place.store().set(&name("crm"), &secret("revoked")).unwrap();
    let old = place.bytes();
    let source = place.source();
    place.store().remove(&name("crm")).unwrap();
    assert_eq!(ask(&source, "store:crm").unwrap_err().because, Because::Absent);
    fs::write(place.file(), &old).unwrap();
    for _ in 0..2 {
        let error = ask(&source, "store:crm").unwrap_err();
        assert_eq!(error.because, Because::Unusable);
        let said = error.to_string();
        assert!(
            said.contains("put back in time: it is of generation 1, and generation 2 was read before"),
            "{said}"
        );
    }
    // A program that starts anew takes it: bringing back a copy is a thing that people do.
    assert_eq!(ask(&place.source(), "store:crm").unwrap(), "revoked");
}

#[test]
fn the_key_must_be_there_closed_and_the_right_one() {
    let place = Place::new();
    place.store().set(&name("a"), &secret("alpha")).unwrap();
    let key = fs::read(place.key()).unwrap();
    let said = |place: &Place| {
        let error = ask(&place.source(), "store:a").unwrap_err();
        assert_eq!(error.because, Because::Unusable);
        assert!(place.store().list().is_err() && place.store().set(&name("b"), &secret("x")).is_err());
        error.to_string()
    };
    fs::set_permissions(place.key(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(said(&place).contains("others may read or change it"));
    fs::remove_file(place.key()).unwrap();
    assert!(said(&place).contains("there is no key file"));
    assert_eq!(make_key(&place.key(), None).unwrap(), KeyMade::Made);
    assert_eq!(make_key(&place.key(), None).unwrap(), KeyMade::There);
    assert!(said(&place).contains("the key does not fit"));
    fs::write(place.key(), "no key").unwrap();
    assert!(said(&place).contains("it holds no key"));
    fs::write(place.key(), key).unwrap();
    assert_eq!(ask(&place.source(), "store:a").unwrap(), "alpha");
}

#[test]
fn a_passphrase_opens_the_store() {
    let place = Place::new();
    let with = |passphrase: &str| {
        let passphrase = Credential::from(secret(passphrase));
        EncryptedStore::new(place.file(), KeyFrom::Passphrase(passphrase))
    };
    let long = "correct horse battery staple";
    with(long).set(&name("a"), &secret("alpha")).unwrap();
    let source = Secrets::new(Local::new(Environment::default()), with(long), None);
    assert_eq!(ask(&source, "store:a").unwrap(), "alpha");
    // What is derived once serves for the next file too.
    with(long).set(&name("a"), &secret("bravo")).unwrap();
    assert_eq!(ask(&source, "store:a").unwrap(), "bravo");

    let error = with("correct horse battery stable").list().unwrap_err();
    assert!(matches!(error, StoreError::WrongKey(_)), "{error}");
    let error = with("short").list().unwrap_err();
    assert!(matches!(error, StoreError::ShortPassphrase(12)), "{error}");
    let error = place.store().list().unwrap_err();
    assert!(error.to_string().contains("was sealed with a passphrase"), "{error}");
    let nowhere = Credential::asked(
        "file:/nowhere/passphrase".parse().unwrap(),
        Arc::new(Local::new(Environment::default())),
    );
    let error = EncryptedStore::new(place.file(), KeyFrom::Passphrase(nowhere))
        .list()
        .unwrap_err();
    assert!(matches!(error, StoreError::Passphrase(_)), "{error}");

    // A file that was altered cannot make the key cost what the machine does not have.
    let mut dear: serde_json::Value = serde_json::from_slice(&place.bytes()).unwrap();
    dear["key"]["memory"] = u32::MAX.into();
    fs::write(place.file(), dear.to_string()).unwrap();
    let error = with(long).list().unwrap_err();
    assert!(matches!(error, StoreError::Cost(_)), "{error}");
}

#[test]
fn a_store_of_a_later_release_is_left_alone() {
    let place = Place::new();
    fs::write(place.file(), r#"{"version": 2, "what": "nobody knows"}"#).unwrap();
    let error = place.store().set(&name("a"), &secret("alpha")).unwrap_err();
    assert!(matches!(error, StoreError::Version { found: 2, .. }), "{error}");
    assert!(fs::read_to_string(place.file()).unwrap().contains("nobody knows"));
}
