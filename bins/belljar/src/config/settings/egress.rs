//! The way out, as the programs use it.

use egress::{Limits, Rules};

use super::super::values::Reader;

/// What leaves, and how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Egress {
    pub(crate) limits: Limits,
    pub(crate) rules: Rules,
}

pub(super) fn egress(reader: &mut Reader) -> Option<Egress> {
    let limits = limits(reader);
    let places = reader.tables("egress.rules.*");
    let rules = match Rules::new(reader.whole("egress.rules.*")) {
        Ok(rules) => rules,
        Err(mistakes) => {
            // Each is about a rule, and each rule has its table.
            for mistake in mistakes {
                if let Some(place) = places.get(&mistake.rule) {
                    reader.note(place.clone(), mistake.to_string());
                }
            }
            return None;
        }
    };
    Some(Egress { limits: limits?, rules })
}

fn limits(reader: &mut Reader) -> Option<Limits> {
    // In the ranges of the table of keys.
    let mut number = |path| reader.number(path).and_then(|number| u32::try_from(number).ok());
    let connections = number("egress.connections");
    let new_connections = number("egress.new_connections");
    let names = number("egress.names");
    let upload = reader.size("egress.upload");
    let download = reader.size("egress.download");
    let idle = reader.duration("egress.idle");
    Some(Limits {
        connections: connections?,
        new_connections: new_connections?,
        names: names?,
        upload: upload?,
        download: download?,
        idle: idle?,
        ..Limits::default()
    })
}
