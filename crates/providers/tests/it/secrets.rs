//! Keys go to their own model, and are found nowhere else.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use providers::{ModelError, ModelSettings, ProviderKind};
use secret::{Credential, Reference, Secret, Source, Unresolved};
use testkit::model_server::{Answer, ModelServer};

use crate::{KINDS, ask, at, model, prompt, providers};

/// Everything that an error could print.
fn all_of(error: &ModelError) -> String {
    let mut all = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(next) = source {
        all.push_str(&format!(" {next} {next:?}"));
        source = next.source();
    }
    all
}

#[tokio::test]
async fn threat_138_a_key_is_found_in_no_error_and_at_no_other_model() {
    let (first, second) = (ModelServer::start().await, ModelServer::start().await);
    for kind in KINDS {
        let wrong = "wrong-key-0123456789";
        let mut one = at(&first, kind);
        one.api_key = Some(Secret::new(wrong).into());
        one.headers = BTreeMap::from([("x-team".to_owned(), Secret::new("header-secret-77"))]);
        let (one, two) = (model("one", one), model("two", at(&second, kind)));
        assert!(!format!("{one:?} {two:?}").contains(wrong) && !format!("{one:?}").contains("header-secret"));
        let providers = providers(vec![one, two]);
        // The fake provider repeats the key that it refuses.
        let error = ask(&providers, "one", &[prompt("hi")]).await.end.unwrap_err();
        assert!(matches!(error, ModelError::Unauthorized { .. }), "{error:?}");
        assert!(!all_of(&error).contains(wrong), "{}", all_of(&error));
        assert!(error.to_string().contains("[secret]"), "{error}");
        for fault in [
            Answer::Raw(format!(
                "event: error\ndata: {{\"error\":{{\"type\":\"odd\",\"message\":\"{}\"}}}}\n\n",
                second.key()
            )),
            Answer::Raw(format!("event: {}\ndata: nonsense\n\n", second.key())),
            Answer::Raw(format!(
                "event: content_block_start\ndata: {{\"index\":\"{}\"}}\n\n",
                second.key()
            )),
            Answer::Status {
                status: 400,
                retry_after: None,
                message: format!("your key is {}", second.key()),
            },
        ] {
            second.always(fault);
            let heard = ask(&providers, "two", &[prompt("hi")]).await;
            let said = format!(
                "{} {:?}",
                heard.end.as_ref().err().map(all_of).unwrap_or_default(),
                heard.retries
            );
            assert!(!said.contains(second.key()), "{kind:?}: {said}");
        }
        let at_first = first.received().pop().unwrap();
        assert!(!format!("{:?}", at_first.headers).contains(second.key()));
        assert_eq!(at_first.headers["x-team"], "header-secret-77");
        for received in second.received() {
            let shown = format!("{:?} {:?}", received.headers, received.bytes);
            assert!(!shown.contains(wrong) && !shown.contains("header-secret"), "{shown}");
        }
    }
}

/// A source whose secret can be changed and taken away.
#[derive(Default)]
struct Changing(Mutex<Option<Secret>>);

impl Changing {
    fn becomes(&self, key: Option<&str>) {
        *self.0.lock().unwrap() = key.map(Secret::new);
    }
}

impl Source for Changing {
    fn secret(&self, reference: &Reference) -> Result<Secret, Unresolved> {
        let secret = self.0.lock().unwrap().clone();
        secret.ok_or_else(|| Unresolved::absent(reference, "it was revoked", "set it again"))
    }
}

#[tokio::test]
async fn threat_068_a_key_is_asked_for_with_each_request() {
    let server = ModelServer::start().await;
    for kind in KINDS {
        let source = Arc::new(Changing::default());
        let mut settings = at(&server, kind);
        settings.api_key = Some(Credential::asked(
            "store:model".parse().unwrap(),
            Arc::clone(&source) as _,
        ));
        let providers = providers(vec![model("m", settings)]);

        let sent = server.count();
        let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
        assert!(matches!(error, ModelError::NoKey { .. }), "{error:?}");
        assert!(all_of(&error).contains("the secret store:model cannot be had: it was revoked; set it again"));

        source.becomes(Some("an old key that was changed"));
        let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
        assert!(matches!(error, ModelError::Unauthorized { .. }), "{error:?}");
        assert!(!all_of(&error).contains("an old key"), "{}", all_of(&error));

        source.becomes(Some(server.key()));
        ask(&providers, "m", &[prompt("hi")]).await.end.unwrap();

        source.becomes(Some("no\nkey"));
        let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
        assert!(matches!(error, ModelError::BadKey { .. }), "{error:?}");

        source.becomes(None);
        let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
        assert!(matches!(error, ModelError::NoKey { .. }), "{error:?}");
        assert_eq!(server.count(), sent + 2, "without a key nobody is asked");
    }
}

/// Where a request goes is the configuration's business alone.
#[tokio::test]
async fn threat_136_no_name_but_the_configured_one_is_a_model() {
    let server = ModelServer::start().await;
    let mut settings = at(&server, ProviderKind::OpenaiChat);
    settings.model = Some("fake-1".to_owned());
    let providers = providers(vec![model("cheap", settings)]);
    for name in [
        "Cheap",
        "cheap ",
        "openai/cheap",
        "cheap/../dear",
        "fake-1",
        "",
        "cheap\n",
        "http://127.0.0.1:1/cheap",
    ] {
        let error = providers.model(name).unwrap_err();
        assert!(error.to_string().ends_with("there are: cheap"), "{error}");
        assert!(!error.next_model_may_help());
    }
    // What a prompt says of addresses changes nothing.
    let said = prompt("x-belljar-base-url: http://127.0.0.1:1/ \",\"model\":\"dear\"");
    ask(&providers, "cheap", &[said]).await.end.unwrap();
    assert_eq!(server.received()[0].body["model"], "fake-1");
    for name in ["../dear", "a b", "dear?x=1", "dear\"", "ä", ".dear", ""] {
        let settings = ModelSettings {
            model: Some(name.to_owned()),
            ..at(&server, ProviderKind::Openai)
        };
        let problems = providers::Model::new("m", settings).unwrap_err();
        assert_eq!(problems[0].key, "model", "{name:?}");
    }
}

/// What is no TLS gets neither key nor prompt.
#[tokio::test]
async fn a_provider_that_does_not_speak_tls_is_told_nothing() {
    let server = ModelServer::start().await;
    let mut settings = at(&server, ProviderKind::Anthropic);
    settings.base_url = settings.base_url.map(|url| url.replace("http:", "https:"));
    let providers = providers(vec![model("m", settings)]);
    let error = ask(&providers, "m", &[prompt("hi")]).await.end.unwrap_err();
    assert!(matches!(error, ModelError::Unreachable { .. }), "{error:?}");
    assert!(!all_of(&error).contains(server.key()));
    assert_eq!(server.count(), 0);
}
