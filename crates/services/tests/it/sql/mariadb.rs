//! MariaDB as it is, and a server that writes down what it is told.

use std::sync::LazyLock;

use serde_json::{Value, json};
use services::{Code, DatabaseSettings, Engine, TransportSecurity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::server::{Server, files, run, start};
use super::{Database, Fence, PASSWORD, withstands};

const SCRIPT: &str = r#"
as=; user=$(id -un); if [ "$(id -u)" = 0 ]; then user=mysql; chown mysql "$1" "$1"/*.pem; as='setpriv --reuid=mysql --regid=mysql --clear-groups'; fi
$as mariadb-install-db --no-defaults --datadir="$1/data" --auth-root-authentication-method=normal --skip-test-db --user=$user
$as mariadbd --no-defaults --datadir="$1/data" --port="$2" --bind-address=127.0.0.1 --socket="$1/socket" --pid-file="$1/pid" \
  --ssl-cert="$1/certificate.pem" --ssl-key="$1/key.pem" --secure-file-priv="" --local-infile=1 --innodb-flush-log-at-trx-commit=0 --event-scheduler=OFF & server=$!
trap 'kill -KILL $server' TERM
wait $server; wait $server; rm -rf "$1"
"#;

const SHOP: &str = r"
CREATE DATABASE shop CHARACTER SET utf8mb4; CREATE DATABASE private; USE shop;
CREATE TABLE orders (id bigint PRIMARY KEY, customer varchar(100) NOT NULL, amount decimal(12,2), placed datetime, raw varbinary(100), note text COMMENT 'Words') COMMENT 'One row an order';
INSERT INTO orders VALUES (1, 'Ada', 12.50, '2026-01-31 12:00:00', x'deadbeef', 'a\\b'), (9007199254740993, 'Grace', NULL, NULL, NULL, NULL);
CREATE TABLE written (said text); CREATE TABLE private.salaries (who text);
CREATE SEQUENCE counter; CREATE VIEW recent AS SELECT customer FROM orders WHERE placed IS NOT NULL;
CREATE FUNCTION evil() RETURNS int MODIFIES SQL DATA RETURN SLEEP(0);
CREATE VIEW trap AS SELECT evil() AS x;
CREATE PROCEDURE wicked() DELETE FROM orders;
CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'PASSWORD'; CREATE USER writer@'127.0.0.1' IDENTIFIED BY 'PASSWORD';
CREATE USER almighty@'127.0.0.1' IDENTIFIED BY 'PASSWORD'; GRANT ALL ON *.* TO almighty@'127.0.0.1';
CREATE USER guarded@'127.0.0.1' IDENTIFIED BY 'PASSWORD' REQUIRE SSL; GRANT SELECT ON shop.* TO guarded@'127.0.0.1';
GRANT SELECT, SHOW VIEW, EXECUTE ON shop.* TO reader@'127.0.0.1'; GRANT SELECT ON private.* TO reader@'127.0.0.1';
GRANT ALL ON shop.* TO writer@'127.0.0.1';
";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let server = start("mariadb", SCRIPT, |server| ask(server, "SELECT 1").is_ok());
    ask(&server, &SHOP.replace("PASSWORD", PASSWORD)).unwrap();
    server
});

fn ask(server: &Server, text: &str) -> Result<String, String> {
    let socket = format!("--socket={}", server.folder.join("socket").display());
    run(
        "mariadb",
        &["--no-defaults", &socket, "-u", "root", "--batch", "--raw", "-e", text],
    )
}

/// All that the server keeps, files included.
fn state() -> String {
    let socket = format!("--socket={}", SERVER.folder.join("socket").display());
    let dump = run(
        "mariadb-dump",
        &[
            "--no-defaults",
            &socket,
            "-u",
            "root",
            "--databases",
            "shop",
            "private",
            "--system=users",
            "--routines",
            "--events",
            "--triggers",
            "--skip-dump-date",
        ],
    )
    .unwrap();
    let more = ask(
        &SERVER,
        "SHOW GLOBAL VARIABLES WHERE Variable_name NOT LIKE '%gtid%' AND Variable_name NOT LIKE '%timestamp%'; \
         SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_rows_inserted', 'Innodb_rows_updated', 'Innodb_rows_deleted'); \
         SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE '%User lock%'",
    )
    .unwrap();
    format!(
        "{dump}\n{more}\n{}",
        files(&SERVER.folder, &["/log", "#sql", "ibtmp", "ib_log", "aria_log"]).join("\n")
    )
}

fn open(fence: Fence) -> Database {
    Database::new(fence, Engine::MariaDb, SERVER.port)
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_questions_get_their_rows() {
    let database = open(Fence::Whole);
    assert_eq!(
        database
            .rows("SELECT id, customer, amount, placed, raw, note FROM orders ORDER BY id")
            .await,
        json!([
            { "id": 1, "customer": "Ada", "amount": 12.50, "placed": "2026-01-31T12:00:00", "raw": "3q2+7w==", "note": "a\\b" },
            { "id": "9007199254740993", "customer": "Grace", "amount": null, "placed": null, "raw": null, "note": null },
        ])
    );
    let bound =
        json!({ "sql": "SELECT customer FROM orders WHERE amount > ? AND customer = ?", "parameters": [10.5, "Ada"] });
    let answer: Value = serde_json::from_slice(&database.call("query", bound).await.unwrap()).unwrap();
    assert_eq!(answer["rows"], json!([{ "customer": "Ada" }]));
    assert_eq!(
        database.rows("SELECT customer FROM recent").await,
        json!([{ "customer": "Ada" }])
    );
    let tables: Value = serde_json::from_slice(&database.call("tables", json!({})).await.unwrap()).unwrap();
    assert!(
        tables["tables"]
            .as_array()
            .unwrap()
            .iter()
            .any(|table| table["name"] == "orders" && table["comment"] == "One row an order")
    );
    let described = database.call("columns", json!({ "table": "orders" })).await.unwrap();
    let described: Value = serde_json::from_slice(&described).unwrap();
    assert_eq!(
        described["columns"][0],
        json!({ "name": "id", "type": "bigint(20)", "nullable": false, "key": true, "comment": null })
    );
    let failure = database.query("SELECT * FROM private.salaries").await.unwrap_err();
    assert_eq!(failure.code, Code::Refused);
}

/// The server of these tests, which offers encryption.
pub(crate) fn settings() -> DatabaseSettings {
    DatabaseSettings {
        engine: Some(Engine::MariaDb),
        host: Some("127.0.0.1".to_owned()),
        port: Some(SERVER.port),
        name: Some("shop".to_owned()),
        tls: TransportSecurity::Off,
        ..DatabaseSettings::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_listed_of_other_databases() {
    let database = open(Fence::Whole);
    for statement in [
        "SHOW TABLES FROM private",
        "SHOW FULL TABLES IN private",
        "SHOW COLUMNS FROM private.salaries",
        "SHOW COLUMNS FROM salaries FROM private",
        "SHOW CREATE TABLE private.salaries",
        "DESCRIBE private.salaries",
        "WITH RECURSIVE a AS (SELECT x FROM trap), trap AS (SELECT 1 AS x) SELECT x FROM a",
        "WITH a AS (SELECT x FROM trap), trap AS (SELECT 1 AS x) SELECT x FROM a",
    ] {
        let failure = database.query(statement).await.expect_err(statement);
        assert!(
            matches!(failure.code, Code::Refused | Code::InvalidArguments),
            "{statement}: {failure:?}"
        );
    }
    for statement in ["SHOW TABLES FROM shop", "SHOW TABLES", "SHOW COLUMNS FROM orders"] {
        assert!(
            !database.rows(statement).await.as_array().unwrap().is_empty(),
            "{statement}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_is_too_mighty_is_not_used() {
    for user in ["almighty", "nobody"] {
        let failure = Database::of(Fence::Whole, user, settings())
            .query("SELECT 1 AS x")
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::CredentialRefused, "{user}: {failure:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_095_comments_that_run_do_not() {
    let attacks = [
        "SELECT 1 /*!50000 INTO OUTFILE 'belljar-stolen' */",
        "SELECT 1 /*M! INTO OUTFILE 'belljar-stolen' */",
        "SELECT 1 INTO/**/DUMPFILE 'belljar-stolen'",
        "SELECT 1 INTO @v",
        "SELECT customer FROM orders INTO OUTFILE 'belljar-stolen'",
        "SELECT 1 /*!, SLEEP(0) */",
    ];
    super::withstands(&attacks, open, state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_096_commands_and_functions_that_do_more() {
    withstands(
        &[
            "SELECT LOAD_FILE('/etc/passwd')",
            "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE written",
            "SELECT SLEEP(1000)",
            "SELECT BENCHMARK(1000000000000, SHA2('x', 512))",
            "SELECT GET_LOCK('x', 1)",
            "SELECT sys_exec('id')",
            "HANDLER orders OPEN",
            "SET GLOBAL max_connections = 1",
            "KILL 1",
            "FLUSH TABLES",
            "LOCK TABLES orders WRITE",
            "DO SLEEP(0)",
            "SELECT @a := 1",
            "DELETE FROM orders",
            "INSERT INTO written VALUES ('x')",
            "SELECT NEXTVAL(counter)",
            "SELECT NEXT VALUE FOR counter",
            "SELECT evil()",
            "SELECT * FROM trap",
            "CALL wicked()",
            "EXECUTE IMMEDIATE 'DELETE FROM orders'",
            "PREPARE p FROM 'DELETE FROM orders'",
            "SELECT * FROM orders FOR UPDATE",
            "SELECT * FROM orders LOCK IN SHARE MODE",
            "CREATE TEMPORARY TABLE t (x int)",
            "CREATE TABLE t AS SELECT 1",
            "START TRANSACTION READ WRITE",
            "COMMIT",
            "ROLLBACK",
            "SET SESSION TRANSACTION READ WRITE",
            "TRUNCATE orders",
            "ANALYZE TABLE orders",
            "OPTIMIZE TABLE orders",
            "DROP TABLE orders",
            "ANALYZE FORMAT=JSON DELETE FROM orders",
            "REPLACE INTO written VALUES ('x')",
            "GRANT ALL ON shop.* TO reader@'127.0.0.1'",
            "SELECT 1 PROCEDURE ANALYSE()",
            "SELECT 'a\\' ; DELETE FROM orders; -- '",
        ],
        open,
        state,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_094_rows_bytes_and_time_have_an_end() {
    let database = open(Fence::Whole);
    let answer = database
        .query("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 5000) SELECT n FROM t")
        .await;
    let counted = answer.map(|answer| answer["rows"].as_array().unwrap().len());
    assert!(matches!(counted, Ok(1..=1_000)), "{counted:?}");
    let joins = "SELECT COUNT(*) AS n FROM information_schema.COLUMNS a, information_schema.COLUMNS b, information_schema.COLUMNS c";
    for statement in [
        "SELECT REPEAT('x', 15000000) AS x",
        "SELECT REPEAT('x', 1000000000) AS x",
        joins,
    ] {
        match database.query(statement).await {
            Err(failure) => assert!(
                matches!(failure.code, Code::AnswerTooLarge | Code::Timeout | Code::Refused),
                "{failure:?}"
            ),
            // The server gives nothing for what is longer than its packets.
            Ok(answer) => assert_eq!(answer["rows"], json!([{ "x": null }]), "{statement}"),
        }
    }
    assert_eq!(database.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_098_several_statements_are_never_agreed_on() {
    // The real server refuses two where the guard lets them through.
    for fence in [Fence::Role, Fence::Transaction] {
        let before = state();
        let failure = open(fence).query("SELECT 1; DELETE FROM orders").await.unwrap_err();
        assert!(failure.message.contains("1064"), "{failure:?}");
        assert_eq!(state(), before);
    }
    // What is said in the handshake is read by a server that speaks the protocol so far, and offers everything.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let hearing = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut greeting = vec![10];
        greeting.extend_from_slice(b"8.0.36\0");
        greeting.extend_from_slice(&[1, 0, 0, 0]);
        greeting.extend_from_slice(b"12345678\0");
        greeting.extend_from_slice(&[0xff, 0xff, 45, 2, 0, 0xff, 0xff, 21]);
        greeting.extend_from_slice(&[0; 10]);
        greeting.extend_from_slice(b"123456789012\0mysql_native_password\0");
        let length = u8::try_from(greeting.len()).unwrap();
        stream
            .write_all(&[&[length, 0, 0, 0], &greeting[..]].concat())
            .await
            .unwrap();
        let mut head = [0; 8];
        stream.read_exact(&mut head).await.unwrap();
        u32::from_le_bytes(head[4..].try_into().unwrap())
    };
    let database = Database::new(Fence::Whole, Engine::MySql, port);
    let (flags, result) = tokio::join!(hearing, database.query("SELECT 1 AS x"));
    result.unwrap_err();
    for (bit, what) in [
        (7, "files of this machine"),
        (16, "several statements"),
        (17, "several results"),
        (18, "several results of one"),
    ] {
        assert_eq!(flags & (1 << bit), 0, "{what}");
    }
}
