//! The configuration, and commands of this machine.

use tempfile::tempdir;

use crate::program::{belljar, run};

#[tokio::test]
async fn every_mistake_is_reported_at_once() {
    let folder = tempdir().unwrap();
    std::fs::write(
        folder.path().join("belljar.toml"),
        "[server]\nlisten = \"here\"\n[sandbx]\n[models.m]\nprovider = \"x\"\n",
    )
    .unwrap();
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert_eq!(came.code, 1);
    for part in [
        "belljar.toml has",
        "line 2: server.listen",
        "line 3: unknown key sandbx: did you mean sandbox?",
        "line 5: models.m.provider",
    ] {
        assert!(came.notes.contains(part), "{part}: {came:?}");
    }
}

#[tokio::test]
async fn a_secret_that_is_not_there_is_named_and_one_that_is_is_not_shown() {
    let folder = tempdir().unwrap();
    let text = "[models.m]\nprovider = \"anthropic\"\nkey = \"env:SOME_KEY\"\nwindow = 200000\nmax_output = 8000\n";
    std::fs::write(folder.path().join("belljar.toml"), text).unwrap();
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert!(came.code == 1 && came.notes.contains("set SOME_KEY"), "{came:?}");
    let mut check = belljar(folder.path());
    check.arg("check").env("SOME_KEY", "sk-very-secret");
    let came = run(check, "").await;
    assert!(
        came.code == 0 && !format!("{came:?}").contains("very-secret"),
        "{came:?}"
    );
}

#[tokio::test]
async fn what_is_wrong_with_services_is_told_at_once_and_repeats_no_secret() {
    let folder = tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let method = "[methods.get]\nsummary = \"One contact\"\naccess = \"read\"\nrequest = \"GET /contacts\"\n[auth]\nkind = \"bearer\"\n";
    let head = |name: &str| format!("name = \"{name}\"\nkind = \"http\"\nsummary = \"Contacts\"\n");
    write(
        "services/crm/service.toml",
        &format!("{}base_url = \"https://crm.example.com\"\n{method}", head("crm")),
    );
    write("services/broken/service.toml", &head("broken"));
    let configured = "[services.crm]\nauth = { token = \"hunter2-in-the-open\" }\n[services.other]\nper_minute = 5\n";
    write("belljar.toml", configured);
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert_eq!(came.code, 0, "the rest works: {came:?}");
    for part in [
        "broken/service.toml",
        "belljar.toml, line 2: services.crm.auth.token: a secret does not stand in the configuration itself",
        "services.other: there is no service of this name",
    ] {
        assert!(came.notes.contains(part), "{part}: {came:?}");
    }
    assert!(!format!("{came:?}").contains("hunter2"), "{came:?}");
    assert!(came.out.contains("all else is well"), "{came:?}");

    let plain = format!("{}base_url = \"http://crm.example.com\"\n{method}", head("crm"));
    write("services/crm/service.toml", &plain);
    write("belljar.toml", "");
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert!(
        came.notes.contains("crm/service.toml, line 4: services.crm.base_url"),
        "{came:?}"
    );
    write("services/crm/service.toml", &plain.replace("http:", "https:"));

    std::fs::remove_dir_all(folder.path().join("services/broken")).unwrap();
    write("belljar.toml", "[services.crm]\nauth = { token = \"env:CRM_TOKEN\" }\n");
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert!(
        came.code == 1 && came.notes.contains("services.crm.auth.token") && came.notes.contains("CRM_TOKEN"),
        "{came:?}"
    );
    let mut check = belljar(folder.path());
    check.arg("check").env("CRM_TOKEN", "hunter2");
    let came = run(check, "").await;
    assert!(came.code == 0 && !format!("{came:?}").contains("hunter2"), "{came:?}");
}

