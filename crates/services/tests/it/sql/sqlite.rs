//! Files of SQLite.

use std::path::Path;

use serde_json::json;
use services::{Code, DatabaseSettings, Engine};
use tokio::task::JoinSet;

use super::{Database, Fence, guard_as, withstands};

const SHOP: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, amount REAL, raw BLOB);
INSERT INTO orders VALUES (1, 'Ada', 12.5, x'deadbeef'), (9007199254740993, 'Grace', NULL, NULL);
CREATE TABLE written (said TEXT);
CREATE VIEW recent AS SELECT customer FROM orders WHERE amount IS NOT NULL;
PRAGMA user_version = 7;";

fn shop() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(folder.path().join("shop.db")).unwrap();
    connection.execute_batch(SHOP).unwrap();
    folder
}

fn open(folder: &Path, fence: Fence) -> Database {
    Database::of(fence, "reader", settings(folder))
}

fn settings(folder: &Path) -> DatabaseSettings {
    DatabaseSettings {
        engine: Some(Engine::Sqlite),
        file: Some(folder.join("shop.db")),
        ..DatabaseSettings::default()
    }
}

const ENDLESS: &str = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT sum(n) AS x FROM t";

/// The file's bytes, and what lies beside it.
fn state(folder: &Path) -> String {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    files.sort();
    format!(
        "{files:?} {}",
        hex::encode(std::fs::read(folder.join("shop.db")).unwrap())
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_questions_get_their_rows() {
    let folder = shop();
    let database = open(folder.path(), Fence::Whole);
    assert_eq!(
        database
            .rows("SELECT id, customer, amount, raw FROM orders ORDER BY id")
            .await,
        json!([
            { "id": 1, "customer": "Ada", "amount": 12.5, "raw": "3q2+7w==" },
            { "id": "9007199254740993", "customer": "Grace", "amount": null, "raw": null },
        ])
    );
    let bound = json!({ "sql": "SELECT count(*) AS n FROM recent WHERE customer = ?", "parameters": ["Ada"] });
    let answer: serde_json::Value = serde_json::from_slice(&database.call("query", bound).await.unwrap()).unwrap();
    assert_eq!(answer["rows"], json!([{ "n": 1 }]));
    let described = database.call("columns", json!({ "table": "orders" })).await.unwrap();
    let described: serde_json::Value = serde_json::from_slice(&described).unwrap();
    assert_eq!(
        described["columns"][1],
        json!({ "name": "customer", "type": "TEXT", "nullable": false, "key": false, "comment": null })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_only_read() {
    let folder = shop();
    let elsewhere = folder.path().join("elsewhere.db");
    let attach = format!("ATTACH '{}' AS other", elsewhere.display());
    let vacuum = format!("VACUUM INTO '{}'", elsewhere.display());
    let attacks = [
        "DELETE FROM orders",
        "SELECT 1; DELETE FROM orders",
        "INSERT INTO written VALUES ('x') RETURNING said",
        "DROP TABLE orders",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "PRAGMA user_version = 9",
        "PRAGMA journal_mode = WAL",
        "PRAGMA writable_schema = 1",
        &attach,
        &vacuum,
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/x', 'y')",
        "WITH x AS (SELECT 1) DELETE FROM orders",
        "REPLACE INTO written VALUES ('x')",
        "BEGIN IMMEDIATE",
        "VACUUM",
        "REINDEX",
        "SELECT sql FROM sqlite_schema",
        "SELECT * FROM pragma_database_list",
    ];
    withstands(&attacks, |fence| open(folder.path(), fence), || state(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_094_a_file_is_not_read_for_ever() {
    let folder = shop();
    let database = open(folder.path(), Fence::Whole);
    assert_eq!(database.query(ENDLESS).await.unwrap_err().code, Code::Timeout);
    let flowing = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t";
    assert_eq!(database.query(flowing).await.unwrap()["truncated"], true);
    let large = "SELECT replace(hex(printf('%08000000d', 1)), '0', 'xxxx') AS x";
    assert_eq!(database.query(large).await.unwrap_err().code, Code::AnswerTooLarge);
}

/// More statements than are read at once, each in another session of one user, of which none is ever done.
#[tokio::test(flavor = "multi_thread")]
async fn threat_094_a_user_leaves_those_who_check_statements_to_the_others() {
    let folder = shop();
    let (worker, database) = (guard_as("slow"), settings(folder.path()));
    let greedy = Database::read_by(worker, "reader", database, "60s");
    leaves_to_others(&greedy, "SELECT 'never done'").await;
}

/// More than there are places for, each in another session of one user; the other one asks until they all must have begun.
#[tokio::test(flavor = "multi_thread")]
async fn threat_094_a_user_leaves_files_to_the_others() {
    let folder = shop();
    let greedy = Database::patient(Fence::Whole, "reader", settings(folder.path()), "60s");
    leaves_to_others(&greedy, ENDLESS).await;
}

/// Whoever goes away leaves no statement that has a place, though it never gave a row.
#[tokio::test]
async fn an_export_that_nobody_reads_leaves_its_place() {
    let folder = shop();
    let greedy = Database::patient(Fence::Whole, "reader", settings(folder.path()), "60s");
    let (earlier, neighbour) = (greedy.neighbour(), greedy.neighbour());
    let asking = async {
        for _ in 0..6 {
            greedy.abandon(ENDLESS).await;
        }
        assert_eq!(neighbour.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
    };
    tokio::select! {
        biased;
        // It began before those that were abandoned, and has as long as they.
        result = earlier.query(ENDLESS) => panic!("the neighbour had to wait for {result:?}"),
        () = asking => {}
    }
}

/// One asks in many sessions what has no end; another is answered meanwhile.
async fn leaves_to_others(greedy: &Database, statement: &'static str) {
    let neighbour = greedy.neighbour();
    let mut endless = JoinSet::new();
    for _ in 0..4 {
        let greedy = greedy.elsewhere();
        endless.spawn(async move { greedy.query(statement).await });
    }
    let asking = async {
        for _ in 0..20 {
            assert_eq!(neighbour.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
        }
    };
    tokio::select! {
        biased;
        result = endless.join_next() => panic!("the others had to wait for {result:?}"),
        () = asking => {}
    }
}
