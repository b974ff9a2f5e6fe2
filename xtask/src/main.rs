//! The chores of this repository: `client` looks at what other systems have of the program, `commands` writes the page of what can be typed, `deps` holds the house against its plan, `test` runs every test, `threats` lists which of them are attacks.

mod cargo;
mod client;
mod commands;
mod deps;
mod plan;
mod test;
mod threats;

use anyhow::bail;

const USAGE: &str = "usage: cargo xtask COMMAND
  client  check the program as it is on other systems than Linux, the client commands alone
  commands [--check]
          write docs/commands.md, or say whether it is up to date
  deps    compare every edge between crates with the plan in xtask/src/plan.rs
  test    build every test program and run each with a deadline
  threats [--check]
          write docs/threats.md, or say whether it is up to date";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["client"] => client::check(),
        ["commands"] => commands::page(false),
        ["commands", "--check"] => commands::page(true),
        ["deps"] => deps::check(),
        ["test"] => test::run(),
        ["threats"] => threats::page(false),
        ["threats", "--check"] => threats::page(true),
        _ => bail!("{USAGE}"),
    }
}
