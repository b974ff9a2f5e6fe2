//! Whom the user's programs trust.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use link::server::Outfit;
use secret::Secret;
use serde_json::json;

use crate::handler::TOKEN;
use crate::jail::{Jail, words};
use crate::sandboxed::Sandboxed;

/// Text in the form of a certificate, which is all that matters here.
fn certificate(content: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
}

/// With keys of SSH hosts.
fn knowing(known_hosts: &str) -> Outfit {
    Outfit {
        known_hosts: known_hosts.to_owned(),
        ..outfit("")
    }
}

fn outfit(authorities: &str) -> Outfit {
    Outfit {
        environment: BTreeMap::from([("PIP_CERT".to_owned(), "/own".to_owned())]),
        authorities: authorities.to_owned(),
        ..Outfit::default()
    }
}

#[tokio::test]
async fn programs_are_told_whom_to_trust_where_nothing_of_the_image_can_be_written() {
    let jail = Jail::claimed().await;
    let authorities = format!(
        "{}-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
        certificate("T25lLg==")
    );
    let token = Secret::new(TOKEN);
    let claim = jail.linked.claim(jail.session, &token, outfit(&authorities));
    testkit::within("the claim", claim).await.unwrap();
    let code = r"
const fs = require('node:fs');
const { SSL_CERT_FILE: bundle, NODE_EXTRA_CA_CERTS: more, CURL_CA_BUNDLE, GIT_SSL_CAINFO, PIP_CERT } = process.env;
const text = fs.readFileSync(bundle, 'utf8');
const image = fs.readFileSync('/etc/ssl/certs/ca-certificates.crt', 'utf8');
return [text.startsWith(image), text.includes('T25lLg=='), text.slice(image.length).split('\n'),
        CURL_CA_BUNDLE === bundle, GIT_SSL_CAINFO === bundle, more === bundle, PIP_CERT, fs.readdirSync('/run/belljar-trust'),
        [bundle, '/run/belljar-trust'].map(path => { try { fs.accessSync(path, 2); return 'writable' } catch { return 'safe' } })];
";
    let result = jail.call("exec", json!({ "code": code })).await;
    let text = serde_json::to_string(&json!([
        true,
        true,
        [
            "# The next certificates are of the control plane of this sandbox.",
            "-----BEGIN CERTIFICATE-----",
            "T25lLg==",
            "-----END CERTIFICATE-----",
            "# Until here.",
            ""
        ],
        true,
        true,
        true,
        "/own",
        ["bundle.pem"],
        ["safe", "safe"]
    ]));
    let expected = serde_json::to_string(&text.unwrap()).unwrap();
    assert!(words(&result).contains(&expected), "{result:?}");
}

/// What is prepared for whoever comes counts for the first claim, where that brings the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_finds_what_was_prepared_and_one_that_brings_others_is_obeyed() {
    for (claimed, expected, is_prepared) in [("T25lLg==", "[1,0,true]", true), ("VHdvLg==", "[0,1,true]", false)] {
        let jail = Jail::unclaimed().await;
        testkit::within("the connection", jail.linked.connected()).await;
        jail.linked.trust(certificate("T25lLg=="), String::new()).await.unwrap();
        let bundle = format!("/proc/{}/root/run/belljar-trust/bundle.pem", jail.pid);
        let number = || fs::metadata(&bundle).map(|metadata| metadata.ino());
        let prepared = testkit::eventually("the bundle to be prepared", || number().ok());
        let token = Secret::new(TOKEN);
        let claim = jail.linked.claim(jail.session, &token, outfit(&certificate(claimed)));
        testkit::within("the claim", claim).await.unwrap();
        let code = "const text = require('node:fs').readFileSync(process.env.SSL_CERT_FILE, 'utf8'); \
                    return [...['T25lLg==', 'VHdvLg=='].map(content => text.split(content).length - 1), process.env.PIP_CERT === '/own']";
        let result = jail.call("exec", json!({ "code": code })).await;
        assert!(words(&result).contains(expected), "{claimed}: {result:?}");
        assert_eq!(
            number().unwrap() == prepared,
            is_prepared,
            "{claimed}: whether the file is the same"
        );
    }
}

#[tokio::test]
async fn a_claim_with_other_authorities_replaces_those_before() {
    let sandbox = Sandboxed::new().await;
    let read = "const text = require('node:fs').readFileSync('/etc/ssl/certs/ca-certificates.crt', 'utf8'); \
                return ['T25lLg==', 'VHdvLg=='].map(content => text.split(content).length - 1)";
    for (contents, expected) in [
        (vec!["T25lLg=="], "[1,0]"),
        (vec!["T25lLg=="], "[1,0]"),
        (vec!["T25lLg==", "VHdvLg=="], "[1,1]"),
        (vec!["VHdvLg=="], "[0,1]"),
    ] {
        let authorities: String = contents.into_iter().map(certificate).collect();
        let token = Secret::new(TOKEN);
        let claim = sandbox.linked.claim(sandbox.session, &token, outfit(&authorities));
        testkit::within("the claim", claim).await.unwrap();
        let said = sandbox.exec(read).await;
        assert!(said.contains(expected), "{said}");
    }
    let left =
        sandbox.exec("return require('node:fs').readdirSync('/etc/ssl/certs').filter(name => name.includes('new'))");
    assert!(left.await.contains("[]"));
}

#[tokio::test]
async fn threat_015_the_keys_of_ssh_hosts_are_those_of_the_last_claim() {
    let sandbox = Sandboxed::new().await;
    let read = "try { return require('node:fs').readFileSync('/etc/ssh/ssh_known_hosts', 'utf8') } catch (error) { return error.code }";
    for (known_hosts, there, gone) in [
        ("* ssh-ed25519 T25l\n", "T25l", "VHdv"),
        ("* ssh-ed25519 VHdv\n", "VHdv", "T25l"),
        ("", "", "VHdv"),
    ] {
        let token = Secret::new(TOKEN);
        let claim = sandbox.linked.claim(sandbox.session, &token, knowing(known_hosts));
        testkit::within("the claim", claim).await.unwrap();
        let said = sandbox.exec(read).await;
        assert!(said.contains(there) && !said.contains(gone), "{known_hosts:?}: {said}");
    }
}
