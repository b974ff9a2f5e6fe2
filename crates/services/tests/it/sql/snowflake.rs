//! Snowflake's SQL API, as its reference describes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::response::Response;
use secret::{Reference, Secret};
use serde_json::{Value, json};
use services::{Bound, Code, DatabaseSettings, Engine, ServiceSettings, TransportSecurity};

use super::{Database, catalogue};
use crate::rig::guard;

/// What was asked: verb, target, body.
type Asked = Arc<Mutex<Vec<(String, String, Value)>>>;

/// A role, and what else counts.
type Role = Arc<Mutex<(&'static str, &'static str)>>;

/// An account that runs every statement late, and gives it in two partitions.
async fn account() -> (u16, Asked) {
    account_of(Arc::new(Mutex::new(("READING", r#"{"roles":"","value":""}"#)))).await
}

/// The same, of this role.
async fn account_of(role: Role) -> (u16, Asked) {
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let app = Router::new().fallback(move |request: Request| {
        let (log, role) = (Arc::clone(&log), Arc::clone(&role));
        async move {
            let (head, body) = request.into_parts();
            assert_eq!(head.headers["x-snowflake-authorization-token-type"], "KEYPAIR_JWT");
            assert!(head.headers["authorization"].to_str().unwrap().starts_with("Bearer ey"));
            let body: Bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let target = head.uri.path_and_query().unwrap().to_string();
            log.lock().unwrap().push((head.method.to_string(), target.clone(), body.clone()));
            let handle = "01b2c3d4-0000-0001-0000-000000000001";
            let late = json!({ "code": "333334", "message": "Asynchronous execution in progress.", "statementHandle": handle });
            let endless = json!({ "code": "333334", "message": "Asynchronous execution in progress.", "statementHandle": "01b2c3d4-0000-0001-0000-000000000002" });
            let kinds = json!([
                { "name": "ID", "type": "fixed", "scale": 0 }, { "name": "AT", "type": "timestamp_ntz" }, { "name": "DAY", "type": "date" },
                { "name": "DOC", "type": "variant" }, { "name": "OK", "type": "boolean" }, { "name": "RAW", "type": "binary" },
            ]);
            let first = json!({
                "code": "090001", "message": "Statement executed successfully.", "statementHandle": handle,
                "resultSetMetaData": { "numRows": 2, "format": "jsonv2", "rowType": kinds, "partitionInfo": [{ "rowCount": 1 }, { "rowCount": 1 }] },
                "data": [["9007199254740993", "1769860800.500000000", "20484", "{\"a\":1}", "true", "DEADBEEF"]],
            });
            let (name, beside) = *role.lock().unwrap();
            let of_role = json!({
                "statementHandle": handle,
                "resultSetMetaData": { "rowType": [{ "name": "A", "type": "text" }, { "name": "B", "type": "text" }] },
                "data": [[name, beside]],
            });
            let (status, answer) = match (head.method.as_str(), &*target) {
                ("POST", _) if body["statement"].as_str().is_some_and(|text| text.contains("CURRENT_ROLE()")) => (200, of_role),
                ("POST", _) if body["statement"].as_str().is_some_and(|text| text.contains("NOTHERE")) => (
                    422,
                    json!({ "code": "002003", "message": "SQL compilation error:\nObject 'NOTHERE' does not exist or not authorized.", "sqlState": "42S02", "statementHandle": handle }),
                ),
                // Whoever is told to stop has stopped.
                ("POST", target) if target.ends_with("/cancel") => (200, json!({ "code": "000604", "message": "successfully canceled", "statementHandle": handle })),
                ("POST", _) => (202, if body["statement"].as_str().is_some_and(|text| text.contains("ENDLESS")) { endless } else { late }),
                ("GET", target) if target.ends_with("0002") => (202, endless),
                (_, target) if target.ends_with("?partition=1") => (200, json!({ "data": [["2", null, null, null, "false", null]] })),
                _ => (200, first),
            };
            Response::builder().status(status).header("content-type", "application/json").body(axum::body::Body::from(answer.to_string())).unwrap()
        }
    });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    lifecycle::Tasks::new().spawn(async move { axum::serve(listener, app).await });
    (port, asked)
}

fn open(port: u16) -> Database {
    patient(port, "20s")
}

fn patient(port: u16, timeout: &str) -> Database {
    database(port, timeout, &["PUBLIC"])
}

fn database(port: u16, timeout: &str, schemas: &[&str]) -> Database {
    let catalogue = catalogue(timeout);
    let key: Reference = "store:key".parse().unwrap();
    let secrets = BTreeMap::from([(key, Secret::new(include_str!("../keys/rsa.pem")))]);
    let settings = ServiceSettings {
        auth: [("account", "AB12345"), ("user", "READER"), ("private_key", "store:key")]
            .map(|(slot, bound)| (slot.to_owned(), Bound::from(bound)))
            .into(),
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        database: Some(DatabaseSettings {
            engine: Some(Engine::Snowflake),
            host: Some("127.0.0.1".to_owned()),
            port: Some(port),
            name: Some("SHOP".to_owned()),
            schemas: schemas.iter().map(|schema| (*schema).to_owned()).collect(),
            warehouse: Some("SMALL".to_owned()),
            role: Some("READING".to_owned()),
            tls: TransportSecurity::Off,
            ..DatabaseSettings::default()
        }),
        ..ServiceSettings::default()
    };
    Database::with(&catalogue, settings, Arc::new(secrets), guard())
}

#[tokio::test]
async fn a_statement_is_waited_for_and_its_partitions_fetched() {
    let (port, asked) = account().await;
    let call = json!({ "sql": "SELECT * FROM orders WHERE id > ?", "parameters": [5], "limit": 10 });
    let answer = open(port).call("query", call).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        answer["rows"],
        json!([
            { "ID": "9007199254740993", "AT": "2026-01-31T12:00:00.5", "DAY": "2026-01-31", "DOC": { "a": 1 }, "OK": true, "RAW": "3q2+7w==" },
            { "ID": 2, "AT": null, "DAY": null, "DOC": null, "OK": false, "RAW": null },
        ])
    );
    let asked = asked.lock().unwrap();
    assert_eq!(
        asked[0].2["statement"],
        "SELECT CURRENT_ROLE(), CURRENT_SECONDARY_ROLES()"
    );
    let asked = &asked[1..];
    let (verb, target, body) = &asked[0];
    assert!(
        verb == "POST" && target.starts_with("/api/v2/statements?requestId="),
        "{target}"
    );
    assert_eq!(body["bindings"], json!({ "1": { "type": "FIXED", "value": "5" } }));
    assert_eq!(body["parameters"]["multi_statement_count"], "1");
    assert_eq!(body["parameters"]["rows_per_resultset"], "11");
    assert_eq!(
        (&body["database"], &body["schema"], &body["warehouse"], &body["role"]),
        (&json!("SHOP"), &json!("PUBLIC"), &json!("SMALL"), &json!("READING"))
    );
    let targets: Vec<&str> = asked[1..].iter().map(|(_, target, _)| target.as_str()).collect();
    let handle = "/api/v2/statements/01b2c3d4-0000-0001-0000-000000000001";
    assert_eq!(targets, [handle, &format!("{handle}?partition=1")]);
}

#[tokio::test]
async fn threat_094_a_statement_that_is_late_is_cancelled() {
    let (port, asked) = account().await;
    let failure = patient(port, "1s").query("SELECT * FROM ENDLESS").await.unwrap_err();
    assert_eq!(failure.code, Code::Timeout, "{failure:?}");
    let cancel = "/api/v2/statements/01b2c3d4-0000-0001-0000-000000000002/cancel";
    let is_cancelled = || {
        asked
            .lock()
            .unwrap()
            .iter()
            .any(|(verb, target, _)| verb == "POST" && target == cancel)
    };
    let cancelled = async {
        while !is_cancelled() {
            tokio::task::yield_now().await;
        }
    };
    testkit::within("the statement is cancelled", cancelled).await;
}

#[tokio::test]
async fn a_role_that_rules_is_refused_before_any_statement_of_the_sessions_runs() {
    let role = Role::default();
    let (port, asked) = account_of(Arc::clone(&role)).await;
    let database = open(port);
    for (name, beside) in [
        ("ACCOUNTADMIN", ""),
        ("SYSADMIN", ""),
        ("READING", r#"{"roles":"READING,ACCOUNTADMIN","value":"ALL"}"#),
    ] {
        *role.lock().unwrap() = (name, beside);
        let failure = database.query("SELECT * FROM orders").await.unwrap_err();
        assert_eq!(failure.code, Code::CredentialRefused, "{failure:?}");
        assert!(
            failure.message.contains("may do everything in the account"),
            "{failure}"
        );
    }
    assert!(
        asked
            .lock()
            .unwrap()
            .iter()
            .all(|(.., body)| body["statement"].as_str().unwrap().contains("CURRENT_ROLE()"))
    );
    *role.lock().unwrap() = ("READING", r#"{"roles":"REPORTS","value":"ALL"}"#);
    database.query("SELECT * FROM orders").await.unwrap();
}

#[tokio::test]
async fn tables_and_columns_are_those_of_the_schemas_that_may_be_read() {
    let (port, asked) = account().await;
    let ours = |call: usize| {
        let asked = asked.lock().unwrap();
        let statements = asked.iter().filter_map(|(.., body)| body["statement"].as_str());
        let ours: Vec<_> = statements
            .filter(|text| text.contains("INFORMATION_SCHEMA"))
            .map(str::to_owned)
            .collect();
        ours[call].clone()
    };
    let some = database(port, "20s", &["reports", "O'Hara"]);
    some.call("tables", json!({})).await.unwrap();
    some.call("columns", json!({ "table": "SECRET.PAY" })).await.unwrap();
    for call in [0, 1] {
        let text = ours(call);
        assert!(
            text.contains("WHERE UPPER(TABLE_SCHEMA) IN ('REPORTS', 'O''HARA') AND "),
            "{text}"
        );
    }
    // Where none is named there is one all the same.
    let unsaid = database(port, "20s", &[]);
    unsaid.call("tables", json!({})).await.unwrap();
    assert!(ours(2).contains("IN ('PUBLIC')"), "{}", ours(2));
    let failure = unsaid.query("SELECT * FROM secret.pay").await.unwrap_err();
    assert!(
        failure.message.contains("in a schema that may not be read"),
        "{failure}"
    );
}

#[tokio::test]
async fn threat_099_a_name_without_a_schema_does_not_lead_to_public() {
    let (port, asked) = account().await;
    let sent = |text: &str| {
        let asked = asked.lock().unwrap();
        asked
            .iter()
            .any(|(.., body)| body["statement"].as_str().is_some_and(|sent| sent.contains(text)))
    };
    let reports = database(port, "20s", &["REPORTS"]);
    for query in [
        "SELECT * FROM pay",
        "SELECT * FROM reports.sums JOIN pay ON true",
        "SELECT (SELECT max(x) FROM pay)",
    ] {
        let failure = reports.query(query).await.expect_err(query);
        assert_eq!(failure.code, Code::Refused, "{query}");
        assert!(failure.message.contains("does not say its schema"), "{failure}");
        assert!(
            failure.remedy.as_ref().is_some_and(|remedy| remedy.contains("REPORTS")),
            "{failure:?}"
        );
    }
    assert!(!sent("pay"));
    reports
        .query("WITH pay AS (SELECT 1 AS x) SELECT * FROM pay JOIN reports.sums ON true")
        .await
        .unwrap();
    assert!(sent("sums"));
    database(port, "20s", &["REPORTS", "public"])
        .query("SELECT * FROM pay")
        .await
        .unwrap();
    assert!(sent("FROM pay"));
}

#[tokio::test]
async fn what_snowflake_refuses_is_told() {
    let (port, _) = account().await;
    let failure = open(port).query("SELECT * FROM NOTHERE").await.unwrap_err();
    assert_eq!(failure.code, Code::Refused);
    assert!(
        failure.message.contains("does not exist or not authorized"),
        "{failure}"
    );
}

#[tokio::test]
async fn threat_099_no_statement_that_does_more_is_sent() {
    let (port, asked) = account().await;
    let database = open(port);
    for attack in [
        "CALL p()",
        "EXECUTE IMMEDIATE 'DELETE FROM t'",
        "BEGIN DELETE FROM t; END",
        "COPY INTO @stage FROM t",
        "PUT file:///etc/passwd @stage",
        "GET @stage file:///tmp/",
        "LIST @stage",
        "LS @stage",
        "REMOVE @stage",
        "UNDROP TABLE t",
        "ALTER SESSION SET x = 1",
        "USE ROLE ACCOUNTADMIN",
        "USE WAREHOUSE LARGE",
        "SELECT 1; DROP TABLE t",
        "SELECT $1 FROM @stage/file.csv",
        "SELECT * FROM other.t",
        "DELETE FROM t",
        "CREATE TABLE t AS SELECT 1",
        "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE",
        "SELECT SYSTEM$WAIT(100)",
        "SELECT SYSTEM$CANCEL_ALL_QUERIES(1)",
        "SET x = 1",
        "SELECT * FROM t FOR UPDATE",
        "GRANT ROLE x TO USER y",
    ] {
        let failure = database.query(attack).await.expect_err(attack);
        assert!(
            matches!(failure.code, Code::InvalidArguments | Code::Refused),
            "{attack}: {failure:?}"
        );
    }
    assert!(asked.lock().unwrap().is_empty());
}
