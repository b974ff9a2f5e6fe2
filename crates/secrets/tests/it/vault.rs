//! A vault that is asked again and again from behind.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::Tasks;
use secret::{Because, Credential, Unresolved};
use secrets::{EncryptedStore, Environment, KeyFrom, Local, Login, Secrets, Vault, VaultConfig, VaultError};
use serde_json::json;
use testkit::eventually_async;

use crate::vault_server::VaultServer;
use crate::{ask, reference, secret};

const CRM: &str = "vault:secret/team/crm#token";
const READ_CRM: &str = "GET secret/data/team/crm";

/// A source with a vault, whose tasks end with it.
struct Rig {
    server: VaultServer,
    source: Secrets,
    tasks: Tasks,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.tasks.stop().cancel();
    }
}

fn config(server: &VaultServer) -> VaultConfig {
    VaultConfig {
        address: server.address.clone(),
        plain_http: false,
        namespace: None,
        login: Login::Token(Credential::from(secret("good-token"))),
        refresh: Duration::from_millis(5),
        keep: Duration::from_secs(3_600),
        deadline: Duration::from_secs(20),
    }
}

impl Rig {
    fn new(server: VaultServer, change: impl FnOnce(&mut VaultConfig)) -> Self {
        let mut config = config(&server);
        change(&mut config);
        let tasks = Tasks::new();
        let store = EncryptedStore::new("/nowhere/secrets", KeyFrom::File("/nowhere/key".into()));
        let vault = Vault::start(config, &tasks).unwrap();
        Self {
            source: Secrets::new(Local::new(Environment::default()), store, Some(vault)),
            server,
            tasks,
        }
    }

    /// With a token of the CRM in it, already fetched.
    async fn with_crm(change: impl FnOnce(&mut VaultConfig)) -> Self {
        let server = VaultServer::start().await;
        let token = json!({ "token": "first", "port": 5432, "list": [1], "none": null });
        server.inside().versioned.insert("team/crm".to_owned(), Some(token));
        let rig = Self::new(server, change);
        rig.source.fetch(&[reference(CRM)]).await;
        rig
    }

    /// Until the answer is that.
    async fn until(&self, name: &str, wanted: &str) {
        eventually_async(&format!("{name} to be {wanted}"), async || {
            (ask(&self.source, name).ok()? == wanted).then_some(())
        })
        .await;
    }

    /// Until there is no answer for that reason.
    async fn until_none(&self, name: &str, because: Because) -> Unresolved {
        eventually_async(&format!("{name} to be {because:?}"), async || {
            ask(&self.source, name).err().filter(|error| error.because == because)
        })
        .await
    }

