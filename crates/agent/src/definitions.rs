//! What a model is told at the start of every request: the system prompt and the six tools.
//!
//! Both are data beside this file, and the same input gives the same bytes, so that providers can keep the beginning of a
//! request in their caches.

use std::sync::LazyLock;

use domain::ToolDefinition;

const PROMPT: &str = include_str!("agent.md");

static DEFINITIONS: LazyLock<Vec<ToolDefinition>> = LazyLock::new(|| {
    // The text is part of the program, and a test reads it.
    serde_json::from_str(include_str!("definitions.json")).unwrap_or_default()
});

/// The six tools, always in the same order.
#[must_use]
pub fn definitions() -> &'static [ToolDefinition] {
    &DEFINITIONS
}

/// The system prompt with the catalogue of the skills that the session may use, one line a skill. An empty catalogue leaves
/// no trace.
#[must_use]
pub fn system_prompt(catalogue: &str) -> String {
    let catalogue = catalogue.trim_end();
    if catalogue.is_empty() {
        return PROMPT.to_owned();
    }
    format!("{PROMPT}\nSkills, to be loaded with the tool `skill` when the request matches:\n{catalogue}\n")
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
        let bytes = system_prompt(catalogue).len() + serde_json::to_string(definitions()).unwrap().len();
        assert!(
            bytes <= 4_700,
            "{bytes} bytes leave too little of 5 kB for a prompt and the frame"
        );
    }

    #[test]
    fn the_prompt_is_the_same_each_time_and_says_nothing_of_skills_where_there_are_none() {
        assert_eq!(system_prompt("- a: b\n"), system_prompt("- a: b"));
        assert!(system_prompt("- a: b").ends_with("matches:\n- a: b\n"));
        assert!(!system_prompt("\n").contains("Skills, to be"));
    }
}
