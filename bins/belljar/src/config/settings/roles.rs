//! Who may do what, as the programs use it.

use std::collections::BTreeMap;

use domain::Door;
use policy::{Group, Policies, Scope};
use serde::Deserialize;

use super::super::values::Reader;

/// Every door that may have a ceiling.
const DOORS: [Door; 5] = [Door::Api, Door::Cli, Door::Slack, Door::Webhook, Door::Schedule];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Person {
    #[serde(default)]
    roles: Vec<String>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Members {
    people: Vec<String>,
    roles: Vec<String>,
}

pub(super) fn policies(reader: &mut Reader) -> Policies {
    let people: BTreeMap<String, Person> = reader.whole("people.*");
    let groups: BTreeMap<String, Members> = reader.whole("groups.*");
    let policies = Policies {
        roles: reader.whole("roles.*"),
        people: people.into_iter().map(|(name, person)| (name, person.roles)).collect(),
        groups: groups
            .into_iter()
            .map(|(name, Members { people, roles })| (name, Group { people, roles }))
            .collect(),
        doors: doors(reader),
    };
    let roles = reader.tables("roles.*");
    for name in roles.keys().filter(|name| !is_name(name)) {
        let text = format!("{name:?} is no name for a role: write letters, digits, - and _");
        reader.note(roles[name].clone(), text);
    }
    for (whom, role) in policies.missing() {
        // A role whose own table is wrong was told of already.
        if !roles.contains_key(&role) {
            let (section, name) = whom.split_once('.').unwrap_or((&whom, ""));
            let place = reader.tables(&format!("{section}.*")).get(name).cloned();
            let text = format!("{whom}.roles names {role:?}, and there is no such role: write [roles.{role}]");
            match place {
                Some(place) => reader.note(place, text),
                None => reader.mistake(&whom, text),
            }
        }
    }
    policies
}

fn doors(reader: &mut Reader) -> BTreeMap<&'static str, Scope> {
    let places = reader.tables("doors.*");
    let mut doors = BTreeMap::new();
    for (name, scope) in reader.whole::<Scope>("doors.*") {
        match DOORS.into_iter().find(|door| door.as_str() == name) {
            Some(door) => {
                doors.insert(door.as_str(), scope);
            }
            None => {
                let known: Vec<&str> = DOORS.iter().map(|door| door.as_str()).collect();
                let text = format!("there is no door {name:?}: write one of {}", known.join(", "));
                if let Some(place) = places.get(&name) {
                    reader.note(place.clone(), text);
                }
            }
        }
    }
    doors
}

fn is_name(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    !name.is_empty() && name.len() <= 60 && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;
    use crate::config::raw::Raw;

    fn mistakes(text: &str) -> Vec<String> {
        let checked = check(Raw::of(text, &[]));
        let mistakes = checked.settings.err().unwrap_or_default();
        mistakes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn roles_people_groups_and_doors_are_read() {
        let text = r#"
            [roles.analyst]
            services = ["crm.*"]
            tools = { exec = true, read = "allow" }
            skills = { allow = ["*"], deny = ["whimsy"] }
            limits.run_dollars = 0.50
            [people.ada]
            roles = ["analyst"]
            [groups.sales]
            people = ["grace"]
            roles = ["analyst"]
            [doors.webhook]
            egress = []
        "#;
        let policies = check(Raw::of(text, &[])).settings.unwrap().policies;
        for person in ["ada", "grace"] {
            let layers = policies.layers(person, &[Door::Webhook]);
            assert!(layers.service("crm", "search").is_allowed(), "{person}");
            assert!(!layers.tool("write").is_allowed(), "{person}");
            assert!(!layers.skill("whimsy").is_allowed(), "{person}");
        }
        assert!(!policies.layers("eve", &[]).service("crm", "search").is_allowed());
    }

    #[test]
    fn each_mistake_is_said_with_its_line() {
        for (text, expected) in [
            ("[roles.a]\nservices = ['crm']", "line 2: roles.a: "),
            ("[roles.a]\nservice = []", "line 2: "),
            ("[roles.a]\negress = ['*.co.uk']", "line 2: roles.a: "),
            ("[roles.a]\ntools = { shell = true }", "line 2: "),
            ("\n[doors.window]\nservices = []", "line 2: there is no door \"window\""),
            (
                "[people.ada]\nroles = ['gone']",
                "line 1: people.ada.roles names \"gone\"",
            ),
            (
                "[groups.sales]\nroles = ['gone']",
                "line 1: groups.sales.roles names \"gone\"",
            ),
            ("[roles.'a b']\nservices = []", "line 1: \"a b\" is no name for a role"),
        ] {
            let said = mistakes(text);
            assert!(said.len() == 1 && said[0].starts_with(expected), "{text}: {said:?}");
        }
    }
}
