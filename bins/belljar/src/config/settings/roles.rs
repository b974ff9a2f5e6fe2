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
