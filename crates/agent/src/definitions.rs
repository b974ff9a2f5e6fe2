//! What a model is told at the start of every request: the system prompt and the six tools.
//!
//! Both are data beside this file, and the same input gives the same bytes, so that providers can keep the beginning of a
//! request in their caches.

use std::sync::LazyLock;

use domain::ToolDefinition;

const PROMPT: &str = include_str!("agent.md");

/// How services are used, before their lines.
const SERVICES: &str = "
Services, which code in exec calls with `await services.<name>.<method>(args)`. `await describe(\"<name>\")` returns the types
of a service's methods: read them before the first call. Call in parallel with Promise.all; `writeToFile(path,
services.x.y(args))` saves a large result without reading it. No key is needed, and none is to be had.
";

static DEFINITIONS: LazyLock<Vec<ToolDefinition>> = LazyLock::new(|| {
    // The text is part of the program, and a test reads it.
    serde_json::from_str(include_str!("definitions.json")).unwrap_or_default()
});

/// The six tools, always in the same order.
#[must_use]
pub fn definitions() -> &'static [ToolDefinition] {
    &DEFINITIONS
}

/// The system prompt with what the session may use: the catalogue of its skills, one line a skill, and its services, each
/// with a summary of one line. What there is none of leaves no trace.
#[must_use]
pub fn system_prompt(skills: &str, services: &[(&str, &str)]) -> String {
    let mut prompt = PROMPT.to_owned();
    let skills = skills.trim_end();
    if !skills.is_empty() {
        prompt += "\nSkills, to be loaded with the tool `skill` when the request matches:\n";
        prompt += skills;
        prompt.push('\n');
    }
    if !services.is_empty() {
        prompt += SERVICES;
    }
    for (name, summary) in services {
        prompt += &format!("- {name}: {summary}\n");
    }
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_six_tools_are_there_and_each_schema_is_closed() {
        let names: Vec<&str> = definitions().iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["read", "write", "edit", "exec", "safebash", "skill"]);
        for tool in definitions() {
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            for required in tool.input_schema["required"].as_array().unwrap() {
                let name = required.as_str().unwrap();
                assert!(
                    tool.input_schema["properties"][name].is_object(),
                    "{}: {name}",
                    tool.name
                );
            }
        }
    }

    #[test]
    fn the_first_request_is_small() {
        let catalogue = "- data-report: Computes figures from a data file.\n";
        let bytes = system_prompt(catalogue, &[]).len() + serde_json::to_string(definitions()).unwrap().len();
        assert!(
            bytes <= 4_700,
            "{bytes} bytes leave too little of 5 kB for a prompt and the frame"
        );
    }

    #[test]
    fn the_prompt_is_the_same_each_time_and_says_nothing_of_what_there_is_none_of() {
        let services = [("crm", "Customers."), ("issues", "Bugs and wishes.")];
        let prompt = system_prompt("- a: b\n", &services);
        assert_eq!(prompt, system_prompt("- a: b", &services));
        assert!(prompt.contains("matches:\n- a: b\n\nServices, which"), "{prompt}");
        assert!(
            prompt.ends_with("to be had.\n- crm: Customers.\n- issues: Bugs and wishes.\n"),
            "{prompt}"
        );
        assert!(system_prompt("- a: b", &[]).ends_with("matches:\n- a: b\n"));
        assert_eq!(system_prompt("\n", &[]), PROMPT);
    }
}
