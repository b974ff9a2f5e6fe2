use serde_json::{from_value, json};

use super::*;

#[test]
fn threat_069_a_glob_is_shown_as_what_it_stands_for() {
    let scope: Scope = from_value(json!({
        "services": {"allow": ["crm.*", "*.get*", "billing.*", "crm.delete"], "deny": ["crm.del*"]},
        "egress": {
            "allow": ["a.example", "api.a.example:443", "*.b.example:443", "**.b.example:8443", "10.0.0.7:5432", "**"],
            "deny": ["**.a.example:*"],
        },
        "skills": ["crm", "gone-*"],
        "models": {"ask": ["large"]},
    }))
    .unwrap();
    let there = Catalogue {
        methods: [("crm", "search"), ("crm", "delete"), ("support", "getIssue")]
            .map(|(service, method)| (service.to_owned(), method.to_owned()))
            .to_vec(),
        skills: vec!["crm".to_owned()],
        models: vec!["large".to_owned()],
        hosts: [
            ("a", "a.example"),
            ("wide", "**.b.example"),
            ("office", "x.b.example:8443"),
        ]
        .map(|(rule, host)| (rule.to_owned(), host.parse().unwrap()))
        .to_vec(),
    };
    let found: Vec<_> = lint(&scope, &there).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "services deny \"crm.del*\" is crm.delete",
            "services allow \"crm.*\" is crm.search, crm.delete",
            "services allow \"*.get*\" is support.getIssue",
            "services allow \"billing.*\" matches nothing that there is",
            "services allow \"crm.delete\" never counts, since deny \"crm.del*\" matches all that it does",
            "skills allow \"crm\" is crm",
            "skills allow \"gone-*\" matches nothing that there is",
            "models ask \"large\" is large",
            "egress deny \"**.a.example:*\" matches no host that a rule of [egress.rules] lets out",
            "egress allow \"a.example\" is a.example (rule a)",
            "egress allow \"api.a.example:443\" never counts, since deny \"**.a.example:*\" matches all that it does",
            "egress allow \"*.b.example:443\" is *.b.example:443 (rule wide)",
            "egress allow \"**.b.example:8443\" is x.b.example:8443 (rule office)",
            "egress allow \"10.0.0.7:5432\" matches no host that a rule of [egress.rules] lets out",
            "egress allow \"**\" is a.example (rule a), **.b.example (rule wide)",
        ]
    );
}
