//! `docs/commands.md`, written from what can be typed.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory};

use crate::arguments::Arguments;

const BEGINNING: &str = "# Commands

This page is generated from the program: `cargo xtask commands`. `belljar COMMAND --help` says the same.

**Which Belljar is asked.** `BELLJAR_URL` says where it is, `BELLJAR_TOKEN` who asks. Where they are left out, it is the one of this machine, and root asks as
its first admin. Commands that need root, or work on files of this machine, say so; they read the configuration.

**Everywhere.** `--config FILE` (or `BELLJAR_CONFIG`) names the configuration; `belljar.toml` here or in `/etc/belljar` where it is left out. `--json` prints
one JSON value a line, with ids where tables show names. What was asked for goes to stdout, words about it to stderr. A table fits the terminal; a pipe gets all of it.

**Exit codes.** 0 done (also where nobody read the output to its end, as in `| head`), 1 failed, 2 typed wrongly, 3 denied, 4 over budget.

**Sessions** are named by their id, or by what you called them with `--session`.
";

/// All commands, as a page.
pub(crate) fn page() -> String {
    let mut program = Arguments::command();
    program.build();
    let mut all = Vec::new();
    collect(&program, &mut all);
    let mut page = BEGINNING.to_owned();
    page.push_str("\n| | |\n|---|---|\n");
    for command in &all {
        let name = name(command);
        let _ = writeln!(page, "| [`{name}`](#{}) | {} |", anchor(&name), about(command));
    }
    for command in &all {
        section(command, &mut page);
    }
    page
}

/// The commands that do something, in the order of `--help`.
fn collect(command: &Command, all: &mut Vec<Command>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        if below.get_name() == "help" {
            continue;
        }
        if below.has_subcommands() {
            collect(below, all);
        } else {
            all.push(below.clone());
        }
    }
}

fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// As pages on the web name a heading.
fn anchor(name: &str) -> String {
    name.replace(' ', "-")
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn section(command: &Command, page: &mut String) {
    let mut shown = command.clone();
    let usage = shown.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let words = command.get_long_about().or(command.get_about());
    let words = words.map(ToString::to_string).unwrap_or_default();
    let _ = write!(
        page,
        "\n## {}\n\n```\n{usage}\n```\n\n{}\n",
        name(command),
        words.trim()
    );
    let mut lines = own_arguments(command).map(line).peekable();
    if lines.peek().is_some() {
        page.push('\n');
    }
    lines.for_each(|line| page.push_str(&line));
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let lines: Vec<&str> = examples.lines().skip(1).map(str::trim).collect();
        let _ = write!(page, "\n```\n{}\n```\n", lines.join("\n"));
    }
}

/// Those that are not the same everywhere.
fn own_arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let own = |argument: &&Arg| !argument.is_hide_set() && !argument.is_global_set() && argument.get_id() != "help";
    command.get_arguments().filter(own)
}

fn line(argument: &Arg) -> String {
    let takes = argument.get_action().takes_values();
    let values = argument.get_value_names().unwrap_or_default().iter();
    let values: Vec<String> = values.map(|name| name.to_string()).collect();
    let mut typed = match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) => format!("--{long}, -{short}"),
        (Some(long), None) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    };
    if takes {
        let space = if typed.is_empty() { "" } else { " " };
        let _ = write!(typed, "{space}{}", values.join(" "));
    }
    let words = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let usual: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let usual = match usual.join(", ") {
        usual if usual.is_empty() || !takes => String::new(),
        usual => format!(" (`{usual}`)"),
    };
    let mut line = format!("- `{typed}`{usual}: {words}\n");
    if takes {
        for value in argument.get_possible_values() {
            let words = value.get_help().map(|words| format!(": {words}")).unwrap_or_default();
            let _ = writeln!(line, "  - `{}`{words}", value.get_name());
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_everything_that_it_takes_is_told_in_words() {
        let mut program = Arguments::command();
        program.build();
        let mut all = Vec::new();
        collect(&program, &mut all);
        let page = page();
        assert!(all.len() > 50, "{}", all.len());
        for command in &all {
            let name = name(command);
            assert!(!about(command).is_empty(), "{name}");
            assert!(page.contains(&format!("\n## {name}\n\n```\n{name}")), "{name}");
            for argument in own_arguments(command) {
                let words = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!words.is_empty(), "{name} {}", argument.get_id());
                assert!(page.contains(&line(argument)), "{name} {}", argument.get_id());
            }
        }
        assert!(page.contains("\n- `--all`: Every sandbox"), "{page}");
    }
}
