//! What a model is told at the start of every request: the system prompt and the six tools.
//!
//! Both are data beside this file, and the same input gives the same bytes, so that providers can keep the beginning of a
//! request in their caches.

use std::sync::LazyLock;

use domain::ToolDefinition;

/// Four parts, parted by lines of dashes: what everybody is told; the table of where to begin; what stands before the skills; what
/// stands before the services.
const PROMPT: &str = include_str!("agent.md");

const PARTED: &str = "\n---\n";

static DEFINITIONS: LazyLock<Vec<ToolDefinition>> = LazyLock::new(|| {
    // The text is part of the program, and a test reads it.
    serde_json::from_str(include_str!("definitions.json")).unwrap_or_default()
});

/// The six tools, always in the same order.
#[must_use]
pub fn definitions() -> &'static [ToolDefinition] {
    &DEFINITIONS
}

/// The system prompt for who may use these tools: without the table's rows for others, and with the catalogue of skills, one
/// line a skill, and the services, each with a summary of one line. What there is none of leaves no trace.
#[must_use]
pub fn system_prompt(tools: &[ToolDefinition], skills: &str, services: &[(&str, &str)]) -> String {
    let mut parts = PROMPT.split(PARTED);
    let mut part = || parts.next().unwrap_or_default();
    let (everybody, table, of_skills, of_services) = (part(), part(), part(), part());
    let skills = skills.trim_end();
    let is_offered =
        |tool: &str| tools.iter().any(|offered| offered.name == tool) && (tool != "skill" || !skills.is_empty());
    let mut prompt = everybody.to_owned();
    let table: Vec<_> = table
        .split_inclusive('\n')
        .filter(|line| tool_of(line).is_none_or(is_offered))
        .collect();
    if table.iter().any(|line| tool_of(line).is_some()) {
        prompt.extend(table);
    }
    if !skills.is_empty() {
        prompt += of_skills;
        prompt += skills;
        prompt.push('\n');
    }
    if !services.is_empty() {
        prompt += of_services;
    }
    for (name, summary) in services {
        prompt += &format!("- {name}: {summary}\n");
    }
    prompt
}

/// The tool that a row of the table names.
fn tool_of(row: &str) -> Option<&str> {
    row.strip_prefix("- `")?.split_once("`: ").map(|(tool, _)| tool)
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
        let prompt = system_prompt(definitions(), catalogue, &[]);
        let bytes = prompt.len() + serde_json::to_string(definitions()).unwrap().len();
        assert!(
            bytes <= 4_700,
            "{bytes} bytes leave too little of 5 kB for a prompt and the frame"
        );
    }

    #[test]
    fn the_prompt_is_the_same_each_time_and_says_nothing_of_what_there_is_none_of() {
        let services = [("crm", "Customers."), ("issues", "Bugs and wishes.")];
        let prompt = system_prompt(definitions(), "- a: b\n", &services);
        assert_eq!(prompt, system_prompt(definitions(), "- a: b", &services));
        assert!(prompt.contains("matches:\n- a: b\n\nServices, which"), "{prompt}");
        assert!(
            prompt.ends_with("to be had.\n- crm: Customers.\n- issues: Bugs and wishes.\n"),
            "{prompt}"
        );
        assert!(system_prompt(definitions(), "- a: b", &[]).ends_with("matches:\n- a: b\n"));
        let bare = system_prompt(definitions(), "\n", &[]);
        assert!(
            !bare.contains("kill") && !bare.contains("ervices") && !bare.contains("---"),
            "{bare}"
        );
    }

    #[test]
    fn the_table_has_a_row_for_each_tool_that_is_offered() {
        let rows = |tools: &[ToolDefinition]| {
            let prompt = system_prompt(tools, "- a: b", &[]);
            prompt
                .lines()
                .filter_map(tool_of)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            rows(definitions()),
            ["skill", "read", "safebash", "write", "edit", "exec"]
        );
        let some: Vec<_> = definitions()
            .iter()
            .filter(|tool| tool.name != "safebash")
            .cloned()
            .collect();
        assert_eq!(rows(&some), ["skill", "read", "write", "edit", "exec"]);
        let nothing = system_prompt(&[], "", &[]);
        assert!(nothing.ends_with("Use Markdown.\n"), "{nothing}");
    }
}
