use super::keys::{Renamed, SECTIONS};
use super::raw::{Mistake, Place, Raw};
use super::settings::{Checked, Provider, Settings, check};
use super::*;
use secret::Reference;

fn checked(text: &str) -> Checked {
    check(Raw::of(text, &[]))
}

fn settings(text: &str) -> Settings {
    checked(text)
        .settings
        .unwrap_or_else(|mistakes| panic!("{}", listed("the text", &mistakes)))
}

fn mistakes(text: &str) -> Vec<String> {
    checked(text)
        .settings
        .expect_err("mistakes")
        .iter()
        .map(Mistake::to_string)
        .collect()
}

#[test]
fn every_cap_of_a_budget_reaches_control() {
    let settings =
        settings("[budget]\nrun = 1\nsession = 2\nuser = 3\nday = 4\ntriggers = { cli = 5, \"webhook:*\" = 6 }\n");
    let base = control::Base::new("ab".repeat(32).parse().unwrap());
    let caps = crate::wiring::control(&settings, "m", base).caps;
    let dollars = |count: i64| Some(domain::Money(count * 1_000_000_000));
    assert_eq!([caps.run, caps.session, caps.user, caps.day], [1, 2, 3, 4].map(dollars));
    let triggers = caps.triggers.iter().map(|cap| (cap.pattern.clone(), Some(cap.most)));
    assert_eq!(
        triggers.collect::<Vec<_>>(),
        [("cli".to_owned(), dollars(5)), ("webhook:*".to_owned(), dollars(6))]
    );
}

#[test]
fn nothing_at_all_is_a_configuration() {
    let settings = settings("");
    assert_eq!(settings.server.listen.port(), 7717);
    assert_eq!(settings.run.output_bytes, 30 << 10);
    assert!(settings.models.is_empty() && settings.server.model.is_none());
    let (sandbox, limits) = (&settings.sandbox, sandbox::Limits::default());
    assert_eq!(
        (
            sandbox.cpu_millis,
            sandbox.memory_bytes,
            sandbox.processes,
            sandbox.disk_bytes
        ),
        (limits.cpu_millis, limits.memory_bytes, limits.pids, limits.disk_bytes)
    );
}

#[test]
fn every_kind_of_value_is_read() {
    let settings = settings(
        r#"
        [sandbox]
        cpu = 0.5
        memory = "512MiB"
        placement = "control-plane"
        freeze_after = "90s"
        [budget]
        run = 0.05
        triggers = { cli = 20, "webhook:*" = 0.5 }
        [models.large]
        provider = "anthropic"
        model = "claude"
        key = "env:SOME_KEY"
        headers = { x-team = "data" }
        window = 200_000
        max_output = 32000
        price = { input = 3.00, output = 15, cache_read = 0.075 }
        "#,
    );
    assert_eq!(
        (settings.sandbox.cpu_millis, settings.sandbox.memory_bytes),
        (500, 512 << 20)
    );
    assert_eq!(settings.sandbox.placement, domain::Placement::ControlPlane);
    assert_eq!(settings.budget.run, Some(domain::Money(50_000_000)));
    let triggers = [("cli", 20_000_000_000), ("webhook:*", 500_000_000)];
    assert_eq!(
        settings.budget.triggers,
        triggers
            .map(|(pattern, most)| (pattern.to_owned(), domain::Money(most)))
            .into()
    );
    let model = &settings.models["large"];
    let price = model.price.expect("a price");
    assert_eq!((price.input, price.output, price.cache_read), (3_000, 15_000, Some(75)));
    assert_eq!((model.provider, model.window), (Provider::Anthropic, 200_000));
    assert_eq!(model.key, Some(Reference::Environment("SOME_KEY".into())));
    assert_eq!(
        settings.references(),
        [("models.large.key".to_owned(), Reference::Environment("SOME_KEY".into()))]
    );
    assert_eq!(settings.server.model.as_deref(), Some("large"));
}

