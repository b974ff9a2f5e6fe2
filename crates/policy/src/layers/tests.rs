use serde_json::{Value, from_value, json};

use super::*;

fn scope(json: Value) -> Scope {
    from_value(json).unwrap()
}

fn layer(name: &str, json: Value) -> Layer {
    Layer::new(name, scope(json))
}

fn services(layers: &Layers, method: &str) -> Outcome {
    let (service, method) = method.split_once('.').unwrap();
    layers.service(service, method).outcome
}

/// Every way in which a layer can speak of two methods.
fn voices() -> Vec<Value> {
    let mut voices = vec![json!({})];
    let lists = [
        json!([]),
        json!(["crm.search"]),
        json!(["crm.*"]),
        json!({"ask": ["crm.delete"]}),
        json!({"deny": ["*.delete"]}),
        json!({"allow": ["**"], "ask": ["crm.de*"]}),
        json!({"allow": ["crm.*"], "deny": ["crm.delete"]}),
        json!({"allow": ["crm.search"], "ask": ["crm.*"], "deny": ["crm.search"]}),
        json!({"ask": ["crm.search"], "deny": ["crm.search"]}),
        json!({"allow": []}),
    ];
    voices.extend(lists.map(|list| json!({ "services": list })));
    voices
}

/// The rules of this crate once more, as plainly as they can be said. True: it lists; then what it says itself.
fn plainly(voice: &Value, method: &str) -> (bool, Option<Outcome>) {
    let matching = |list: &Value| {
        list.as_array().is_some_and(|list| {
            list.iter().any(|pattern| match pattern.as_str().unwrap() {
                "**" | "crm.*" => true,
                "*.delete" | "crm.de*" => method == "crm.delete",
                exact => exact == method,
            })
        })
    };
    let Some(rules) = voice.get("services") else {
        return (false, None);
    };
    if rules.is_array() {
        return (true, matching(rules).then_some(Outcome::Allow));
    }
    let words = [
        ("deny", Outcome::Deny),
        ("ask", Outcome::Ask),
        ("allow", Outcome::Allow),
    ];
    let says = words
        .into_iter()
        .find(|(key, _)| matching(&rules[*key]))
        .map(|(_, outcome)| outcome);
    (rules.get("allow").is_some(), says)
}

fn expected(role: &Value, ceiling: &Value, own: &Value, method: &str) -> Outcome {
    let all = [role, ceiling, own].map(|voice| plainly(voice, method));
    let denied = all
        .iter()
        .any(|(lists, says)| *says == Some(Outcome::Deny) || (*lists && says.is_none()));
    let granted = all[..2].iter().any(|(_, says)| says.is_some());
    if denied || !granted {
        Outcome::Deny
    } else if all.iter().any(|(_, says)| *says == Some(Outcome::Ask)) {
        Outcome::Ask
    } else {
        Outcome::Allow
    }
}

#[test]
fn every_combination_of_layers_comes_to_what_the_rules_say() {
    let voices = voices();
    for role in &voices {
        for ceiling in &voices {
            for own in &voices {
                let layers = Layers::of_roles(vec![layer("role a", role.clone())])
                    .under(layer("door api", ceiling.clone()))
                    .narrowed(layer("session", own.clone()))
                    .unwrap();
                for method in ["crm.search", "crm.delete"] {
                    let expected = expected(role, ceiling, own, method);
                    assert_eq!(services(&layers, method), expected, "{method}: {role} {ceiling} {own}");
                    assert_eq!(layers.explain(&method.parse().unwrap()).decision.outcome, expected);
                }
            }
        }
    }
}

#[test]
fn threat_076_a_child_is_never_wider_than_its_parent() {
    let voices = voices();
    for role in &voices {
        for own in &voices {
            let parent = Layers::of_roles(vec![layer("role a", role.clone())])
                .narrowed(layer("session", own.clone()))
                .unwrap();
            for child in &voices {
                let narrowed = parent.clone().narrowed(layer("child", child.clone())).unwrap();
                for method in ["crm.search", "crm.delete", "other.get", "crm.x.y"] {
                    assert!(
                        services(&narrowed, method) >= services(&parent, method),
                        "{method}: {role} {own} {child}"
                    );
                }
            }
        }
    }
}

#[test]
fn threat_077_the_order_of_rules_and_of_layers_is_nothing() {
    let lists = [
        json!({"allow": ["**"], "deny": ["crm.delete*"]}),
        json!({"deny": ["crm.delete*"], "allow": ["**"]}),
    ];
    for list in lists {
        let layers = Layers::of_roles(vec![layer("role a", json!({ "services": list }))]);
        for method in ["crm.delete", "crm.deleteAll"] {
            let decision = layers.service("crm", method.trim_start_matches("crm."));
            assert_eq!(decision.outcome, Outcome::Deny);
            assert_eq!(decision.rule, "services.deny:crm.delete*");
        }
        assert_eq!(services(&layers, "crm.search"), Outcome::Allow);
    }
    let voices = voices();
    for (one, other) in voices
        .iter()
        .flat_map(|one| voices.iter().map(move |other| (one, other)))
    {
        for method in ["crm.search", "crm.delete"] {
            let ceilings = |first: &Value, then: &Value| {
                let layers = Layers::default()
                    .under(layer("door api", first.clone()))
                    .under(layer("trigger", then.clone()));
                services(&layers, method)
            };
            assert_eq!(ceilings(one, other), ceilings(other, one));
            let roles = |first: &Value, then: &Value| {
                let roles = vec![layer("role a", first.clone()), layer("role b", then.clone())];
                services(&Layers::of_roles(roles), method)
            };
            assert_eq!(roles(one, other), roles(other, one));
        }
    }
}

