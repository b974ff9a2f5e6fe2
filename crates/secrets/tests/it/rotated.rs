//! What services gave in place of configured secrets.

use std::fs::{self, File, TryLockError};
use std::path::PathBuf;

use secret::{Secret, Successors};
use secrets::{KeyFrom, Rotated};
use tempfile::{TempDir, tempdir};

use crate::secret;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// As another process would open it.
    fn rotated(&self) -> Rotated {
        Rotated::new(self.path("rotated"), KeyFrom::File(self.path("key")))
    }

    fn newest(&self, service: &str, configured: &str) -> Option<String> {
        let newest = self.rotated().newest(service, &secret(configured)).unwrap();
        newest.map(|secret| secret.expose().to_owned())
    }

    fn keep(&self, service: &str, configured: &str, newest: &str) {
        let kept = self.rotated().keep(service, &secret(configured), &secret(newest));
        kept.unwrap();
    }
}

#[test]
fn what_succeeds_a_secret_does_so_for_that_secret_and_service_alone() {
    let place = Place::new();
    assert_eq!(
        (place.newest("crm", "a"), place.rotated().list().unwrap()),
        (None, vec![])
    );
    place.keep("crm", "a", "a-1");
    place.keep("crm", "a", "a-2");
    assert_eq!(place.newest("crm", "a").as_deref(), Some("a-2"));
    assert_eq!(place.newest("crm", "b"), None, "another was configured");
    assert_eq!(place.newest("shop", "a"), None, "of another service");
    // Whoever still has the one before loses nothing by the other.
    place.keep("crm", "b", "b-1");
    assert_eq!(place.newest("crm", "a").as_deref(), Some("a-2"));
    let listed = place.rotated().list().unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].service == "crm" && listed[0].first <= listed[0].last);
}

#[test]
fn no_more_than_two_configured_secrets_of_a_service_have_successors() {
    let place = Place::new();
    place.keep("shop", "x", "x-1");
    for configured in ["a", "b", "c", "d"] {
        place.keep("crm", configured, &format!("{configured}-1"));
    }
    let left: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .filter(|configured| place.newest("crm", configured).is_some())
        .collect();
    assert!(left.len() == 2 && left.contains(&"d"), "{left:?}");
    assert_eq!(place.newest("shop", "x").as_deref(), Some("x-1"));
}

#[test]
fn what_is_kept_is_sealed_and_cannot_be_exchanged() {
    let place = Place::new();
    place.keep("crm", "configured-canary", "newest-canary");
    let text = fs::read_to_string(place.path("rotated")).unwrap();
    assert!(!text.contains("canary"), "{text}");
    place.keep("shop", "configured-canary", "other-canary");
    let text = fs::read_to_string(place.path("rotated")).unwrap();
    let form: serde_json::Value = serde_json::from_str(&text).unwrap();
    let values: Vec<&str> = form["entries"]
        .as_object()
        .unwrap()
        .values()
        .map(|entry| entry["value"].as_str().unwrap())
        .collect();
    let exchanged = text
        .replace(values[0], "#")
        .replace(values[1], values[0])
        .replace('#', values[1]);
    fs::write(place.path("rotated"), exchanged).unwrap();
    let refused = place.rotated().newest("crm", &secret("configured-canary")).unwrap_err();
    assert!(refused.to_string().contains("was altered"), "{refused}");
    assert!(!refused.to_string().contains("canary"));
}

#[test]
fn one_at_a_time_has_the_turn_of_a_service() {
    let place = Place::new();
    let turn = place.rotated().turn("crm").unwrap();
    let file = File::open(place.path("rotated.crm.lock")).unwrap();
    assert!(matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
    // Another service's is free.
    drop(place.rotated().turn("shop").unwrap());
    drop(turn);
    file.try_lock().unwrap();
}

#[test]
fn what_cannot_be_kept_is_said_in_words() {
    let place = Place::new();
    let nowhere = Rotated::new(place.path("rotated"), KeyFrom::File(place.path("nowhere/key")));
    let first = Secret::new("configured");
    assert_eq!(nowhere.newest("crm", &first).unwrap(), None, "nothing needs no key");
    let unkept = nowhere.keep("crm", &first, &secret("newest")).unwrap_err();
    assert!(
        unkept.why.contains("make the key file") && unkept.remedy.contains("belljar secret set"),
        "{unkept}"
    );
}