/// Each wrong file, and a part of what is said of it.
const MISTAKES: &[(&str, &str)] = &[
    (
        "[server]\nlisten = \"localhost\"",
        "line 2: server.listen is \"localhost\": write an address and a port",
    ),
    (
        "[server]\nlistne = \"127.0.0.1:1\"",
        "line 2: unknown key server.listne: did you mean server.listen?",
    ),
    (
        "[sever]\nlisten = \"127.0.0.1:1\"",
        "line 1: unknown key sever: did you mean server?",
    ),
    (
        "[quark]\n",
        "line 1: unknown key quark: docs/configuration.md lists every key",
    ),
    ("server = 3", "line 1: server is a table: write [server]"),
    (
        "[server]\ndata = \"here\"",
        "line 2: server.data is \"here\": write a path that begins with /",
    ),
    ("[server]\nlog = \"xml\"", "write one of \"plain\" or \"json\""),
    ("[server]\nlog_level = \"lou=d=er\"", "line 2: server.log_level"),
    ("[server]\nmodel = \"large\"", "server.model names \"large\""),
    (
        "[sandbox]\ncpu = -1",
        "line 2: sandbox.cpu is -1: write a decimal number",
    ),
    ("[sandbox]\ncpu = 0", "sandbox.cpu is out of range"),
    ("[sandbox]\nmemory = 512", "line 2: sandbox.memory is 512: write a size"),
    ("[sandbox]\nmemory = \"1MiB\"", "sandbox.memory is too little"),
    ("[sandbox]\nmemory = \"99999999999GiB\"", "write a size"),
    (
        "[sandbox.warm]\nleast = 5",
        "sandbox.warm.least is more than sandbox.warm.most",
    ),
    (
        "[sandbox]\nfreeze_after = \"2h\"",
        "sandbox.freeze_after is longer than sandbox.hibernate_after",
    ),
    (
        "[sandbox]\nprocesses = 1.5",
        "line 2: sandbox.processes is 1.5: write a whole number from 16 to 1000000",
    ),
    ("[sandbox]\nprocesses = true", "line 2: sandbox.processes is true"),
    (
        "[run]\ntime = \"1 hour\"",
        "line 2: run.time is \"1 hour\": write a duration",
    ),
    (
        "[budget]\nrun = \"much\"",
        "line 2: budget.run is \"much\": write an amount of dollars",
    ),
    ("[budget]\nrun = 1e3", "line 2: budget.run is 1e3"),
    (
        "[budget.triggers]\ncli = \"5.00\"",
        "budget.triggers is a table: write a table of amounts of dollars",
    ),
    (
        "[budget.triggers]\ncli = -5.00",
        "budget.triggers is a table: write a table of amounts",
    ),
    (
        "[budget]\ntriggers = { \"webhok:*\" = 5.00 }",
        "line 2: budget.triggers has \"webhok:*\", and there is no door \"webhok\": write one of api, cli,",
    ),
    ("[budget]\nrun = 1979-05-27", "line 2: budget.run is a date"),
    ("[models.a]\n", "line 1: models.a lacks provider"),
    ("[models.a]\nprovider = \"anthropic\"", "models.a lacks window"),
    (
        "[models.a]\nprovider = \"anthropic\"\nkey = \"sk-ant-123\"",
        "line 3: models.a.key is a text that is no reference: write a reference",
    ),
    ("[models.a]\nprovider = \"scripted\"", "models.a lacks script"),
    (
        "[models.a]\nprovider = \"openai-chat\"\nbase_url = \"ftp://x\"",
        "line 3: models.a.base_url",
    ),
    (
        "[models.a]\nproviders = \"anthropic\"",
        "line 2: unknown key models.a.providers: did you mean models.a.provider?",
    ),
    ("[models.a.price]\ninput = 3.0", "models.a.price lacks output"),
    (
        "[models.a.price]\ninput = 3.00000001\noutput = 1",
        "line 2: models.a.price.input",
    ),
    ("[models.a.headers]\n\"no header\" = \"x\"", "which is no HTTP header"),
    ("[models.\"a.b\"]\nprovider = \"anthropic\"", "is no name for a model"),
    (
        "[models.a]\nfallback = [\"b\"]\nprovider=\"anthropic\"\nwindow=2000\nmax_output=100",
        "line 2: models.a.fallback names \"b\"",
    ),
    (
        "[models.a]\nprovider=\"anthropic\"\nwindow=2000\nmax_output=2000",
        "fills the whole window",
    ),
    (
        "[budget]\nrun=1.0\n[models.a]\nprovider=\"anthropic\"\nwindow=2000\nmax_output=100",
        "line 3: models.a has no price and [budget] has a cap",
    ),
    (
        "[models.a]\nprovider = \"openai\"\nthinking_budget = 4000",
        "line 3: models.a.thinking_budget is for models of anthropic",
    ),
    (
        "[models.a]\nprovider = \"anthropic\"\nthinking = \"low\"\nthinking_budget = 4000",
        "line 4: models.a.thinking_budget and thinking are both given",
    ),
    (
        "[models.a]\nprovider = \"anthropic\"\nmax_output = 4000\nthinking_budget = 4000",
        "line 4: models.a.thinking_budget leaves no room for words",
    ),
    (
        "[secrets]\npassphrase = \"store:other\"",
        "line 2: secrets.passphrase cannot lie in a store or a vault",
    ),
    (
        "[secrets]\nkey_file = \"/k\"\npassphrase = \"env:P\"",
        "line 3: secrets.passphrase and secrets.key_file are both given",
    ),
    (
        "[vault]\naddress = \"https://vault.example\"",
        "line 2: vault.address is given without one way to log in",
    ),
    (
        "[vault]\naddress = \"https://vault.example\"\ntoken = \"env:T\"\nrole_id = \"env:R\"\nsecret_id = \"env:S\"",
        "line 2: vault.address is given without one way to log in",
    ),
    (
        "[vault]\ntoken = \"vault:a#b\"",
        "line 2: vault.token cannot lie in a store or a vault",
    ),
    ("[vault]\nrefresh = \"1ms\"", "line 2: vault.refresh is too short"),
    ("[vault]\napprole = \"a b\"", "line 2: vault.approle is no mount"),
    (
        "[services.crm]\nconcurrency = 3\nconcurency = 3",
        "line 3: services.crm: unknown field `concurency`, expected one of",
    ),
    ("[services]\ncrm = 3", "services.crm"),
    (
        "[egress.rules.code]\nhosts = [\"*.co.uk\"]",
        "line 2: egress.rules.code",
    ),
    ("[egress.rules.code]\nhost = [\"code.example\"]", "unknown field `host`"),
    (
        "[egress]\nidle = \"1h\"\n[egress.rules.code]\nhosts = [\"code.example\"]\nschemes = [\"tcp\"]\nmethods = [\"GET\"]",
        "line 3: egress.rules.code: `tcp` passes bytes that nobody reads",
    ),
    ("[server]\nlisten = ", "line 2: this is not TOML"),
    (
        "[server]\ndrain = \"1s\"\ndrain = \"2s\"",
        "line 3: this is not TOML: duplicate key",
    ),
];

