//! Scripted models take the way of all others.

use std::io::Write;
use std::time::Duration;

use providers::{Model, ModelError, ModelSettings, ProviderKind, Providers, Timeouts};

use crate::{AT_ONCE, ask, model, prompt, providers};

fn scripted(script: &str) -> (Providers, tempfile::NamedTempFile) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(script.as_bytes()).unwrap();
    let settings = ModelSettings {
        script: Some(file.path().to_owned()),
        ..ModelSettings::new(ProviderKind::Scripted)
    };
    (providers(vec![model("m", settings)]), file)
}

#[tokio::test]
async fn overload_is_waited_out_and_the_answer_comes() {
    let (providers, _file) =
        scripted("steps: [{ text: at last, thinking: hm, fault: { status: 529, times: 2, retry_after: 0 } }]");
    let heard = ask(&providers, "m", &[prompt("hi")]).await;
    assert_eq!((heard.text.as_str(), heard.retries.len()), ("at last", 2));
    assert!(heard.end.unwrap().usage.input > 0);
}

#[tokio::test]
async fn delays_pass_and_silence_ends() {
    let (_, file) = scripted(
        "steps:\n- { when: { text: slow }, text: one two three, piece: 4, delay_ms: 1, pause_ms: 1 }\n- { text: x, fault: { silent: true, times: 9 } }\n",
    );
    let settings = ModelSettings {
        script: Some(file.path().to_owned()),
        ..ModelSettings::new(ProviderKind::Scripted)
    };
    // As brief as it is: what is late fails the second half only, which must fail.
    let heard = ask(&providers(vec![model("m", settings.clone())]), "m", &[prompt("slow")]).await;
    assert_eq!(heard.text, "one two three");
    let impatient = Timeouts {
        idle: Duration::from_millis(20),
        ..Timeouts::default()
    };
    let providers = Providers::new(vec![model("m", settings)], impatient, AT_ONCE).unwrap();
    let heard = ask(&providers, "m", &[prompt("x")]).await;
    assert!(matches!(heard.end, Err(ModelError::Silent { .. })), "{:?}", heard.end);
    assert_eq!(heard.retries.len(), 2);
}

/// The clock stands still but for what is waited for.
#[tokio::test(start_paused = true)]
async fn a_step_waits_before_it_begins_and_between_its_pieces() {
    for (delays, expected) in [
        ("delay_ms: 6000, pause_ms: 700, piece: 4", 6_000 + 3 * 700),
        ("delay_ms: 6000, pause_ms: 700, piece: 100", 6_000),
        ("pause_ms: 700, piece: 7", 700),
        ("piece: 4", 0),
    ] {
        let (providers, _file) = scripted(&format!("steps: [{{ text: one two three, {delays} }}]"));
        let began = tokio::time::Instant::now();
        let heard = ask(&providers, "m", &[prompt("go")]).await;
        assert_eq!(heard.text, "one two three");
        assert_eq!(began.elapsed().as_millis(), expected, "{delays}");
    }
}

#[tokio::test]
async fn a_cut_stream_ends_in_an_error_with_what_was_said() {
    let (providers, _file) = scripted("steps: [{ text: 'a long answer', piece: 2, fault: { cut_after: 700 } }]");
    let heard = ask(&providers, "m", &[prompt("hi")]).await;
    assert!(matches!(heard.end, Err(ModelError::Stream { .. })), "{:?}", heard.end);
    assert!(
        !heard.text.is_empty() && "a long answer".starts_with(&heard.text),
        "{:?}",
        heard.text
    );
    assert_eq!(ask(&providers, "m", &[prompt("hi")]).await.text, "a long answer");
}

#[tokio::test]
async fn what_the_script_does_not_know_is_said_in_words() {
    let (providers, _file) = scripted("steps: [{ when: { text: weather }, text: '{{ result.0.text }}' }]");
    let error = ask(&providers, "m", &[prompt("other")]).await.end.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"model m: no step of the script is for turn 1 of the prompt "other""#
    );
    let error = ask(&providers, "m", &[prompt("weather")]).await.end.unwrap_err();
    assert!(
        error.to_string().contains("{{ result.0.text }} has no value"),
        "{error}"
    );
}

#[test]
fn a_script_that_is_missing_or_wrong_is_told_with_the_settings() {
    let at = |script: Option<&str>| {
        let settings = ModelSettings {
            script: script.map(Into::into),
            ..ModelSettings::new(ProviderKind::Scripted)
        };
        Model::new("m", settings).unwrap_err()[0].to_string()
    };
    assert!(at(None).contains("needs the file that it plays"));
    assert!(
        at(Some("/nowhere/answers.yaml"))
            .starts_with("models.m.script: cannot read the script /nowhere/answers.yaml: ")
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"steps:\n- text: a\n- txt: b\n").unwrap();
    let said = at(file.path().to_str());
    assert!(
        said.contains("unknown field `txt`") && said.contains("line 3"),
        "{said}"
    );
}