#[tokio::test]
async fn the_example_is_a_configuration_and_skills_are_checked() {
    let folder = tempdir().unwrap();
    let mut example = belljar(folder.path());
    example.args(["check", "--example"]);
    let example = run(example, "").await;
    std::fs::write(folder.path().join("belljar.toml"), example.out).unwrap();
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert_eq!(came.code, 0, "{came:?}");

    let skill = folder.path().join("skills/bad");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(
        skill.join("SKILL.md"),
        "---\nname: other\ndescription: Use when testing.\n---\nDo it.\n",
    )
    .unwrap();
    let mut check = belljar(folder.path());
    check.args(["skill", "check"]);
    let came = run(check, "").await;
    assert!(
        came.code == 1 && came.out.contains("the folder is called bad"),
        "{came:?}"
    );
}

#[tokio::test]
async fn what_a_program_of_an_mcp_server_says_at_its_end_is_told() {
    let folder = tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let program = folder.path().join("dies.py");
    std::fs::write(&program, "raise SystemExit(\"I cannot find my file\")\n").unwrap();
    let text = format!("[server]\ndata = {:?}\nuser = \"root\"\n", folder.path().join("data"));
    std::fs::write(folder.path().join("belljar.toml"), text).unwrap();
    let mut import = belljar(folder.path());
    import
        .args(["service", "import", "--name", "dies", "--mcp"])
        .arg(format!("python3 {}", program.display()))
        .arg("--read")
        .arg(folder.path());
    let came = run(import, "").await;
    assert_eq!(came.code, 1, "{came:?}");
    for part in ["I cannot find my file", "ends before it answers"] {
        assert!(came.notes.contains(part), "{part}: {came:?}");
    }
}

#[tokio::test]
async fn what_a_pattern_of_a_scope_comes_to_is_told() {
    let folder = tempdir().unwrap();
    let package = folder.path().join("services/crm");
    std::fs::create_dir_all(&package).unwrap();
    let method = |name: &str, access: &str, request: &str| {
        format!("[methods.{name}]\nsummary = \"A contact\"\naccess = \"{access}\"\nrequest = \"{request} /contacts\"\n")
    };
    let definition = format!(
        "name = \"crm\"\nkind = \"http\"\nsummary = \"Contacts\"\nbase_url = \"https://crm.example.com\"\n{}{}{}",
        method("add", "write", "POST"),
        method("get", "read", "GET"),
        method("list", "read", "GET"),
    );
    std::fs::write(package.join("service.toml"), definition).unwrap();
    let text = "[roles.everybody]\nservices = { allow = [\"crm.*\", \"crm.add\", \"erp.*\"], deny = [\"crm.add\"] }\n\
        egress = [\"*.example.com:443\", \"elsewhere.test\"]\n[doors.api]\nmodels = [\"*\", \"x-*\"]\n\
        [egress.rules.web]\nhosts = [\"a.example.com\"]\n\
        [models.m]\nprovider = \"scripted\"\nscript = \"m.yaml\"\n";
    std::fs::write(folder.path().join("m.yaml"), "steps: [{ text: hello }]\n").unwrap();
    std::fs::write(folder.path().join("belljar.toml"), text).unwrap();
    let check = async |words: &[&str]| {
        let mut check = belljar(folder.path());
        check.arg("check").args(words);
        run(check, "").await
    };
    let came = check(&[]).await;
    assert_eq!(came.code, 0, "{came:?}");
    for line in [
        "  roles.everybody: services allow \"crm.*\" is crm.add, crm.get, crm.list",
        "? roles.everybody: services allow \"crm.add\" never counts, since deny \"crm.add\" matches all that it does",
        "? roles.everybody: services allow \"erp.*\" matches nothing that there is",
        "  roles.everybody: services deny \"crm.add\" is crm.add",
        "  roles.everybody: egress allow \"*.example.com:443\" is a.example.com (rule web)",
        "? roles.everybody: egress allow \"elsewhere.test\" matches no host that a rule of [egress.rules] lets out",
        "  doors.api: models allow \"*\" is m",
        "? doors.api: models allow \"x-*\" matches nothing that there is",
    ] {
        assert!(came.out.lines().any(|told| told == line), "{line}: {}", came.out);
    }
    let came = check(&["--json"]).await;
    let told = came.out.lines().map(|line| serde_json::from_str(line).unwrap());
    let told: Vec<serde_json::Value> = told.collect();
    let pattern = |pattern: &str| told.iter().find(|told| told["pattern"]["pattern"] == pattern).unwrap();
    assert_eq!(
        pattern("crm.*")["pattern"]["to"],
        serde_json::json!(["crm.add", "crm.get", "crm.list"])
    );
    assert_eq!(pattern("erp.*")["pattern"]["is"], "empty");
}

