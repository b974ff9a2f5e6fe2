//! Definitions with mistakes, and what is said of them.

use std::path::Path;

use crate::Catalogue;

/// A folder of one service called `shop`.
fn folder(service: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let shop = folder.path().join("shop");
    for (name, text) in files.iter().chain(&[("service.toml", service)]) {
        let file = shop.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    folder
}

/// All that is said of a definition, a line each, files below `shop`.
fn said(service: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = folder(service, files);
    let (catalogue, mistakes) = Catalogue::load(&[folder.path()]);
    assert_eq!(catalogue.services().count(), usize::from(mistakes.is_empty()));
    let shop = folder.path().join("shop");
    mistakes
        .into_iter()
        .map(|mut mistake| {
            mistake.file = mistake
                .file
                .strip_prefix(&shop)
                .map_or_else(|_| mistake.file.clone(), Path::to_owned);
            mistake.to_string()
        })
        .collect()
}

const HEAD: &str = "name = \"shop\"\nsummary = \"A shop\"\nkind = \"http\"\nbase_url = \"https://shop.example\"\n";

#[test]
fn all_mistakes_are_told_at_once_with_line_and_remedy() {
    let service = r#"name = "shop"
sumary = "A shop"
kind = "htp"
base_url = "https://{tenant}.example"
[auth]
kind = "bearer"
scope = "x"
[methods.find]
summary = "Find"
access = "read"
request = "GET /items/{id}/{shelf}"
arguments = { properties = { id = { type = "string" }, colour = { type = "string" } } }
[methods."items.delete"]
summary = "Delete"
access = "read"
request = "DELETE https://evil.example/{id}"
[methods.then]
summary = "Then"
access = "maybe"
request = "POST /things"
json = { a = "{b", c = "{d}" }
arguments = { properties = { d = { typ = "string" } } }
result = "Thing"
"#;
    let expected = [
        "service.toml:1: summary is missing: write summary = \"one line on what it is for\"",
        "service.toml:2: unknown key sumary: did you mean summary?",
        "service.toml:3: kind is \"htp\": write http, sql, mcp or script (did you mean http?)",
        "service.toml:4: base_url has a place for an argument: write the whole host",
        "service.toml:7: unknown key auth.scope:",
        "service.toml:11: the argument id stands in the path and may be left out: write required = [\"id\"] in arguments",
        "service.toml:11: {shelf} is in no argument's schema:",
        "service.toml:12: the argument colour goes nowhere:",
        "service.toml:13: \"items.delete\" can be no method's name: write a lower-case letter",
        "service.toml:15: a method that only reads has a verb that changes something: write access = \"write\"",
        "service.toml:16: \"https://evil.example/{id}\" is no path below base_url: begin it with one /",
        "service.toml:17: \"then\" can be no method's name",
        "service.toml:19: methods.then.access is \"maybe\": write read or write",
        "service.toml:21: \"{b\" has a { without a }: write {name} for an argument",
        "service.toml:22: JSON Schema has no word \"typ\": did you mean type?",
        "service.toml:23: there is no schema \"Thing\": write it as [schemas.Thing] or in schemas/Thing.json",
    ];
    let said = said(service, &[]);
    for expected in expected {
        assert!(
            said.iter().any(|said| said.starts_with(expected)),
            "{expected} is missing in:\n{}",
            said.join("\n")
        );
    }
}

#[test]
fn no_service_is_called_as_belljars_own() {
    let said = said(&HEAD.replacen("shop", "belljar", 1), &[]);
    let expected = "service.toml:1: what Belljar itself offers is called so";
    assert!(said.iter().any(|said| said.starts_with(expected)), "{said:?}");
}

#[test]
fn a_mistake_in_another_file_names_that_file() {
    let service = format!(
        "{HEAD}[methods.find]\nsummary = \"Find\"\naccess = \"read\"\nrequest = \"GET /items\"\nresult = \"Item\"\n"
    );
    let files = [
        ("schemas/Item.json", "{\n \"type\": \"object\",\n \"propertys\": {}\n}"),
        ("fixtures/fnd.json", "[]"),
        (
            "fixtures/find.json",
            "[\n {\"name\": \"x\",\n  \"exchanges\": [{\"request\": \"GET /items\", \"status\": 999}]}]",
        ),
    ];
    let said = said(&service, &files);
    for expected in [
        "schemas/Item.json:3: JSON Schema has no word \"propertys\": did you mean properties?",
        "fixtures/fnd.json: there is no method of this name: did you mean find.json?",
    ] {
        assert!(
            said.iter().any(|said| said.starts_with(expected)),
            "{expected} is missing in:\n{}",
            said.join("\n")
        );
    }
}

#[test]
fn mistakes_of_an_mcp_server_and_of_a_script_are_told() {
    let mcp = "name = \"shop\"\nsummary = \"A shop\"\nkind = \"mcp\"\n";
    let method = "[methods.find]\nsummary = \"Find\"\naccess = \"read\"\ntool = \"find\"\npin = \"sha256:0\"\n";
    let tools = ("tools.json", "[{\"name\": \"find\", \"inputSchema\": {}}]");
    let script = "name = \"shop\"\nsummary = \"A shop\"\nkind = \"script\"\nbase_url = \"https://shop.example\"\n[methods.find]\nsummary = \"Find\"\naccess = \"read\"\n";
    for (service, files, expected) in [
        (
            format!("{mcp}{method}"),
            vec![tools],
            "service.toml:1: there is no server",
        ),
        (
            format!("{mcp}[server]\nurl = \"https://a.example\"\ncommand = [\"a\"]\n{method}"),
            vec![tools],
            "service.toml:4: the server is nowhere, or at two places",
        ),
        (
            format!("{mcp}[server]\ncommand = [\"a\"]\nenvironment = {{ LD_PRELOAD = \"x\" }}\n{method}"),
            vec![tools],
            "service.toml:6: \"LD_PRELOAD\" can be no variable of it",
        ),
        (
            format!("{mcp}[server]\ncommand = [\"a\"]\nread = [\"/\"]\n{method}"),
            vec![tools],
            "service.toml:6: \"/\" is no folder of its own",
        ),
        (
            format!("{mcp}[server]\ncommand = [\"a\"]\n[auth]\nkind = \"bearer\"\n{method}"),
            vec![tools],
            "service.toml:6: such a server takes no credential of kind bearer",
        ),
        (
            format!("{mcp}[server]\nurl = \"https://a.example\"\n{method}"),
            vec![],
            "tools.json: there is nothing that says which tools were approved",
        ),
        (
            format!("{mcp}[server]\nurl = \"https://a.example\"\n{method}"),
            vec![tools],
            "service.toml:10: what tools.json says of the tool is not what this pins",
        ),
        (
            format!("{script}[auth]\nkind = \"all\"\nparts = [{{ kind = \"bearer\" }}]\n"),
            vec![("script.js", "export async function find(args) {}")],
            "service.toml:10: several credentials at once are two at least",
        ),
        (
            format!("{script}[auth]\nkind = \"all\"\nparts = [{{ kind = \"bearer\" }}, {{ kind = \"basic\" }}]\n"),
            vec![("script.js", "export async function find(args) {}")],
            "service.toml:10: another part stands at the same place of a request",
        ),
        (
            format!(
                "{script}[auth]\nkind = \"all\"\nparts = [{{ kind = \"bearer\" }}, {{ kind = \"query\", name = \"k\" }}]\n"
            ),
            vec![("script.js", "export async function find(args) {}")],
            "service.toml:10: another part takes the slot token",
        ),
        (script.to_owned(), vec![], "script.js: the file cannot be read"),
        (
            script.to_owned(),
            vec![("script.js", "function find() {}")],
            "service.toml:5: script.js has no function find",
        ),
    ] {
        let said = said(&service, &files);
        assert!(
            said.iter().any(|said| said.starts_with(expected)),
            "{expected}: {said:?}"
        );
    }
}

#[test]
fn threat_075_a_query_that_changes_something_is_refused_when_it_is_read() {
    let service = format!(
        "{HEAD}[methods.find]\nsummary = \"Find\"\naccess = \"read\"\nrequest = \"POST /graphql\"\ngraphql = \"mutation {{ drop {{ id }} }}\"\n"
    );
    let said = said(&service, &[]);
    assert_eq!(
        said,
        ["service.toml:9: the document is no query, and the method only reads: write access = \"write\""]
    );
}

#[test]
fn fixtures_must_be_as_the_schemas_say() {
    let service = format!(
        "{HEAD}[methods.find]\nsummary = \"Find\"\naccess = \"read\"\nrequest = \"GET /items\"\nquery = [\"limit\"]\narguments = {{ properties = {{ limit = {{ type = \"integer\" }} }} }}\nresult = {{ type = \"string\" }}\n"
    );
    let fixture = "[{\"name\": \"x\", \"arguments\": {\"limit\": \"two\"}, \"exchanges\": [{\"request\": \"GET /items\", \"status\": 200}], \"result\": 5}]";
    let said = said(&service, &[("fixtures/find.json", fixture)]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said.iter().all(|said| said.contains("not as the method's schema says")),
        "{said:?}"
    );
}

#[test]
fn threat_069_070_no_name_has_a_dot_or_is_javascripts_own() {
    for name in [
        "items.delete",
        "__proto__",
        "constructor",
        "then",
        "Find",
        "a-b",
        "",
        "toString",
    ] {
        let service = format!("{HEAD}[methods.{name:?}]\nsummary = \"x\"\naccess = \"read\"\nrequest = \"GET /x\"\n");
        let said = said(&service, &[]);
        assert!(
            said.iter().any(|said| said.contains("can be no method's name")),
            "{name:?}: {said:?}"
        );
    }
}
