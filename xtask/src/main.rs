//! The chores of this repository: `cargo xtask deps` holds the house against its plan.

mod deps;
mod plan;

use anyhow::bail;

const USAGE: &str = "usage: cargo xtask deps    compare every edge between crates with the plan in xtask/src/plan.rs";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["deps"] => deps::check(),
        _ => bail!("{USAGE}"),
    }
}
