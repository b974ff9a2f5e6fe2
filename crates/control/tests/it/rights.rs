//! What a session may do, and what becomes of what it may not.

use std::path::PathBuf;
use std::sync::Arc;

use control::{NewPrompt, Outside};
use domain::{Delivery, Door, RunState};
use policy::{Outcome, Scope};
use serde_json::{Value, json};
use skills::{Frontmatter, Skill};
use store::{Asker, Target};
use testkit::model_server::{Answer, Speech};

use crate::world::{Differs, World, in_both_placements, in_both_placements_with};

fn scope(json: Value) -> Scope {
    serde_json::from_value(json).unwrap()
}

/// A prompt with a scope of its own.
async fn scoped(world: &World, target: Target, json: Value, delivery: Delivery) -> store::Accepted {
    let prompt = NewPrompt {
        scope: Some(scope(json)),
        delivery,
        ..NewPrompt::words(target, Door::Api, "go")
    };
    world.control.prompt(world.asker, prompt).await.unwrap()
}

/// The tools of the newest request that a model got.
fn tools(world: &World) -> Vec<String> {
    let request = world.models.received().pop().expect("a request").body;
    let tools = request["tools"].as_array().cloned().unwrap_or_default();
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_076_a_tool_that_is_denied_is_not_there_and_does_nothing() {
    in_both_placements(async |world| {
        world.models.next(Answer::Say(Speech::text("I try.").call(
            "a",
            "exec",
            &json!({"code": "steal"}),
        )));
        world.will_say("It is not there.");
        let accepted = scoped(
            &world,
            world.target(),
            json!({"tools": {"read": true, "exec": false}}),
            Delivery::Restart,
        )
        .await;
        world.done(&accepted).await;
        assert_eq!(tools(&world), ["read"]);
        assert_eq!(world.inside.made(), Vec::<String>::new());
        let said = world.said(accepted.session).await;
        assert!(
            said.iter()
                .any(|line| line.contains("There is no tool \"exec\"") && line.ends_with("[error]")),
            "{said:?}"
        );
        world.assert_whole(accepted.session).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_076_a_session_is_narrowed_and_never_widened() {
    in_both_placements(async |world| {
        for _ in 0..4 {
            world.will_say("Done.");
        }
        let first = scoped(
            &world,
            world.target(),
            json!({"tools": {"exec": true, "read": true}}),
            Delivery::Restart,
        )
        .await;
        world.done(&first).await;
        assert_eq!(tools(&world), ["read", "exec"]);
        let target = Target::Session(first.session);
        // Whatever a later prompt says, nothing comes back.
        let wider = scoped(
            &world,
            target.clone(),
            json!({"tools": {"exec": true, "write": true, "safebash": true}}),
            Delivery::Restart,
        )
        .await;
        world.done(&wider).await;
        assert_eq!(tools(&world), ["exec"]);
        let plain = world.prompt_to(target.clone(), "go", Delivery::Restart).await;
        world.done(&plain).await;
        assert_eq!(tools(&world), ["exec"]);
        // Nor does a restart of the process.
        let world = world.restarted().await;
        let after = world.prompt_to(target, "go", Delivery::Restart).await;
        world.done(&after).await;
        assert_eq!(tools(&world), ["exec"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_076_a_prompt_by_a_webhook_has_the_ceiling_of_webhooks() {
    let differs = || Differs {
        config: |config| {
            config.policies.doors.insert(
                "webhook",
                scope(json!({"tools": {"read": true}, "limits": {"steps": 1}})),
            );
        },
        ..Differs::default()
    };
    in_both_placements_with(differs, async |world| {
        world.will_say("Done.");
        let by = |door| NewPrompt::words(world.target(), door, "go");
        let hooked = world.control.prompt(world.asker, by(Door::Webhook)).await.unwrap();
        world.done(&hooked).await;
        assert_eq!(tools(&world), ["read"]);
        // Who goes on with it through another door goes on under the same ceiling.
        world.will_say("Done.");
        let on = world
            .prompt_to(Target::Session(hooked.session), "go on", Delivery::Restart)
            .await;
        world.done(&on).await;
        assert_eq!(tools(&world), ["read"]);
        world.will_say("Done.");
        let asked = world.control.prompt(world.asker, by(Door::Api)).await.unwrap();
        world.done(&asked).await;
        assert_eq!(tools(&world).len(), 6);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_136_a_model_that_is_denied_is_neither_asked_nor_stands_in() {
    let world = World::new(Differs {
        model: |settings| settings.fallback = vec!["spare".to_owned()],
        ..Differs::default()
    })
    .await;
    let with_model = |model: &str| NewPrompt {
        model: Some(model.to_owned()),
        scope: Some(scope(json!({"models": ["m"]}))),
        ..NewPrompt::words(world.target(), Door::Api, "go")
    };
    let refused = world
        .control
        .prompt(world.asker, with_model("spare"))
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("the model spare is not among the models of session"),
        "{refused}"
    );
    world.will_say("Hello.");
    let accepted = world.control.prompt(world.asker, with_model("m")).await.unwrap();
    world.done(&accepted).await;
    // Only the spare one could answer, and it may not.
    for _ in 0..2 {
        world.models.next(Answer::status(529));
    }
    let accepted = world.control.prompt(world.asker, with_model("m")).await.unwrap();
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(
        (run.state, run.code.as_deref()),
        (RunState::Failed, Some("model_failed"))
    );
    // The model of the configuration may be denied as well.
    let none = NewPrompt {
        scope: Some(scope(json!({"models": ["spare"]}))),
        ..NewPrompt::words(world.target(), Door::Api, "go")
    };
    let accepted = world.control.prompt(world.asker, none).await.unwrap();
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(run.code.as_deref(), Some("model_denied"), "{:?}", run.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_scope_may_use_up_is_less_than_the_configuration_says() {
    let world = World::new(Differs::default()).await;
    world.will_call(&[("a", "one"), ("b", "two")]);
    world.will_call(&[("c", "three")]);
    let accepted = scoped(
        &world,
        world.target(),
        json!({"limits": {"steps": 1}}),
        Delivery::Restart,
    )
    .await;
    let run = world.ended(accepted.session, accepted.run).await;
    assert_eq!(run.code.as_deref(), Some("step_limit"), "{:?}", run.reason);
    let poor = scoped(
        &world,
        world.target(),
        json!({"limits": {"run_dollars": 0.000_001}}),
        Delivery::Restart,
    )
    .await;
    let run = world.ended(poor.session, poor.run).await;
    assert_eq!(run.code.as_deref(), Some("budget_exhausted"), "{:?}", run.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_steers_has_no_scope_of_its_own() {
    let world = World::new(Differs::default()).await;
    let prompt = NewPrompt {
        scope: Some(Scope::default()),
        delivery: Delivery::Steer,
        ..NewPrompt::words(world.target(), Door::Api, "go")
    };
    let refused = world.control.prompt(world.asker, prompt).await.unwrap_err();
    assert!(refused.to_string().contains("whose scope is fixed"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_is_for_oneself_and_for_admins() {
    let world = World::new(Differs::default()).await;
    let question = "tool:exec".parse().unwrap();
    let explain = async |asker, person| world.control.explain(asker, person, Door::Api, None, &question).await;
    assert!(explain(world.asker, "ada").await.unwrap().decision.is_allowed());
    assert!(explain(world.asker, "bob").await.is_err());
    assert!(explain(Asker::System, "bob").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_explained_as_it_is_treated() {
    let world = World::new(Differs {
        config: |config| {
            let policies = &mut config.policies;
            policies
                .doors
                .insert("webhook", scope(json!({"tools": {"read": true}})));
            let everybody =
                scope(json!({"services": {"ask": ["crm.get"]}, "models": {"allow": ["*"], "ask": ["spare"]}}));
            policies.roles.insert("everybody".to_owned(), everybody);
            let ada = scope(json!({"tools": {"read": false, "exec": true}}));
            policies.roles.insert("ada".to_owned(), ada);
            policies.people.insert("ada".to_owned(), vec!["ada".to_owned()]);
        },
        ..Differs::default()
    })
    .await;
    world.will_say("Done.");
    let hooked = NewPrompt::words(world.target(), Door::Webhook, "go");
    let hooked = world.control.prompt(world.asker, hooked).await.unwrap();
    world.done(&hooked).await;
    let explain = async |asker, person, session, question: &str| {
        let question = question.parse().unwrap();
        let explained = world
            .control
            .explain(asker, person, Door::Cli, session, &question)
            .await;
        explained.unwrap().decision
    };
    // The door by which it began is its ceiling, by whichever door is asked.
    let session = Some(hooked.session);
    let decision = explain(world.asker, "ada", None, "tool:exec").await;
    assert_eq!(decision.outcome, Outcome::Allow, "{decision:?}");
    let decision = explain(world.asker, "ada", session, "tool:exec").await;
    assert_eq!(
        (decision.outcome, &decision.layer[..]),
        (Outcome::Deny, "door webhook"),
        "{decision:?}"
    );
    // Its owner counts, whoever asks.
    let decision = explain(Asker::System, "admin", None, "tool:read").await;
    assert_eq!(decision.outcome, Outcome::Allow, "{decision:?}");
    let decision = explain(Asker::System, "admin", session, "tool:read").await;
    assert_eq!(
        (decision.outcome, &decision.layer[..]),
        (Outcome::Deny, "role ada"),
        "{decision:?}"
    );
    // What people cannot be asked about is refused, and says so.
    for session in [None, session] {
        let decision = explain(world.asker, "ada", session, "crm.get").await;
        assert_eq!(decision.outcome, Outcome::Ask, "{decision:?}");
        let decision = explain(world.asker, "ada", session, "model:spare").await;
        assert_eq!(decision.outcome, Outcome::Deny, "{decision:?}");
        assert!(decision.reason.contains("people are asked about"), "{decision:?}");
    }
}

/// The image brings two skills, and everybody may have one of them.
fn one_skill_of_two() -> Differs {
    let skill = |name: &str| Skill {
        name: name.to_owned(),
        description: "To be used when it is wanted.".to_owned(),
        body: String::new(),
        front: Frontmatter::default(),
        folder: PathBuf::from("/skills").join(name),
    };
    Differs {
        config: |config| {
            config.system = None;
            let role = scope(json!({"tools": {"exec": true, "read": true}, "skills": ["brew-tea"]}));
            config.policies.roles.insert("everybody".to_owned(), role);
        },
        outside: Arc::new(move |_, _| Outside {
            skills: Some(Box::new(move |_| ["brew-tea", "bake-bread"].map(skill).into())),
            ..Outside::default()
        }),
        ..Differs::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_that_the_scope_leaves_out_is_neither_told_of_nor_granted() {
    in_both_placements_with(one_skill_of_two, async |world| {
        let has = async |accepted: store::Accepted, skills: &[&str]| {
            world.done(&accepted).await;
            let request = world.models.received().pop().unwrap().body.to_string();
            let told = ["brew-tea", "bake-bread"]
                .into_iter()
                .filter(|name| request.contains(name));
            assert_eq!(told.collect::<Vec<_>>(), skills, "{request}");
            // With the loop in the control plane it is granted when a tool is used.
            let granted = skills.iter().map(|name| (*name).to_owned());
            assert_eq!(world.inside.granted().skills, Some(granted.collect()));
        };
        world.will_call(&[("a", "work")]);
        world.will_say("Done.");
        let accepted = world.prompt("go").await;
        let target = Target::Session(accepted.session);
        has(accepted, &["brew-tea"]).await;
        // A prompt narrows it further, and brings none back.
        for (code, narrower, left) in [
            ("b", json!({"skills": {"allow": ["*"]}}), &["brew-tea"][..]),
            ("c", json!({"skills": {"allow": ["*"], "deny": ["brew-*"]}}), &[]),
        ] {
            world.will_call(&[(code, "work")]);
            world.will_say("Done.");
            let narrowed = scoped(&world, target.clone(), narrower, Delivery::Restart).await;
            has(narrowed, left).await;
        }
    })
    .await;
}