#[test]
fn each_mistake_is_said_with_its_line() {
    for (text, expected) in MISTAKES {
        let found = mistakes(text);
        assert!(
            found.iter().any(|mistake| mistake.contains(expected)),
            "{text}\nexpected {expected}\nfound {found:#?}"
        );
    }
}

#[test]
fn all_mistakes_are_reported_at_once_and_in_order() {
    let found = mistakes("[server]\nlisten = 1\nfoo = 2\n[sandbox]\ncpu = \"x\"\n[models.a]\nprovider = \"b\"\n");
    let lines: Vec<&str> = found
        .iter()
        .map(|mistake| mistake.split(':').next().unwrap_or_default())
        .collect();
    assert_eq!(
        lines,
        ["line 2", "line 3", "line 5", "line 6", "line 6", "line 7"],
        "{found:#?}"
    );
}

#[test]
fn a_mistake_never_shows_what_may_be_a_secret() {
    for text in [
        "[models.a]\nkey = \"sk-ant-123\"",
        "[vault]\ntoken = \"sk-ant-123\"",
        "[services.crm]\nconcurrency = \"sk-ant-123\"",
        "[services.crm]\nauth = \"sk-ant-123\"",
    ] {
        let said = mistakes(text).concat();
        assert!(!said.contains("sk-ant"), "{said}");
    }
}

#[test]
fn every_kind_of_reference_is_taken_and_a_vault_needs_a_login() {
    let settings = settings(
        r#"
        [models.a]
        provider = "anthropic"
        key = "vault:secret/team/models#anthropic"
        window = 200000
        max_output = 32000
        thinking_budget = 8000
        [secrets]
        passphrase = "file:/run/passphrase"
        [vault]
        address = "https://vault.example:8200"
        role_id = "env:ROLE"
        secret_id = "file:/run/id"
        "#,
    );
    assert_eq!(settings.models["a"].thinking_budget, Some(8_000));
    assert_eq!(
        settings.models["a"].key.as_ref().map(ToString::to_string).as_deref(),
        Some("vault:secret/team/models#anthropic")
    );
    let login = settings.vault.as_ref().map(|vault| vault.login.clone());
    let reference = |text: &str| text.parse::<Reference>().expect("a reference");
    let role = Login::AppRole {
        mount: "approle".into(),
        role: reference("env:ROLE"),
        secret: reference("file:/run/id"),
    };
    assert_eq!(login, Some(role));
    let openings: Vec<_> = settings.openings().into_iter().map(|(key, _)| key).collect();
    assert_eq!(openings, ["secrets.passphrase", "vault.role_id", "vault.secret_id"]);
    // The models' keys are known of them; a role's id says who somebody is.
    let withheld = settings.withheld();
    assert_eq!(withheld, [reference("file:/run/id"), reference("file:/run/passphrase")]);
}

