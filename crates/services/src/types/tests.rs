//! Whole texts of declarations.

use std::path::Path;
use std::process::Command;

use crate::Catalogue;

fn catalogue() -> Catalogue {
    Catalogue::load(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services")]).0
}

#[test]
fn what_is_not_allowed_is_not_there() {
    let catalogue = catalogue();
    let types = catalogue.types(|service, method| service == "crm" && method == "getContact");
    assert!(types.contains("getContact(args: {"), "{types}");
    for absent in ["searchContacts", "Filter", "chat", "Services {}"] {
        assert!(!types.contains(absent), "{absent} is in:\n{types}");
    }
    assert!(catalogue.types(|_, _| false).contains("interface Services {}"));
    assert_eq!(catalogue.describe("crm", |_, _| false), None);
    assert_eq!(catalogue.describe("nothing", |_, _| true), None);
    assert!(catalogue.line("crm").unwrap().starts_with("crm: HubSpot CRM"));
}

/// `BLESS=1` writes the file anew.
#[test]
fn the_declarations_of_a_package_are_as_they_were_read_by_people() {
    let types = catalogue().describe("chat", |_, _| true).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat.d.ts");
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, &types).unwrap();
    }
    assert_eq!(
        types,
        std::fs::read_to_string(&golden).unwrap_or_default(),
        "BLESS=1 writes it anew"
    );
}

/// Asks TypeScript's own compiler.
#[test]
fn the_compiler_takes_the_declarations_and_refuses_wrong_calls() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("services.d.ts"), catalogue().types(|_, _| true)).unwrap();
    let good = "
        async function main() {
          const page = await services.crm.searchContacts({ query: 'ada', limit: 5 });
          const ids: string[] = page.items.map((contact) => contact.id);
          const next: string | null = page.next;
          const posted = await services.chat.postMessage({ channel: 'C1', text: ids.join() + next });
          const text: string = await services.code.getFile({ owner: 'a', repo: 'b', path: 'c' });
          return [posted.ts, text];
        }";
    assert_eq!(compile(folder.path(), good), "");
    for (wrong, word) in [
        ("services.crm.searchContacts({ limit: '5' });", "TS2322"),
        ("services.crm.searchContacts({ lim: 5 });", "TS2353"),
        ("services.crm.getContact({});", "TS2741"),
        ("services.crm.dropContact({});", "TS2339"),
        (
            "services.code.listIssues({ owner: 'a', repo: 'b', state: 'ajar' });",
            "TS2322",
        ),
    ] {
        let said = compile(folder.path(), wrong);
        assert!(said.contains(word), "{wrong}: {said}");
    }
}

fn compile(folder: &Path, text: &str) -> String {
    std::fs::write(folder.join("use.ts"), text).unwrap();
    let done = Command::new(testkit::program("tsc"))
        .args([
            "--noEmit",
            "--strict",
            "--target",
            "es2022",
            "--lib",
            "es2022",
            "services.d.ts",
            "use.ts",
        ])
        .current_dir(folder)
        .output()
        .expect("run tsc, which scripts/prepare tests installs");
    String::from_utf8(done.stdout).unwrap()
}
