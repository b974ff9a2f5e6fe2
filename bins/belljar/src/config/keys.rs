//! Every key there is, in one table: what is read, refused, suggested and documented comes from here.

mod base;
mod egress;
mod models;
mod objects;
mod roles;
mod secrets;
mod services;

/// A part of the configuration.
pub(crate) struct Section {
    /// The table's name; `models.*` stands for one table per model. A `*` stands at its end only.
    pub(crate) name: &'static str,
    /// Whether a part of the program reads each table as a whole: then the keys here are for people, and what stands in it is
    /// checked by that part's own types.
    pub(crate) whole: bool,
    /// What it is about.
    pub(crate) about: &'static str,
    /// Its keys.
    pub(crate) keys: &'static [Key],
}

/// A key of a section.
pub(crate) struct Key {
    /// Its name; may go one level deeper (`price.input`).
    pub(crate) name: &'static str,
    /// What its value may be.
    pub(crate) kind: Kind,
    /// What holds where it is left out, as it would be written; nothing where there is no default.
    pub(crate) default: Option<&'static str>,
    /// How it could be written, where there is no default to show.
    pub(crate) example: &'static str,
    /// What it does.
    pub(crate) about: &'static str,
}

/// What a value may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A whole number from one to the other.
    Whole(i64, i64),
    /// A decimal number that is not negative, to a thousandth.
    Decimal,
    /// An amount of dollars, to a billionth.
    Dollars,
    /// A price in dollars for a million tokens, to a thousandth.
    Price,
    /// A duration: a number and `ms`, `s`, `m`, `h` or `d`.
    Duration,
    /// A size: a number and `KiB`, `MiB` or `GiB`.
    Size,
    /// True or false.
    Flag,
    /// An address and a port.
    Listen,
    /// A path that begins with `/`.
    Path,
    /// A path, from the folder of the configuration where it does not begin with `/`.
    File,
    /// Where a secret is, never the secret.
    Reference,
    /// A table of names and texts.
    Texts,
    /// A table of names and amounts of dollars.
    Amounts,
    /// A list of names.
    Names,
    /// A list of patterns, of what the key is about.
    Patterns,
    /// What a scope says of names: a list of patterns, or a table of three such lists.
    Rules,
    /// What a scope says of each tool.
    Verdicts,
    /// A list of addresses and networks.
    Networks,
    /// A table, which a part of the program reads.
    Table,
    /// A list of such tables.
    Tables,
}

impl Kind {
    /// The kind in words, for people.
    pub(crate) fn in_words(self) -> String {
        match self {
            Self::Text => "a text".into(),
            Self::Word(words) => format!("one of {}", quoted(words)),
            Self::Whole(least, most) if most == i64::MAX => format!("a whole number, {least} or more"),
            Self::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Self::Decimal => "a decimal number, such as 0.5".into(),
            Self::Dollars => "an amount of dollars, such as 2.50".into(),
            Self::Price => "dollars for a million tokens, such as 3.00 or 0.075".into(),
            Self::Duration => "a duration, such as \"90s\", \"30m\" or \"1h\"".into(),
            Self::Size => "a size, such as \"512MiB\" or \"2GiB\"".into(),
            Self::Flag => "true or false".into(),
            Self::Listen => "an address and a port, such as \"127.0.0.1:7717\"".into(),
            Self::Path => "a path that begins with /".into(),
            Self::File => "a path, from this file's folder where it does not begin with /".into(),
            Self::Reference => {
                "a reference, \"env:NAME\", \"file:/path\", \"store:NAME\" or \"vault:path#field\"".into()
            }
            Self::Texts => "a table of texts, such as { \"x-team\" = \"data\" }".into(),
            Self::Amounts => "a table of amounts of dollars, such as { \"webhook:*\" = 5.00 }".into(),
            Self::Names => "a list of names, such as [\"one\", \"other\"]".into(),
            Self::Patterns => "a list of patterns".into(),
            Self::Rules => "a list of patterns, or a table of lists: `{ allow = […], ask = […], deny = […] }`".into(),
            Self::Verdicts => "a table of tools and true, false, \"allow\", \"ask\" or \"deny\"".into(),
            Self::Networks => "a list of addresses and networks, such as [\"10.20.0.0/16\"]".into(),
            Self::Table => "a table".into(),
            Self::Tables => "a list of tables".into(),
        }
    }
}

/// `"a", "b" or "c"`.
fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// A key that has a new name. The old one is understood, with a warning, for one release.
pub(crate) struct Renamed {
    /// The old name, whole.
    pub(crate) old: &'static str,
    /// The new one, whole.
    pub(crate) new: &'static str,
}

/// Keys that were renamed.
pub(crate) const RENAMED: &[Renamed] = &[Renamed {
    old: "sandbox.remove_after",
    new: "sandbox.hibernate_after",
}];

const fn key(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    Key {
        name,
        kind,
        default: Some(default),
        example: "",
        about,
    }
}

const fn unset(name: &'static str, kind: Kind, example: &'static str, about: &'static str) -> Key {
    Key {
        name,
        kind,
        default: None,
        example,
        about,
    }
}

/// The whole configuration.
pub(crate) const SECTIONS: &[Section] = &[
    base::SERVER,
    base::SANDBOX,
    base::WARM,
    base::RUN,
    base::BUDGET,
    base::APPROVALS,
    base::TELEMETRY,
    models::MODELS,
    objects::OBJECTS,
    secrets::SECRETS,
    secrets::VAULT,
    services::SERVICES,
    egress::EGRESS,
    egress::RULES,
    roles::ROLES,
    roles::PEOPLE,
    roles::GROUPS,
    roles::DOORS,
];

/// The whole name of a key, its section's wildcard included.
pub(crate) fn whole_name(section: &Section, key: &Key) -> String {
    format!("{}.{}", section.name, key.name)
}

/// The key that a path means; `models.large.window` is `models.*`'s `window`.
pub(crate) fn find(path: &[String]) -> Option<&'static Key> {
    SECTIONS
        .iter()
        .flat_map(|section| section.keys.iter().map(move |key| (section, key)))
        .find(|(section, key)| matches(&whole_name(section, key), path))
        .map(|(_, key)| key)
}

/// Whether some key lies below this path.
pub(crate) fn is_table(path: &[String]) -> bool {
    SECTIONS.iter().any(|section| {
        section.keys.iter().any(|key| {
            let whole = whole_name(section, key);
            let names: Vec<&str> = whole.split('.').collect();
            names.len() > path.len() && matches(&names[..path.len()].join("."), path)
        })
    })
}

/// The section of which this path is one table among others, such as `models.large`.
pub(crate) fn table_of(path: &[String]) -> Option<&'static Section> {
    SECTIONS
        .iter()
        .find(|section| section.name.ends_with(".*") && matches(section.name, path))
}

fn matches(pattern: &str, path: &[String]) -> bool {
    let mut names = pattern.split('.');
    path.iter()
        .all(|given| names.next().is_some_and(|name| name == "*" || name == given))
        && names.next().is_none()
}