#[test]
fn the_environment_wins_and_its_mistakes_are_named() {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let good = [
        variable("BELLJAR_SERVER_LISTEN", "127.0.0.1:1"),
        variable("BELLJAR_SANDBOX_PROCESSES", "70"),
        variable("BELLJAR_TOKEN", "x"),
    ];
    let settings = check(Raw::of("[server]\nlisten = \"127.0.0.1:2\"", &good))
        .settings
        .expect("settings");
    assert_eq!((settings.server.listen.port(), settings.sandbox.processes), (1, 70));

    let bad = [
        variable("BELLJAR_SANDBOX_PROCESES", "70"),
        variable("BELLJAR_RUN_STEPS", "many"),
    ];
    let mistakes = check(Raw::of("", &bad)).settings.expect_err("mistakes");
    assert!(
        mistakes[0]
            .to_string()
            .contains("did you mean BELLJAR_SANDBOX_PROCESSES?"),
        "{mistakes:?}"
    );
    assert!(
        mistakes[1]
            .to_string()
            .starts_with("BELLJAR_RUN_STEPS: run.steps is many"),
        "{mistakes:?}"
    );
}

#[test]
fn a_renamed_key_is_understood_with_a_warning() {
    let renamed = [
        Renamed {
            old: "server.port",
            new: "server.listen",
        },
        Renamed {
            old: "pool",
            new: "sandbox",
        },
    ];
    let checked = check(Raw::read(
        "[server]\nport = \"127.0.0.1:9\"\n[pool]\nprocesses = 30",
        &[],
        &renamed,
    ));
    let settings = checked.settings.expect("settings");
    assert_eq!((settings.server.listen.port(), settings.sandbox.processes), (9, 30));
    assert_eq!(checked.warnings[0].place, Place::Line(2));
    assert_eq!(
        checked.warnings[0].text,
        "server.port is now called server.listen; the old name goes with the next release"
    );

    let twice = check(Raw::read(
        "[server]\nlisten = \"127.0.0.1:8\"\nport = \"127.0.0.1:9\"",
        &[],
        &renamed,
    ));
    assert!(twice.settings.expect_err("a mistake")[0].text.contains("given twice"));
}

/// The example with every key uncommented is a configuration: each default and example is valid for its key.
#[test]
fn every_default_and_example_is_valid() {
    let uncommented: String = example()
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.starts_with('[') || is_setting(rest))
                .unwrap_or(line)
        })
        .filter(|line| !line.contains("One of") && !line.starts_with("fallback") && !line.starts_with("model = \"\""))
        // There is one key of the store, one login of the vault, one way to say how much to think, and git and SSH in rules of their own.
        .filter(|line| !["passphrase", "token =", "thinking =", "git =", "ssh ="].iter().any(|start| line.starts_with(start)))
        .fold(String::new(), |text, line| text + line + "\n");
    let found = check(Raw::of(&uncommented, &[]));
    let settings = found
        .settings
        .unwrap_or_else(|mistakes| panic!("{}\n{uncommented}", listed("the example", &mistakes)));
    assert_eq!(settings.models.len(), 1);
    assert_eq!(
        SECTIONS.iter().map(|section| section.keys.len()).sum::<usize>(),
        example()
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| is_setting(line))
            .count()
    );
}

/// Whether a line gives a key a value; what is said of a key may have the sign in it too.
fn is_setting(line: &str) -> bool {
    line.split_once(" = ").is_some_and(|(key, _)| {
        key.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "._".contains(letter))
    })
}

/// Both files are made by the code. `BLESS=1 cargo test -p belljar` writes them anew.
#[test]
fn the_example_and_the_manual_are_the_codes_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, made) in [("belljar.example.toml", example()), ("docs/configuration.md", manual())] {
        let path = root.join(path);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &made).expect("write");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == made,
            "{} differs from the code: run BLESS=1 cargo test -p belljar",
            path.display()
        );
    }
}