#[test]
fn threat_069_a_method_has_no_dot_and_a_star_no_more_than_its_segment() {
    let layers = Layers::of_roles(vec![layer("role a", json!({"services": ["crm.*", "**"]}))]);
    assert!(layers.service("crm", "search").is_allowed());
    for (service, method) in [
        ("crm", "contacts.delete"),
        ("crm.contacts", "delete"),
        ("crm", ""),
        ("", "search"),
        ("crm", "*"),
        ("crm", "a b"),
        ("crm", "../search"),
    ] {
        let decision = layers.service(service, method);
        assert_eq!(
            (decision.outcome, decision.rule.as_str()),
            (Outcome::Deny, "services.no_name"),
            "{method}"
        );
    }
    for pattern in [
        "crm.contacts.delete",
        "crm",
        "*",
        "crm.",
        ".search",
        "crm..x",
        "a.**.b",
        "crm.s earch",
        "crm.s/x",
        "",
    ] {
        let refused = from_value::<Scope>(json!({"services": [pattern]}));
        assert!(refused.is_err(), "{pattern}");
    }
}

#[test]
fn nothing_is_allowed_where_nobody_grants_it() {
    let nothing = Layers::of_roles(vec![layer("role a", json!({}))]);
    // What comes with a request may say what it likes.
    let everything =
        json!({"services": ["**"], "egress": ["**:*"], "tools": {"exec": true}, "skills": ["*"], "models": ["*"]});
    let boasting = nothing.narrowed(layer("session", everything)).unwrap();
    for question in [
        "crm.search",
        "tool:exec",
        "skill:crm",
        "model:large",
        "egress:a.example:443",
        "egress:a.example",
    ] {
        let decision = boasting.decide(&question.parse().unwrap());
        assert_eq!(decision.outcome, Outcome::Deny, "{question}");
        assert!(decision.rule.ends_with(".ungranted"), "{}", decision.rule);
        assert!(
            decision.reason.starts_with("no role or door grants"),
            "{}",
            decision.reason
        );
    }
}

#[test]
fn a_person_has_what_one_of_their_roles_has() {
    let roles = vec![
        layer("role sales", json!({"services": ["crm.*"], "tools": {"exec": true}})),
        layer(
            "role support",
            json!({"services": {"allow": ["support.*"], "deny": ["crm.delete"]}}),
        ),
    ];
    let layers = Layers::of_roles(roles);
    assert_eq!(services(&layers, "crm.search"), Outcome::Allow);
    assert_eq!(services(&layers, "support.getIssue"), Outcome::Allow);
    assert_eq!(services(&layers, "billing.list"), Outcome::Deny);
    assert_eq!(layers.service("crm", "delete").layer, "role support");
    assert_eq!(layers.service("billing", "list").rule, "services.unlisted");
    assert!(layers.tool("exec").is_allowed());
    assert_eq!(layers.tool("read").rule, "tools.unlisted");
}

#[test]
fn the_published_form_is_taken_as_it_stands() {
    let layers = Layers::of_roles(vec![Layer::new("everybody", Scope::standard())]);
    let own = json!({"tools": {"exec": true, "skill": true, "read": false}, "services": ["crm.*", "support.getIssue"]});
    let layers = layers.narrowed(layer("session", own)).unwrap();
    for (tool, outcome) in [
        ("exec", Outcome::Allow),
        ("skill", Outcome::Allow),
        ("read", Outcome::Deny),
        ("write", Outcome::Deny),
    ] {
        assert_eq!(layers.tool(tool).outcome, outcome, "{tool}");
    }
    let only_denies = layer("session", json!({"tools": {"exec": false}}));
    let layers = Layers::of_roles(vec![Layer::new("everybody", Scope::standard())])
        .narrowed(only_denies)
        .unwrap();
    assert!(layers.tool("read").is_allowed());
    assert!(!layers.tool("exec").is_allowed());
    assert!(!layers.tool("unheard_of").is_allowed());
    let none = layers.narrowed(layer("session", json!({"tools": {}}))).unwrap();
    assert!(!none.tool("read").is_allowed());
}

#[test]
fn threat_016_an_empty_list_is_nothing_at_all() {
    let layers = Layers::of_roles(vec![layer(
        "role a",
        json!({"egress": [], "services": [], "skills": [], "models": []}),
    )]);
    for question in [
        "crm.search",
        "egress:a.example:443",
        "egress:a.example",
        "skill:crm",
        "model:large",
    ] {
        assert_eq!(
            layers.decide(&question.parse().unwrap()).outcome,
            Outcome::Deny,
            "{question}"
        );
    }
}

