//! One harmless call of each service that ships, to the vendor itself, with the key of whoever runs it.
//!
//! Nothing is sent unless the variables that a call needs are set; CONTRIBUTING.md lists them. Every call reads.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::belljar;

/// A service, and what is asked of it.
struct Live {
    service: &'static str,
    /// What its keys are bound to, as it stands in the configuration; `$NAME` is a variable that must be set.
    bound: &'static str,
    method: &'static str,
    arguments: &'static str,
}

const LIVE: [Live; 14] = [
    Live {
        service: "billing",
        bound: "[services.billing.auth]\ntoken = \"$LIVE_STRIPE\"",
        method: "getBalance",
        arguments: "{}",
    },
    Live {
        service: "chat",
        bound: "[services.chat.auth]\ntoken = \"$LIVE_SLACK\"",
        method: "listChannels",
        arguments: r#"{"limit": 1}"#,
    },
    Live {
        service: "code",
        bound: "[services.code.auth]\ntoken = \"$LIVE_GITHUB\"",
        method: "getRepository",
        arguments: r#"{"owner": "rust-lang", "repo": "rust"}"#,
    },
    Live {
        service: "crm",
        bound: "[services.crm.auth]\ntoken = \"$LIVE_HUBSPOT\"",
        method: "listOwners",
        arguments: r#"{"limit": 1}"#,
    },
    Live {
        service: "docs",
        bound: "[services.docs.auth]\ntoken = \"$LIVE_NOTION\"",
        method: "listUsers",
        arguments: r#"{"page_size": 1}"#,
    },
    Live {
        service: "issues",
        bound: "[services.issues.auth]\ntoken = \"$LIVE_LINEAR\"",
        method: "listTeams",
        arguments: r#"{"first": 1}"#,
    },
    Live {
        service: "meetings",
        bound: "[services.meetings.auth]\ntoken = \"$LIVE_CIRCLEBACK\"",
        method: "searchMeetings",
        arguments: r#"{"intent": "a test", "searchTerm": "belljar", "pageIndex": 0}"#,
    },
    Live {
        service: "nats",
        bound: "[services.nats]\nbase_url = \"$LIVE_NATS_URL\"\naddresses = [\"10.0.0.0/8\", \"127.0.0.0/8\"]",
        method: "getServer",
        arguments: "{}",
    },
    Live {
        service: "observability",
        bound: "[services.observability]\nbase_url = \"$LIVE_LOKI_URL\"\naddresses = [\"10.0.0.0/8\", \"127.0.0.0/8\"]\n\
                [services.observability.auth]\nuser = \"$LIVE_LOKI_USER\"\npassword = \"$LIVE_LOKI_PASSWORD\"",
        method: "listLabels",
        arguments: "{}",
    },
    Live {
        service: "support",
        bound: "[services.support.auth]\ntoken = \"$LIVE_PYLON\"",
        method: "listTags",
        arguments: "{}",
    },
    Live {
        service: "tinybird",
        bound: "[services.tinybird.auth]\ntoken = \"$LIVE_TINYBIRD\"",
        method: "listDatasources",
        arguments: "{}",
    },
    Live {
        service: "warehouse",
        bound: "[services.warehouse.auth]\nuser = \"$LIVE_POSTGRES_USER\"\npassword = \"$LIVE_POSTGRES_PASSWORD\"\n\
                [services.warehouse.database]\nengine = \"postgres\"\nhost = \"$LIVE_POSTGRES_HOST\"\nname = \"$LIVE_POSTGRES_NAME\"",
        method: "query",
        arguments: ONE,
    },
    Live {
        service: "warehouse",
        bound: "[services.warehouse.auth]\nuser = \"$LIVE_MYSQL_USER\"\npassword = \"$LIVE_MYSQL_PASSWORD\"\n\
                [services.warehouse.database]\nengine = \"mysql\"\nhost = \"$LIVE_MYSQL_HOST\"\nname = \"$LIVE_MYSQL_NAME\"",
        method: "query",
        arguments: ONE,
    },
    Live {
        service: "warehouse",
        bound: "[services.warehouse.auth]\naccount = \"$LIVE_SNOWFLAKE_ACCOUNT\"\nuser = \"$LIVE_SNOWFLAKE_USER\"\n\
                private_key = \"$LIVE_SNOWFLAKE_KEY\"\n[services.warehouse.database]\nengine = \"snowflake\"\n\
                host = \"$LIVE_SNOWFLAKE_HOST\"\nname = \"$LIVE_SNOWFLAKE_NAME\"",
        method: "query",
        arguments: ONE,
    },
];

const ONE: &str = r#"{"sql": "SELECT 1 AS one"}"#;