    /// Until the server was asked for it this many times more.
    async fn until_asked(&self, request: &str, more: usize) {
        let before = self.server.inside().count(request);
        eventually_async(request, async || {
            (self.server.inside().count(request) >= before + more).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn secrets_of_both_versions_are_there_once_they_were_fetched() {
    let rig = Rig::with_crm(|_| {}).await;
    rig.server
        .inside()
        .plain
        .insert("db".to_owned(), json!({ "password": "old but good" }));
    assert_eq!(ask(&rig.source, CRM).unwrap(), "first");
    assert_eq!(ask(&rig.source, "vault:secret/team/crm#port").unwrap(), "5432");
    for field in ["list", "none", "other"] {
        let error = ask(&rig.source, &format!("vault:secret/team/crm#{field}")).unwrap_err();
        assert_eq!(error.because, Because::Absent);
        assert!(
            error.to_string().contains("name one of its fields: port, token"),
            "{error}"
        );
    }
    // One that nobody named before is fetched at its first use.
    let error = ask(&rig.source, "vault:old/db#password").unwrap_err();
    assert!(
        error.because == Because::Unavailable && error.to_string().contains("is being fetched"),
        "{error}"
    );
    rig.until("vault:old/db#password", "old but good").await;
}

#[tokio::test]
async fn threat_068_what_is_changed_or_revoked_in_the_vault_counts_here() {
    let rig = Rig::with_crm(|_| {}).await;
    rig.server
        .inside()
        .versioned
        .insert("team/crm".to_owned(), Some(json!({ "token": "second" })));
    rig.until(CRM, "second").await;
    rig.server.inside().versioned.insert("team/crm".to_owned(), None);
    let error = rig.until_none(CRM, Because::Absent).await;
    assert!(error.to_string().contains("has nothing there"), "{error}");
    rig.server
        .inside()
        .versioned
        .insert("team/crm".to_owned(), Some(json!({ "token": "third" })));
    rig.until(CRM, "third").await;
    // What a policy takes away is gone as well, and so is all where the token is revoked.
    rig.server.inside().denied.insert("secret/data/team/crm".to_owned());
    let error = rig.until_none(CRM, Because::Absent).await;
    assert!(error.to_string().contains("status 403: permission denied"), "{error}");
    rig.server.inside().denied.clear();
    rig.until(CRM, "third").await;
    rig.server.inside().tokens.clear();
    let error = rig.until_none(CRM, Because::Unusable).await;
    assert!(
        error.to_string().contains("refuses the login") && !error.to_string().contains("good-token"),
        "{error}"
    );
}

#[tokio::test]
async fn a_thousand_requests_ask_the_vault_no_more_than_none() {
    let rig = Rig::with_crm(|config| config.refresh = Duration::from_secs(3_600)).await;
    for _ in 0..1_000 {
        assert_eq!(ask(&rig.source, CRM).unwrap(), "first");
    }
    let names: Vec<_> = ["token", "port", "list"]
        .map(|field| reference(&format!("vault:secret/team/crm#{field}")))
        .into();
    rig.source.fetch(&names).await;
    assert_eq!(rig.server.inside().count(READ_CRM), 1);
    assert_eq!(rig.server.inside().count("GET auth/token/lookup-self"), 1);
}

#[tokio::test]
async fn the_last_good_value_stays_while_the_vault_does_not_answer_and_no_longer() {
    let rig = Rig::with_crm(|_| {}).await;
    rig.server.inside().broken = Some(503);
    rig.until_asked(READ_CRM, 3).await;
    assert_eq!(ask(&rig.source, CRM).unwrap(), "first");

    let rig = Rig::with_crm(|config| config.keep = Duration::from_millis(100)).await;
    rig.until(CRM, "first").await;
    rig.server.inside().broken = Some(503);
    let error = rig.until_none(CRM, Because::Unavailable).await;
    let said = error.to_string();
    assert!(
        said.contains("Vault is sealed") || said.contains("has not answered for so long"),
        "{said}"
    );
    rig.server.inside().broken = None;
    rig.until(CRM, "first").await;
}

#[tokio::test]
async fn a_vault_that_is_not_there_holds_nobody_up() {
    let server = VaultServer::start().await;
    let rig = Rig::new(server, |config| config.address = "http://127.0.0.1:1".to_owned());
    rig.source.fetch(&[reference(CRM)]).await;
    let error = ask(&rig.source, CRM).unwrap_err();
    assert_eq!(error.because, Because::Unavailable);
    assert!(
        error.to_string().contains("the vault does not answer (no connection"),
        "{error}"
    );
}

#[tokio::test]
async fn a_role_logs_in_once_and_again_when_its_token_died() {
    let role = |config: &mut VaultConfig| {
        config.login = Login::AppRole {
            mount: "approle".to_owned(),
            role: Credential::from(secret("role-1")),
            secret: Credential::from(secret("secret-1")),
        };
    };
    let server = VaultServer::start().await;
    server.inside().roles.insert("role-1".to_owned(), "secret-1".to_owned());
    server.inside().tokens.clear();
    for name in ["a", "b", "c", "d"] {
        server
            .inside()
            .versioned
            .insert(name.to_owned(), Some(json!({ "key": name })));
    }
    let rig = Rig::new(server, role);
    let names = ["a", "b", "c", "d"].map(|name| reference(&format!("vault:secret/{name}#key")));
    rig.source.fetch(&names).await;
    assert_eq!(ask(&rig.source, "vault:secret/d#key").unwrap(), "d");
    let login = "POST auth/approle/login";
    assert_eq!(rig.server.inside().count(login), 1, "four paths wait for one login");

    rig.server.inside().tokens.clear();
    rig.server
        .inside()
        .versioned
        .insert("a".to_owned(), Some(json!({ "key": "anew" })));
    rig.until("vault:secret/a#key", "anew").await;
    rig.until_asked("GET secret/data/d", 2).await;
    assert_eq!(rig.server.inside().count(login), 2, "and for the second");
    // A path that is denied is not a token that died.
    rig.server.inside().denied.insert("secret/data/b".to_owned());
    rig.until_none("vault:secret/b#key", Because::Absent).await;
    rig.until_asked("GET secret/data/b", 3).await;
    assert_eq!(rig.server.inside().count(login), 2);

    rig.server.inside().roles.clear();
    rig.server.inside().tokens.clear();
    let error = rig.until_none("vault:secret/a#key", Because::Unusable).await;
    assert!(
        error.to_string().contains("invalid role or secret ID") && !error.to_string().contains("secret-1"),
        "{error}"
    );
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_and_read_anew_when_it_was_changed() {
    let server = VaultServer::start().await;
    server.inside().tokens.insert("short".to_owned(), 1);
    server
        .inside()
        .versioned
        .insert("a".to_owned(), Some(json!({ "key": "a" })));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let write = |token: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&path, token).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("short\n");
    let token = Credential::asked(
        reference(&format!("file:{}", path.display())),
        Arc::new(Local::new(Environment::default())),
    );
    let rig = Rig::new(server, |config| config.login = Login::Token(token));
    let name = "vault:secret/a#key";
    rig.source.fetch(&[reference(name)]).await;
    assert_eq!(ask(&rig.source, name).unwrap(), "a");
    rig.until_asked("POST auth/token/renew-self", 1).await;

    rig.server.inside().tokens.insert("another".to_owned(), 0);
    write("another");
    rig.server.inside().tokens.remove("short");
    rig.server
        .inside()
        .versioned
        .insert("a".to_owned(), Some(json!({ "key": "b" })));
    rig.until(name, "b").await;
    std::fs::remove_file(&path).unwrap();
    let error = rig.until_none(name, Because::Unusable).await;
    assert!(
        error.to_string().contains("nobody can log in") && error.to_string().contains("there is no such file"),
        "{error}"
    );
}

const DATABASE: &str = "vault:database/creds/app#password";
const MAKE: &str = "GET database/creds/app";

#[tokio::test]
async fn a_lease_is_kept_renewed_and_replaced_when_it_was_revoked() {
    let server = VaultServer::start().await;
    let rig = Rig::new(server, |_| {});
    rig.source.fetch(&[reference(DATABASE)]).await;
    assert_eq!(ask(&rig.source, DATABASE).unwrap(), "made-1");
    assert_eq!(
        ask(&rig.source, "vault:database/creds/app#username").unwrap(),
        "v-app-1"
    );
    rig.until_asked("PUT sys/leases/lookup", 3).await;
    assert_eq!(
        rig.server.inside().count(MAKE),
        1,
        "each read would make another user of the database"
    );

    rig.server.inside().leases.clear();
    rig.until(DATABASE, "made-2").await;
    assert_eq!(rig.server.inside().count(MAKE), 2);
    // Its role is taken away together with its lease.
    rig.server.inside().denied.insert("database/creds/app".to_owned());
    rig.server.inside().leases.clear();
    rig.until_none(DATABASE, Because::Absent).await;
}

#[tokio::test]
async fn a_lease_lives_on_by_its_renewals_and_ends_where_it_has_none() {
    let server = VaultServer::start().await;
    server.inside().lasts = 1;
    let rig = Rig::new(server, |_| {});
    rig.source.fetch(&[reference(DATABASE)]).await;
    rig.until_asked("PUT sys/leases/renew", 2).await;
    assert_eq!(ask(&rig.source, DATABASE).unwrap(), "made-1");
    // One that cannot be renewed is replaced before it ends.
    rig.server.inside().renewable = false;
    rig.until(DATABASE, "made-2").await;
    // And when the vault is gone, nothing outlives its lease.
    rig.server.inside().broken = Some(500);
    rig.until_none(DATABASE, Because::Unavailable).await;
}

#[tokio::test]
async fn who_may_not_look_at_leases_hears_of_a_revocation_at_the_next_renewal() {
    let server = VaultServer::start().await;
    server.inside().lasts = 1;
    server.inside().denied.insert("sys/leases/lookup".to_owned());
    let rig = Rig::new(server, |_| {});
    rig.source.fetch(&[reference(DATABASE)]).await;
    assert_eq!(ask(&rig.source, DATABASE).unwrap(), "made-1");
    rig.server.inside().leases.clear();
    rig.until(DATABASE, "made-2").await;
    assert_eq!(rig.server.inside().count(MAKE), 2);
}

#[tokio::test]
async fn the_namespace_goes_along() {
    let rig = Rig::with_crm(|config| config.namespace = Some("team".to_owned())).await;
    assert!(ask(&rig.source, CRM).is_err());
    rig.server.inside().namespace = Some("team".to_owned());
    rig.until(CRM, "first").await;
}

#[tokio::test]
async fn an_address_that_would_give_the_token_away_is_refused() {
    let server = VaultServer::start().await;
    let at = |address: &str, plain_http| {
        let config = VaultConfig {
            address: address.to_owned(),
            plain_http,
            ..config(&server)
        };
        Vault::start(config, &Tasks::new()).map(|_| ())
    };
    for address in [
        "https://vault.example:8200",
        "http://127.0.0.1:8200",
        "http://[::1]:8200",
        "http://localhost:8200/",
    ] {
        at(address, false).unwrap();
    }
    for address in [
        "http://10.0.0.1:8200",
        "http://localhost.example",
        "http://127.0.0.1.example",
    ] {
        assert!(matches!(at(address, false), Err(VaultError::PlainHttp)), "{address}");
        at(address, true).unwrap();
    }
    for address in [
        "vault",
        "ftp://vault.example",
        "https://me:pw@vault.example",
        "https://vault.example/v1",
        "https://vault.example?a",
    ] {
        let error = at(address, true).unwrap_err();
        assert!(
            matches!(error, VaultError::Address) && !error.to_string().contains("pw"),
            "{address}"
        );
    }
}

#[tokio::test]
async fn a_redirect_takes_the_token_nowhere() {
    let rig = Rig::with_crm(|_| {}).await;
    rig.server.inside().broken = Some(307);
    let error = {
        let rig = Rig::new(VaultServer::start().await, |_| {});
        rig.server.inside().broken = Some(307);
        rig.source.fetch(&[reference(CRM)]).await;
        ask(&rig.source, CRM).unwrap_err()
    };
    assert!(error.to_string().contains("not ready (status 307"), "{error}");
}
