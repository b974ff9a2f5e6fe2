//! What the patterns of roles and doors come to here.

use cli::ClientError;
use policy::{Catalogue, Finding, lint};
use serde_json::json;

use crate::config::Settings;
use crate::wiring;

/// Tells what each pattern of each role and door stands for, and which can never count.
pub(super) fn tell(settings: &Settings, json: bool) -> Result<(), ClientError> {
    for (scope, finding) in findings(settings) {
        if json {
            cli::line(json!({ "scope": scope, "pattern": finding }))?;
        } else {
            let doubt = if finding.is_doubtful() { "?" } else { " " };
            cli::line(format_args!("{doubt} {scope}: {finding}"))?;
        }
    }
    Ok(())
}

fn findings(settings: &Settings) -> Vec<(String, Finding)> {
    // What is wrong with definitions of services, `belljar service list` says.
    let (services, _) = services::Catalogue::load(settings.server.services.as_slice());
    let methods = services.services().flat_map(|service| {
        let methods = service.methods.keys();
        methods.map(|method| (service.name.clone(), method.clone()))
    });
    let hosts = settings.egress.rules.iter().flat_map(|rule| {
        let hosts = rule.hosts.iter();
        hosts.map(|host| (rule.name.clone(), host.clone()))
    });
    let there = Catalogue {
        methods: methods.collect(),
        skills: wiring::known_skills(settings),
        models: settings.models.keys().cloned().collect(),
        hosts: hosts.collect(),
    };
    let roles = settings.policies.roles.iter();
    let roles = roles.map(|(name, scope)| (format!("roles.{name}"), scope));
    let doors = settings.policies.doors.iter();
    let doors = doors.map(|(name, scope)| (format!("doors.{name}"), scope));
    let findings = |(name, scope): (String, &policy::Scope)| {
        let findings = lint(scope, &there).into_iter();
        findings.map(|finding| (name.clone(), finding)).collect::<Vec<_>>()
    };
    roles.chain(doors).flat_map(findings).collect()
}
