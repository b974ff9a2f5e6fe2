//! Refresh tokens that a provider replaces with each use, and takes back whole when it sees a used one.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use secret::{Secret, Successors};
use secrets::{KeyFrom, Rotated};
use serde_json::json;
use services::Code;
use tempfile::{TempDir, tempdir};

use crate::rig::{Rig, Setting, Upstream, ok, status};

const GET: &str = "[methods.get]\nsummary = \"One contact\"\naccess = \"read\"\nrequest = \"GET /contacts\"\n";

/// What a provider knows: the refresh token that counts, and how many it gave.
#[derive(Default)]
struct Provider {
    given: usize,
    shown: Vec<String>,
    /// What is to be so at each request with a token.
    holds: Option<Box<dyn Fn(usize) + Send>>,
}

/// A provider and its API, and where what it gives is kept.
struct House {
    upstream: Upstream,
    provider: Arc<Mutex<Provider>>,
    folder: TempDir,
}

impl House {
    async fn new() -> Self {
        let provider = Arc::<Mutex<Provider>>::default();
        let asked = Arc::clone(&provider);
        let upstream = Upstream::start(move |seen, _| {
            let mut provider = asked.lock().unwrap();
            if seen.target != "/token" {
                if let Some(holds) = &provider.holds {
                    holds(provider.given);
                }
                return ok(json!(1));
            }
            let form = url::form_urlencoded::parse(seen.body.as_bytes());
            let shown = form.into_owned().find(|(name, _)| name == "refresh_token").unwrap().1;
            let counts = shown == format!("refresh-{}", provider.given) || shown.starts_with("signed-in-anew");
            provider.shown.push(shown);
            if !counts {
                return status(400, json!({"error": "invalid_grant", "error_description": "used"}));
            }
            provider.given += 1;
            ok(json!({
                "access_token": format!("token-{}", provider.given),
                // Over at once: each call needs another.
                "expires_in": 0,
                "refresh_token": format!("refresh-{}", provider.given),
            }))
        })
        .await;
        Self {
            upstream,
            provider,
            folder: tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn rotated(&self) -> Rotated {
        Rotated::new(self.path("rotated"), KeyFrom::File(self.path("key/file")))
    }

    fn make_key_folder(&self) {
        fs::create_dir(self.path("key")).unwrap();
    }

    /// A process that calls: it knows what is configured and what was kept.
    fn process(&self, configured: &str) -> Rig {
        let token_url = self.upstream.base().replace("/v1", "/token");
        let auth = format!("[auth]\nkind = \"refresh_token\"\ntoken_url = \"{token_url}\"\n");
        let slots = [("client_id", "me"), ("refresh_token", "store:refresh")];
        let mut setting = Setting::with_auth(&self.upstream.base(), &auth, &slots, GET);
        setting.successors = Some(Arc::new(self.rotated()));
        let rig = setting.build();
        rig.secrets.set("refresh", configured);
        rig
    }

    fn shown(&self) -> Vec<String> {
        self.provider.lock().unwrap().shown.clone()
    }
}

#[tokio::test]
async fn a_refresh_token_that_was_replaced_outlives_the_process() {
    let house = House::new().await;
    house.make_key_folder();
    for _ in 0..3 {
        let rig = house.process("refresh-0");
        rig.get("get", json!({})).await;
        rig.get("get", json!({})).await;
    }
    let shown: Vec<_> = (0..6).map(|number| format!("refresh-{number}")).collect();
    assert_eq!(house.shown(), shown);
    for entry in fs::read_dir(house.folder.path()).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            let text = fs::read_to_string(entry.path()).unwrap();
            assert!(!text.contains("refresh-"), "{:?}: {text}", entry.file_name());
        }
    }
    // Somebody signs in again.
    house.process("signed-in-anew").get("get", json!({})).await;
    house.process("signed-in-anew").get("get", json!({})).await;
    assert_eq!(house.shown()[6..], ["signed-in-anew", "refresh-7"]);
}

#[tokio::test]
async fn what_a_provider_gives_is_kept_before_its_token_is_used() {
    let house = House::new().await;
    house.make_key_folder();
    let kept = house.rotated();
    house.provider.lock().unwrap().holds = Some(Box::new(move |given| {
        let newest = kept.newest("crm", &Secret::new("refresh-0")).unwrap().unwrap();
        assert_eq!(newest.expose(), format!("refresh-{given}"));
    }));
    let rig = house.process("refresh-0");
    rig.get("get", json!({})).await;
    rig.get("get", json!({})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_refresh_token_is_shown_twice_by_many_calls_of_two_processes() {
    let house = House::new().await;
    house.make_key_folder();
    let processes = [house.process("refresh-0"), house.process("refresh-0")];
    let calls = processes
        .iter()
        .flat_map(|rig| (0..8).map(|_| rig.get("get", json!({}))));
    join_all(calls).await;
    let shown = house.shown();
    let once: BTreeSet<_> = shown.iter().collect();
    assert_eq!(once.len(), shown.len(), "{shown:?}");
}

#[tokio::test]
async fn a_refresh_token_that_cannot_be_kept_is_followed_and_kept_later() {
    let house = House::new().await;
    // There is no folder for the key.
    let rig = house.process("refresh-0");
    rig.get("get", json!({})).await;
    rig.get("get", json!({})).await;
    house.make_key_folder();
    rig.get("get", json!({})).await;
    house.process("refresh-0").get("get", json!({})).await;
    assert_eq!(house.shown(), ["refresh-0", "refresh-1", "refresh-2", "refresh-3"]);
}

#[tokio::test]
async fn one_who_cannot_read_what_was_kept_shows_nothing_that_may_be_used() {
    let house = House::new().await;
    house.make_key_folder();
    house.process("refresh-0").get("get", json!({})).await;
    fs::remove_file(house.path("key/file")).unwrap();
    let rig = house.process("refresh-0");
    let failure = rig.fails("get", json!({}), Code::CredentialMissing).await;
    assert!(failure.message.contains("there is no key file"), "{failure}");
    assert_eq!(house.shown(), ["refresh-0"]);
}

#[tokio::test]
async fn a_refresh_token_that_counts_no_more_is_said_with_what_to_do() {
    let house = House::new().await;
    house.make_key_folder();
    let failure = house
        .process("refresh-9")
        .fails("get", json!({}), Code::CredentialRefused)
        .await;
    let remedy = failure.remedy.unwrap();
    assert!(
        remedy.contains("signs in with it again") && remedy.contains("services.crm.auth.refresh_token"),
        "{remedy}"
    );
}
