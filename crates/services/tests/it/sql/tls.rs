//! Servers that are asked encrypted, or not at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use secret::{Reference, Secret};
use serde_json::json;
use services::{Bound, Code, DatabaseSettings, Engine, Failure, ServiceSettings, TransportSecurity, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::trust;
use super::{Database, PASSWORD, catalogue, mariadb, postgres};
use crate::rig::guard;

fn open(user: &str, database: DatabaseSettings, trust: Trust) -> Database {
    let settings = ServiceSettings {
        auth: [("user", user), ("password", "store:password")]
            .map(|(slot, bound)| (slot.to_owned(), Bound::from(bound)))
            .into(),
        addresses: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        database: Some(DatabaseSettings {
            tls: TransportSecurity::Verify,
            ..database
        }),
        ..ServiceSettings::default()
    };
    let password: Reference = "store:password".parse().unwrap();
    let secrets = BTreeMap::from([(password, Secret::new(PASSWORD))]);
    Database::trusting(&catalogue("20s"), settings, Arc::new(secrets), guard(), trust)
}

async fn refused(user: &str, database: DatabaseSettings, trust: Trust) -> Failure {
    open(user, database, trust).query("SELECT 1 AS x").await.unwrap_err()
}

/// The server by a name that its certificate does not have.
fn renamed(database: DatabaseSettings) -> DatabaseSettings {
    DatabaseSettings {
        host: Some("localhost".to_owned()),
        ..database
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_asked_encrypted() {
    let database = open("reader", postgres::settings(), trust(true));
    assert_eq!(database.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
    assert_eq!(postgres::encrypted(), 1);
    for (settings, trust) in [
        (postgres::settings(), trust(false)),
        (renamed(postgres::settings()), trust(true)),
    ] {
        let failure = refused("reader", settings, trust).await;
        assert_eq!(failure.code, Code::BadCertificate, "{failure:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_is_asked_encrypted() {
    // The server knows this user over an encrypted connection alone.
    let database = open("guarded", mariadb::settings(), trust(true));
    assert_eq!(database.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
    let failure = Database::of(super::Fence::Whole, "guarded", mariadb::settings())
        .query("SELECT 1 AS x")
        .await;
    assert_eq!(failure.unwrap_err().code, Code::CredentialRefused);
    for (settings, trust) in [
        (mariadb::settings(), trust(false)),
        (renamed(mariadb::settings()), trust(true)),
    ] {
        let failure = refused("guarded", settings, trust).await;
        assert_eq!(failure.code, Code::BadCertificate, "{failure:?}");
    }
}

/// A server that offers no encryption hears neither name nor password.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_encryption_is_told_nothing() {
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let log = Arc::clone(&heard);
        let hearing = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            if engine == Engine::Postgres {
                // SSLRequest, and the answer of a server that knows none.
                let mut request = [0; 8];
                stream.read_exact(&mut request).await.unwrap();
                assert_eq!(request, [0, 0, 0, 8, 4, 210, 22, 47]);
                stream.write_all(b"N").await.unwrap();
            } else {
                stream.write_all(&greeting()).await.unwrap();
            }
            let mut rest = Vec::new();
            // It may be reset as well as closed.
            let _ = stream.read_to_end(&mut rest).await;
            log.lock().unwrap().extend(rest);
        };
        let settings = DatabaseSettings {
            engine: Some(engine),
            host: Some("127.0.0.1".to_owned()),
            port: Some(port),
            name: Some("shop".to_owned()),
            ..DatabaseSettings::default()
        };
        let (failure, ()) = tokio::join!(refused("reader", settings, trust(true)), hearing);
        assert_eq!(failure.code, Code::Unreachable, "{engine:?}: {failure:?}");
        let heard = heard.lock().unwrap();
        assert!(heard.is_empty(), "{engine:?}: {heard:?}");
    }
}

/// Of MySQL, protocol 41, with everything but encryption.
fn greeting() -> Vec<u8> {
    let mut greeting = vec![10];
    greeting.extend_from_slice(b"8.0.36\0");
    greeting.extend_from_slice(&[1, 0, 0, 0]);
    greeting.extend_from_slice(b"12345678\0");
    // Bit 11 is encryption.
    greeting.extend_from_slice(&[0xff, 0xf7, 45, 2, 0, 0xff, 0xff, 21]);
    greeting.extend_from_slice(&[0; 10]);
    greeting.extend_from_slice(b"123456789012\0mysql_native_password\0");
    let length = u8::try_from(greeting.len()).unwrap();
    [&[length, 0, 0, 0], &greeting[..]].concat()
}