#[tokio::test]
async fn what_lacks_is_said_before_anything_begins() {
    let folder = tempdir().unwrap();
    let data = folder.path().join("data");
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    assert!(
        came.code == 0 && came.notes.contains("there is no model") && came.out.contains("all else is well"),
        "{came:?}"
    );
    for (words, part) in [
        (&["serve"][..], "there is no model"),
        (&["restore", "nothing.backup"], "nothing.backup"),
        (&["dev", "hello"], "there is no model"),
        (&["image", "build", "nowhere"], "nowhere"),
    ] {
        let mut command = belljar(folder.path());
        command.args(words).env("BELLJAR_SERVER_DATA", &data);
        let came = run(command, "").await;
        assert!(came.code == 1 && came.notes.contains(part), "{words:?}: {came:?}");
    }
}

#[tokio::test]
async fn a_statement_of_a_definition_that_would_not_run_is_told_with_its_line() {
    let folder = tempdir().unwrap();
    let database = folder.path().join("some.db").display().to_string();
    std::fs::create_dir_all(folder.path().join("services/numbers")).unwrap();
    let definition = "name = \"numbers\"\nsummary = \"Numbers\"\nkind = \"sql\"\nengines = [\"sqlite\"]\n\
        [methods.good]\nsummary = \"One\"\naccess = \"read\"\nsql = \"SELECT 1 AS x\"\n\
        [methods.bad]\nsummary = \"None\"\naccess = \"read\"\nsql = \"DELETE FROM orders\"\n\
        [methods.short]\nsummary = \"Two\"\naccess = \"read\"\nsql = \"SELECT ? AS x\"\n";
    std::fs::write(folder.path().join("services/numbers/service.toml"), definition).unwrap();
    let text = format!("[services.numbers.database]\nfile = \"{database}\"\n");
    std::fs::write(folder.path().join("belljar.toml"), text).unwrap();
    let mut check = belljar(folder.path());
    check.arg("check");
    let came = run(check, "").await;
    for part in [
        "service.toml, line 12: services.numbers.methods.bad.sql",
        "service.toml, line 16: services.numbers.methods.short.sql",
        "the statement has 1 parameters, 0 were given",
    ] {
        assert!(came.notes.contains(part), "{part}: {came:?}");
    }
    assert!(!came.notes.contains("methods.good"), "{came:?}");
}

/// A database of SQLite is made, and asked through the confined worker, as a service's own is.
#[tokio::test]
async fn the_warehouse_plays_its_fixtures() {
    let folder = tempdir().unwrap();
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services/warehouse");
    std::fs::create_dir(folder.path().join("services")).unwrap();
    let mut copy = tokio::process::Command::new("cp");
    copy.arg("-r").arg(package).arg(folder.path().join("services"));
    assert!(copy.status().await.unwrap().success());
    let mut test = belljar(folder.path());
    test.args(["service", "test", "warehouse"]);
    let came = run(test, "").await;
    assert!(came.code == 0 && came.out.contains("✓ warehouse.query"), "{came:?}");
    assert!(!came.out.contains('✗'), "{came:?}");
}
