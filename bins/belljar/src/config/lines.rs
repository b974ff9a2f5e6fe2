//! Where a key stands in a file.

use toml::de::{DeTable, DeValue};

use super::raw::line_of;

/// The line of a key (`services.crm.base_url`) in a file, from 1; nothing where the file does not have it.
pub(crate) fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let mut parts = key.split('.').peekable();
    while let Some(part) = parts.next() {
        let (name, value) = table.iter().find(|(name, _)| name.get_ref() == part)?;
        if parts.peek().is_none() {
            return Some(line_of(text, name.span().start));
        }
        let DeValue::Table(next) = value.get_ref() else {
            return None;
        };
        table = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_whatever_way_its_table_is_written() {
        let text = "a = 1\n\n[services.crm]\nper_minute = 5\nauth.token = \"x\"\nlimits = { most = 3 }\n";
        for (key, line) in [
            ("a", Some(1)),
            ("services.crm.per_minute", Some(4)),
            ("services.crm.auth.token", Some(5)),
            ("services.crm.limits.most", Some(6)),
            ("services.crm.base_url", None),
            ("a.b", None),
        ] {
            assert_eq!(line_of_key(text, key), line, "{key}");
        }
    }
}