#[test]
fn a_name_is_known_where_some_port_of_it_may_be_reached() {
    let rules = json!({"egress": {"allow": ["git.example:22", "a.example"], "deny": ["a.example:80", "c.example:*"]}});
    let layers = Layers::of_roles(vec![layer("role a", rules)]);
    for (question, outcome) in [
        ("egress:git.example", Outcome::Allow),
        ("egress:git.example:22", Outcome::Allow),
        ("egress:git.example:443", Outcome::Deny),
        ("egress:a.example", Outcome::Allow),
        ("egress:a.example:443", Outcome::Allow),
        ("egress:a.example:80", Outcome::Deny),
        ("egress:c.example", Outcome::Deny),
        ("egress:b.example", Outcome::Deny),
    ] {
        assert_eq!(layers.decide(&question.parse().unwrap()).outcome, outcome, "{question}");
    }
}

#[test]
fn of_several_limits_the_lowest_counts() {
    let layers = Layers::of_roles(vec![layer(
        "role a",
        json!({"limits": {"steps": 50, "run_dollars": 2.5}}),
    )])
    .under(layer(
        "door webhook",
        json!({"limits": {"steps": 60, "wall_seconds": 60, "run_dollars": 0.1}}),
    ))
    .narrowed(layer(
        "session",
        json!({"limits": {"steps": 70, "run_dollars": 9, "tool_seconds": 1_000_000}}),
    ))
    .unwrap();
    let limits = layers.limits();
    assert_eq!(limits.steps, Some(50));
    assert_eq!(limits.run_dollars.unwrap().0, domain::Money(100_000_000));
    let configured = domain::RunLimits::default();
    let limits = limits.of_run(configured);
    assert_eq!((limits.steps, limits.wall_seconds), (50, 60));
    assert_eq!(limits.tool_seconds, configured.tool_seconds);
    assert_eq!(limits.output_bytes, configured.output_bytes);
}

#[test]
fn an_explanation_names_every_layer_and_the_one_that_decided() {
    let layers = Layers::of_roles(vec![layer("role sales", json!({"services": ["crm.*"]}))])
        .under(layer("door webhook", json!({"services": {"deny": ["*.delete*"]}})))
        .narrowed(layer("session", json!({})))
        .unwrap();
    let explained = layers.explain(&"crm.deleteContact".parse().unwrap());
    let seen: Vec<_> = explained
        .layers
        .iter()
        .map(|seen| (seen.layer.as_str(), seen.outcome))
        .collect();
    assert_eq!(
        seen,
        [
            ("role sales", Some(Outcome::Allow)),
            ("door webhook", Some(Outcome::Deny)),
            ("session", None)
        ]
    );
    assert_eq!(
        explained.decision,
        Decision {
            outcome: Outcome::Deny,
            reason: "door webhook denies the method crm.deleteContact: its services deny \"*.delete*\"".to_owned(),
            layer: "door webhook".to_owned(),
            rule: "services.deny:*.delete*".to_owned(),
        }
    );
}

#[test]
fn nobody_puts_scopes_over_each_other_without_an_end() {
    let mut layers = Layers::default();
    for _ in 0..MOST {
        layers = layers.narrowed(layer("session", json!({}))).unwrap();
    }
    assert_eq!(layers.narrowed(layer("session", json!({}))), Err(TooMany));
}

#[test]
fn what_an_admin_approved_adds_to_roles_and_beats_nothing_else() {
    let role = || {
        vec![layer(
            "role",
            json!({"services": {"allow": ["support.*"], "deny": ["crm.delete"]}}),
        )]
    };
    let door = || {
        layer(
            "door",
            json!({"services": {"allow": ["crm.*", "support.*", "billing.*"], "ask": ["crm.update"]}}),
        )
    };
    let with = |method: &str| layer("approval", json!({"services": [method]}));
    let says = |method: &str, approved: &str, narrowing: Option<Value>| {
        let layers = Layers::of_roles(role()).granted(with(approved)).under(door());
        let layers = match narrowing {
            Some(narrowing) => layers.narrowed(layer("session", narrowing)).unwrap(),
            None => layers,
        };
        services(&layers, method)
    };
    assert_eq!(says("crm.search", "crm.search", None), Outcome::Allow);
    assert_eq!(says("crm.search", "crm.other", None), Outcome::Deny);
    // It takes nothing away from what others grant.
    assert_eq!(says("support.get", "crm.search", None), Outcome::Allow);
    assert_eq!(
        says("crm.delete", "crm.delete", None),
        Outcome::Deny,
        "denied by a role"
    );
    assert_eq!(
        says("issues.get", "issues.get", None),
        Outcome::Deny,
        "above a door's ceiling"
    );
    assert_eq!(says("crm.update", "crm.update", None), Outcome::Ask);
    assert_eq!(
        says("crm.search", "crm.search", Some(json!({"services": ["support.*"]}))),
        Outcome::Deny,
        "taken away by a request"
    );
}
