//! Programs that nobody prepared, inside, against hosts outside that want a key which they do not have: captured, over the
//! link, through the real broker. Each trusts what the runtime told it to trust.

use std::path::Path;

use domain::RunLimits;
use link::server::Outfit;
use secret::Secret;
use serde_json::{Value, json};

use crate::handler::TOKEN;
use crate::jail::{Jail, exec, words};
use outside::Outside;
use testkit::clients::{self, CLIENTS, KEY};

pub(crate) mod outside;

/// A jail whose root is this machine's programs, and a way out of it.
async fn jail() -> Jail {
    let miniature = testkit::miniature();
    let built = tokio::task::spawn_blocking(clients::built).await.unwrap();
    let node = miniature.rootfs().join("usr/local/bin");
    let options = format!(
        "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib \
         --symlink usr/lib64 /lib64 --bind $JAIL/etc /etc --ro-bind {} /node --ro-bind {} /clients \
         --ro-bind {} /built --perms 1777 --tmpfs /tmp",
        node.display(),
        clients::brought().display(),
        built.display()
    );
    let jail = Jail::with_root(&options, prepare).await;
    let outside = Outside::new(jail.session, &jail.folder().join("outside"), &jail.handler.tasks).await;
    let certificates = jail.folder().join("etc/ssl/certs/ca-certificates.crt");
    let text = std::fs::read_to_string(&certificates).unwrap_or_default();
    std::fs::write(&certificates, format!("{text}{}", outside.upstream_authority())).unwrap();
    let mut environment = protocol::placeholders();
    environment.extend([
        ("PYTHONPATH".to_owned(), "/clients/python".to_owned()),
        ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
        (
            "PATH".to_owned(),
            "/node:/clients/bin:/usr/local/bin:/usr/bin:/bin".to_owned(),
        ),
    ]);
    let outfit = Outfit {
        environment,
        authorities: outside.authorities(),
        ..Outfit::default()
    };
    assert!(jail.handler.outside.set(outside).is_ok());
    let token = Secret::new(TOKEN);
    let claim = jail.linked.claim(jail.session, &token, outfit);
    testkit::within("the claim", claim).await.unwrap();
    jail
}

/// What the programs need of this machine's /etc.
fn prepare(folder: &Path) {
    let etc = folder.join("etc");
    let outside = folder.join("outside");
    for folder in [etc.join("ssl"), outside.clone()] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let copy = "cp -a /etc/alternatives /etc/ld.so.* /etc/java-* /etc/mime.types \"$0\" 2>/dev/null; \
                cp -a /etc/ssl/certs /etc/ssl/openssl.cnf \"$0/ssl\"; true";
    let mut command = std::process::Command::new("sh");
    testkit::run(command.args(["-c", copy]).arg(&etc));
    for (name, text) in [
        (
            "passwd",
            "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/workspace:/bin/sh\n",
        ),
        ("group", "root:x:0:\nagent:x:1000:\n"),
        ("nsswitch.conf", "passwd: files\nhosts: files dns\n"),
        ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("resolv.conf", ""),
    ] {
        std::fs::write(etc.join(name), text).unwrap();
    }
    clients::furnish(&outside);
}

/// Runs a shell script as a tool does, with the environment that users' programs have.
async fn run(jail: &Jail, script: &str) -> String {
    let code = format!(
        "const run = require('node:child_process').spawnSync('sh', ['-c', {}], {{ encoding: 'utf8' }}); \
         return run.stdout + run.stderr",
        Value::from(script)
    );
    let limits = RunLimits {
        tool_seconds: 100,
        ..RunLimits::default()
    };
    let call = jail.linked.call(exec("1", &code), limits);
    let result = tokio::time::timeout(std::time::Duration::from_secs(120), call).await;
    words(&result.unwrap().unwrap())
}

#[tokio::test]
async fn every_client_reaches_a_host_with_a_key_that_it_does_not_have() {
    let jail = jail().await;
    let mut failed = Vec::new();
    for client in CLIENTS {
        let said = run(&jail, client.script).await;
        assert!(!said.contains(KEY), "{} was told the key", client.name);
        if !said.contains(client.says) {
            failed.push(format!("{}: {said}", client.name));
        }
        if let Some((script, says)) = client.unread() {
            let said = run(&jail, &script).await;
            if !said.contains(&says) {
                failed.push(format!("{}, unread: {said}", client.name));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "scripts/prepare tests brings what is lacking\n{}",
        failed.join("\n")
    );
    assert!(
        jail.handler.outside.get().unwrap().pushed().exists(),
        "nothing was pushed"
    );
}

#[tokio::test]
async fn a_client_with_a_pinned_certificate_is_served_where_nothing_is_read_and_fails_closed_elsewhere() {
    let jail = jail().await;
    let pinned = "SSL_CERT_FILE= CURL_CA_BUNDLE= curl -sS --cacert /tmp/upstream.pem";
    let authority = json!(jail.handler.outside.get().unwrap().upstream_authority());
    let write = format!("node -e 'require(`fs`).writeFileSync(`/tmp/upstream.pem`, {authority})'");
    run(&jail, &write).await;
    let said = run(&jail, &format!("{pinned} https://pass.client.test/x")).await;
    assert!(said.contains("welcome to pass.client.test/x"), "{said}");
    let said = run(&jail, &format!("{pinned} https://api.client.test/x")).await;
    assert!(!said.contains("welcome") && said.contains("certificate"), "{said}");
}

#[tokio::test]
async fn a_host_without_a_rule_is_denied_and_the_proxy_says_why() {
    let jail = jail().await;
    let said = run(&jail, "curl -sS https://elsewhere.test/").await;
    assert!(said.contains("Could not resolve"), "{said}");
    let said = run(
        &jail,
        "curl -sS -x http://127.0.0.1:3128 http://elsewhere.test/; curl -sS -x http://127.0.0.1:3128 http://192.0.2.1/",
    )
    .await;
    assert_eq!(said.matches("no_rule").count(), 2, "{said}");
    assert!(said.contains("remedy"), "{said}");
}
