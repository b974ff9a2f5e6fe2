//! What an operator wrote: roles, who has them, and the ceilings of doors.

use std::collections::{BTreeMap, BTreeSet};

use domain::Door;

use crate::{Layer, Layers, Scope};

/// The role of everybody who is given no other. What it leaves out is as [`Scope::standard`] says.
pub const EVERYBODY: &str = "everybody";

/// Some people, and the roles that they have by being among them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Group {
    /// Their names.
    pub people: Vec<String>,
    /// The roles' names.
    pub roles: Vec<String>,
}

/// Roles, who has them, and the ceilings of doors.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Policies {
    /// Roles by their names.
    pub roles: BTreeMap<String, Scope>,
    /// The roles of people, by their names.
    pub people: BTreeMap<String, Vec<String>>,
    /// Groups by their names.
    pub groups: BTreeMap<String, Group>,
    /// Ceilings of doors.
    pub doors: BTreeMap<&'static str, Scope>,
}

impl Policies {
    /// What counts for a person whose request came by these doors. The keys of which none of a person's roles says anything
    /// are as for everybody.
    #[must_use]
    pub fn layers(&self, person: &str, doors: &[Door]) -> Layers {
        let mut roles = Vec::new();
        for name in self.roles_of(person) {
            roles.push(Layer::new(format!("role {name}"), self.role(name)));
        }
        let rest = self
            .role(EVERYBODY)
            .without_keys_of(roles.iter().map(|layer| &layer.scope));
        if rest != Scope::default() {
            roles.push(Layer::new(format!("role {EVERYBODY}"), rest));
        }
        let mut layers = Layers::of_roles(roles);
        let doors: BTreeSet<&'static str> = doors.iter().map(|door| door.as_str()).collect();
        for door in doors {
            if let Some(scope) = self.doors.get(door) {
                layers = layers.under(Layer::new(format!("door {door}"), scope.clone()));
            }
        }
        layers
    }

    /// What a role says. One that is not there grants nothing; the configuration's check tells of it.
    fn role(&self, name: &str) -> Scope {
        match self.roles.get(name) {
            Some(scope) if name == EVERYBODY => scope.clone().or(Scope::standard()),
            Some(scope) => scope.clone(),
            None if name == EVERYBODY => Scope::standard(),
            None => Scope::nothing(),
        }
    }

    /// The names of a person's roles, their own first.
    fn roles_of(&self, person: &str) -> Vec<&str> {
        let own = self.people.get(person).into_iter().flatten();
        let groups = self
            .groups
            .values()
            .filter(|group| group.people.iter().any(|name| name == person))
            .flat_map(|group| &group.roles);
        let mut names: Vec<&str> = Vec::new();
        for name in own.chain(groups) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// Roles that people or groups are given and that are not there, with whom.
    #[must_use]
    pub fn missing(&self) -> Vec<(String, String)> {
        let people = self
            .people
            .iter()
            .map(|(name, roles)| (format!("people.{name}"), roles));
        let groups = self
            .groups
            .iter()
            .map(|(name, group)| (format!("groups.{name}"), &group.roles));
        people
            .chain(groups)
            .flat_map(|(whom, roles)| roles.iter().map(move |role| (whom.clone(), role.clone())))
            .filter(|(_, role)| role != EVERYBODY && !self.roles.contains_key(role))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn scope(json: Value) -> Scope {
        from_value(json).unwrap()
    }

    fn policies() -> Policies {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Policies {
            roles: [
                ("sales".to_owned(), scope(json!({"services": ["crm.*"]}))),
                (
                    "reader".to_owned(),
                    scope(json!({"tools": {"read": true}, "services": []})),
                ),
            ]
            .into(),
            people: [
                ("ann".to_owned(), names(&["sales"])),
                ("bob".to_owned(), names(&["gone"])),
            ]
            .into(),
            groups: [(
                "readers".to_owned(),
                Group {
                    people: names(&["ann", "cleo"]),
                    roles: names(&["reader"]),
                },
            )]
            .into(),
            doors: [("webhook", scope(json!({"tools": {"exec": false, "write": false}})))].into(),
        }
    }

    fn allowed(person: &str, doors: &[Door]) -> Vec<&'static str> {
        let layers = policies().layers(person, doors);
        let questions = [
            "crm.search",
            "tool:read",
            "tool:exec",
            "skill:crm",
            "model:large",
            "egress:a.example:443",
        ];
        questions
            .into_iter()
            .filter(|question| layers.decide(&question.parse().unwrap()).is_allowed())
            .collect()
    }

    #[test]
    fn without_roles_everybody_has_all_tools_and_no_way_out() {
        let layers = Policies::default().layers("ann", &[Door::Api]);
        for tool in crate::Tool::ALL {
            assert!(layers.tool(tool.as_str()).is_allowed());
        }
        assert!(layers.skill("crm").is_allowed() && layers.model("large").is_allowed());
        assert!(!layers.service("crm", "search").is_allowed());
        assert!(!layers.decide(&"egress:a.example:443".parse().unwrap()).is_allowed());
    }

    #[test]
    fn what_everybodys_role_leaves_out_is_as_usual() {
        let mut policies = Policies::default();
        policies
            .roles
            .insert(EVERYBODY.to_owned(), scope(json!({"services": ["crm.*"]})));
        let layers = policies.layers("ann", &[Door::Api]);
        assert!(layers.service("crm", "search").is_allowed() && layers.tool("exec").is_allowed());
        policies
            .roles
            .insert(EVERYBODY.to_owned(), scope(json!({"tools": {"read": true}})));
        let layers = policies.layers("ann", &[Door::Api]);
        assert!(!layers.service("crm", "search").is_allowed() && !layers.tool("exec").is_allowed());
    }

    #[test]
    fn people_have_their_roles_and_those_of_their_groups() {
        assert_eq!(
            allowed("ann", &[Door::Api]),
            ["crm.search", "tool:read", "skill:crm", "model:large"]
        );
        assert_eq!(allowed("cleo", &[Door::Api]), ["tool:read", "skill:crm", "model:large"]);
        assert_eq!(
            allowed("stranger", &[Door::Api]),
            ["tool:read", "tool:exec", "skill:crm", "model:large"]
        );
    }

    #[test]
    fn threat_076_a_door_has_a_ceiling_whoever_comes_through_it() {
        assert_eq!(
            allowed("stranger", &[Door::Webhook]),
            ["tool:read", "skill:crm", "model:large"]
        );
        assert_eq!(
            allowed("stranger", &[Door::Api, Door::Webhook]),
            allowed("stranger", &[Door::Webhook])
        );
    }

    #[test]
    fn a_role_that_is_not_there_is_named_and_grants_nothing() {
        assert_eq!(policies().missing(), [("people.bob".to_owned(), "gone".to_owned())]);
        assert_eq!(allowed("bob", &[Door::Api]), Vec::<&str>::new());
    }
}
