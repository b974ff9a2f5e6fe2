//! The manual's page and the example file, written from the table of keys.

use std::fmt::Write as _;

use super::keys::{Key, SECTIONS, Section};

/// `belljar.example.toml`: every key with its default, all commented out.
pub(crate) fn example() -> String {
    let mut text = String::from(
        "# Belljar's configuration, with every key there is. What is commented out holds as it stands,\n\
         # or shows how the key is written where it has no default. Generated from the code.\n",
    );
    for section in SECTIONS {
        let _ = write!(text, "\n# {}\n", section.about);
        let header = format!("[{}]", section.name.replace('*', sample(section)));
        let _ = if section.name.contains('*') {
            writeln!(text, "# {header}")
        } else {
            writeln!(text, "{header}")
        };
        for key in section.keys {
            let _ = write!(text, "\n# {}\n", key.about);
            let _ = writeln!(text, "# {} = {}", key.name, shown(key));
        }
    }
    text
}

/// `docs/configuration.md`.
#[cfg(test)]
pub(crate) fn manual() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         One file, `belljar.toml`: the one that `--config FILE` or `BELLJAR_CONFIG` names, else `belljar.toml` in the current folder, else\n\
         `/etc/belljar/belljar.toml`. `belljar check` reads it and reports every mistake at once, with its line. Unknown keys are refused.\n\
         Every key but those of models can be set by an environment variable, which wins over the file: `server.listen` is `BELLJAR_SERVER_LISTEN`.\n\n\
         A secret never stands in the file. It is referred to, and docs/secrets.md says how each kind of reference is kept: `env:NAME` is a variable that\n\
         `belljar serve` was started with, `file:/path` a file that it can read and others cannot, `store:NAME` an entry of Belljar's encrypted store,\n\
         `vault:path#field` a field of a HashiCorp Vault or OpenBao. The host agent reads the same file, follows no reference, and runs with an empty environment.\n\n\
         This page is generated from the code, and so is `belljar.example.toml`.\n",
    );
    for section in SECTIONS {
        let _ = write!(
            text,
            "\n## [{}]\n\n{}\n\n",
            section.name.replace('*', "NAME"),
            section.about
        );
        text.push_str("| key | value | default | |\n|---|---|---|---|\n");
        for key in section.keys {
            let default = key.default.map_or_else(
                || format!("none; e.g. `{}`", key.example),
                |default| format!("`{default}`"),
            );
            let _ = writeln!(
                text,
                "| `{}` | {} | {default} | {} |",
                key.name,
                key.kind.in_words(),
                key.about
            );
        }
    }
    text
}

/// A name for one table of many.
fn sample(section: &Section) -> &'static str {
    match section.name {
        "models.*" => "large",
        "roles.*" => "analyst",
        "people.*" => "ada",
        "groups.*" => "sales",
        "doors.*" => "webhook",
        _ => "example",
    }
}

fn shown(key: &Key) -> &'static str {
    key.default.unwrap_or(key.example)
}