impl Live {
    /// The variables that it needs.
    fn variables(&self) -> Vec<&str> {
        let after = self.bound.split('$').skip(1);
        let named = after.filter_map(|rest| {
            rest.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'))
                .next()
        });
        named.collect()
    }

    /// What is bound, with values from somewhere: keys stay references, all else stands there.
    fn bound(&self, value: impl Fn(&str) -> String) -> String {
        let mut bound = self.bound.to_owned();
        for name in self.variables() {
            let is_place = ["_URL", "_HOST", "_NAME"].iter().any(|end| name.ends_with(end));
            let text = if is_place { value(name) } else { format!("env:{name}") };
            bound = bound.replace(&format!("\"${name}\""), &format!("{text:?}"));
        }
        bound
    }
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../services")
}

/// `belljar service call`, with a configuration of its own. What an MCP server says of its tools is approved first, in a copy: what ships
/// is only what was publicly known of them.
fn call(live: &Live, bound: &str, variables: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().expect("make a folder");
    let config = folder.path().join("belljar.toml");
    std::fs::write(
        &config,
        format!("[server]\ndata = {:?}\nuser = \"root\"\n{bound}\n", folder.path()),
    )
    .expect("write a configuration");
    let mut services = shipped();
    let run = |services: &Path, words: &[&str]| {
        let mut command = Command::new(belljar());
        command
            .arg("service")
            .args(words)
            .arg("--folder")
            .arg(services)
            .arg("--config")
            .arg(&config);
        command.envs(variables.iter().copied()).current_dir(folder.path());
        command.output().expect("run belljar")
    };
    if shipped().join(live.service).join("tools.json").exists() {
        services = folder.path().join("services");
        copy(&shipped().join(live.service), &services.join(live.service));
        let approved = run(&services, &["approve", live.service, "--yes"]);
        if !approved.status.success() {
            return approved;
        }
    }
    let method = format!("{}.{}", live.service, live.method);
    run(&services, &["call", &method, live.arguments])
}

/// Copies a folder with what is in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("make a folder");
    for entry in std::fs::read_dir(from).expect("list a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copy a file");
        }
    }
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn every_service_that_ships_answers_a_harmless_call_where_its_key_is_set() {
    let mut failed = Vec::new();
    for live in &LIVE {
        let missing: Vec<&str> = live
            .variables()
            .into_iter()
            .filter(|name| std::env::var_os(name).is_none())
            .collect();
        if !missing.is_empty() {
            println!("{} is left out: {} is not set", live.service, missing.join(", "));
            continue;
        }
        let output = call(live, &live.bound(|name| std::env::var(name).unwrap_or_default()), &[]);
        println!("{}.{}: {}", live.service, live.method, output.status);
        if !output.status.success() {
            failed.push(format!("{}: {}", live.service, words(&output)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_service_that_ships_has_such_a_call_which_reads_and_is_sent_nowhere_here() {
    let mut folders: Vec<String> = std::fs::read_dir(shipped())
        .expect("list the services")
        .flatten()
        .filter(|entry| entry.path().join("service.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    folders.sort();
    let mut tried = LIVE.map(|live| live.service.to_owned()).to_vec();
    tried.dedup();
    assert_eq!(folders, tried, "services without a live test, or the other way round");
    for live in &LIVE {
        let definition =
            std::fs::read_to_string(shipped().join(live.service).join("service.toml")).expect("read a definition");
        let method = definition.split(&format!("[methods.{}]\n", live.method)).nth(1);
        let method = method.unwrap_or_else(|| panic!("{} has no {}", live.service, live.method));
        let method = method.split("\n[methods.").next().unwrap_or_default();
        assert!(
            !method.contains("access = \"write\""),
            "{}.{} writes",
            live.service,
            live.method
        );
        // Nobody listens there: the call gets as far as that, or its arguments do not fit. Databases say in other words where
        // they are, and would have to be asked first what they understand.
        if definition.contains("\nkind = \"sql\"") {
            continue;
        }
        let mut bound = live.bound(|_| "http://127.0.0.1:9".to_owned());
        if !bound.contains("base_url = ") {
            bound = format!(
                "[services.{}]\nbase_url = \"http://127.0.0.1:9\"\naddresses = [\"127.0.0.0/8\"]\n{bound}",
                live.service
            );
        }
        let variables: Vec<(&str, &str)> = live
            .variables()
            .into_iter()
            .map(|name| (name, "a-key-of-a-test"))
            .collect();
        let said = words(&call(live, &bound, &variables));
        let unreached = ["upstream_unreachable", "no connection to 127.0.0.1:9"];
        assert!(
            unreached.iter().any(|words| said.contains(words)),
            "{}: {said}",
            live.service
        );
    }
}
