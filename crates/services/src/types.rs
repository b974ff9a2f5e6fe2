//! What a model is shown of the services: TypeScript declarations of the methods that it may call, and of nothing else.
//!
//! The texts of several services may stand one after the other: each adds its service to the interface `Services`.

mod shape;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::Value;

use self::shape::{Printer, comment, key};
use crate::definition::{Access, Answer, Catalogue, Method, Service};

/// What every text of types begins with.
pub const PRELUDE: &str = "\
/** One page of a list: hand `next` in as `cursor` for the page after it; null after the last. */
interface Page<T> {
  items: T[];
  next: string | null;
}
declare const services: Services;
";

impl Catalogue {
    /// The declarations of every allowed method, as a `.d.ts` file. A service without one is not in it.
    #[must_use]
    pub fn types(&self, allowed: impl Fn(&str, &str) -> bool) -> String {
        let services = self
            .services()
            .filter_map(|service| service.types(|method| allowed(&service.name, method)));
        let services: Vec<String> = services.collect();
        let empty = if services.is_empty() {
            "interface Services {}\n"
        } else {
            ""
        };
        format!("{PRELUDE}{empty}{}", services.concat())
    }

    /// All about one service: its declarations, for the methods that are allowed. Nothing where there is no such method.
    #[must_use]
    pub fn describe(&self, service: &str, allowed: impl Fn(&str, &str) -> bool) -> Option<String> {
        self.service(service)?.types(|method| allowed(service, method))
    }

    /// One line for the prompt: the name and what it is for. Nothing where there is no such service.
    #[must_use]
    pub fn line(&self, service: &str) -> Option<String> {
        self.service(service)
            .map(|service| format!("{}: {}", service.name, service.summary))
    }
}

impl Service {
    /// The declarations of the allowed methods, without the [`PRELUDE`]. Nothing where no method is allowed.
    #[must_use]
    pub fn types(&self, allowed: impl Fn(&str) -> bool) -> Option<String> {
        let methods: Vec<&Method> = self.methods.values().filter(|method| allowed(&method.name)).collect();
        if methods.is_empty() {
            return None;
        }
        let space = capital(&self.name);
        let mut text = String::new();
        let named = named(&methods);
        if !named.is_empty() {
            text.push_str(&format!("declare namespace {space} {{\n"));
            let printer = Printer::new("");
            for (name, schema) in named {
                text.push_str(&comment(schema, "  "));
                text.push_str(&format!("  type {name} = {};\n", printer.print(schema, 2)));
            }
            text.push_str("}\n");
        }
        let printer = Printer::new(&space);
        text.push_str(&format!(
            "interface Services {{\n{}  {}: {{\n",
            shape::note(&self.summary, "  "),
            key(&self.name)
        ));
        for method in methods {
            text.push_str(&declaration(method, &printer));
        }
        text.push_str("  };\n}\n");
        Some(text)
    }
}

fn declaration(method: &Method, printer: &Printer) -> String {
    let ends = method.summary.ends_with(['.', '!', '?']);
    let writes = match method.access {
        Access::Read => "",
        Access::Write => " Changes something.",
    };
    let summary = format!("{}{}{writes}", method.summary, if ends { "" } else { "." });
    let arguments = method.arguments.value();
    let arguments = if arguments["properties"]
        .as_object()
        .is_some_and(serde_json::Map::is_empty)
    {
        String::new()
    } else {
        let optional = arguments["required"].as_array().is_none_or(Vec::is_empty);
        let mark = if optional { "?" } else { "" };
        format!("args{mark}: {}", printer.print(arguments, 4))
    };
    let item = method
        .result
        .as_ref()
        .map_or_else(|| "unknown".to_owned(), |schema| printer.print(schema.value(), 4));
    let result = match (method.answer, &method.pages) {
        (Answer::Json, Some(_)) => format!("Page<{item}>"),
        (Answer::Json, None) => item,
        (Answer::Text, _) => "string".to_owned(),
        (Answer::Binary, _) => "Uint8Array".to_owned(),
    };
    format!(
        "{}    {}({arguments}): Promise<{result}>;\n",
        shape::note(&summary, "    "),
        key(&method.name)
    )
}

/// Every schema that the methods refer to, by name.
fn named<'m>(methods: &[&'m Method]) -> BTreeMap<&'m str, &'m Value> {
    let schemas = methods
        .iter()
        .flat_map(|method| std::iter::once(&method.arguments).chain(&method.result));
    let tables = schemas.filter_map(|schema| schema.value().get("$defs")?.as_object());
    tables.flatten().map(|(name, schema)| (name.as_str(), schema)).collect()
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
