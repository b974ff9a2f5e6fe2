//! PostgreSQL as it is.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use services::{Bound, Code, DatabaseSettings, Engine, ServiceSettings, TransportSecurity};

use super::server::{Server, files, run, start};
use super::{Database, Fence, PASSWORD, catalogue, withstands};
use crate::rig::guard;

/// The server's own user runs it where the tests are root's, as it refuses root.
const SCRIPT: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as=; if [ "$(id -u)" = 0 ]; then chown postgres "$1" "$1"/*.pem; as='setpriv --reuid=postgres --regid=postgres --clear-groups'; fi
$as "$bin/initdb" --pgdata="$1/data" --username=master --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C --no-sync
$as "$bin/postgres" -D "$1/data" -p "$2" -k "$1" -c listen_addresses=127.0.0.1 \
  -c ssl=on -c ssl_cert_file="$1/certificate.pem" -c ssl_key_file="$1/key.pem" -c fsync=off -c autovacuum=off \
  -c wal_level=logical -c max_wal_size=1GB & server=$!
trap 'kill -QUIT $server' TERM
wait $server; wait $server; rm -rf "$1"
"#;

const SHOP: &str = r#"
CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL, amount numeric(12,2), placed timestamptz, tags text[], extra jsonb, raw bytea, paid boolean);
COMMENT ON TABLE orders IS 'One row an order';
COMMENT ON COLUMN orders.amount IS 'In euros, tax included';
INSERT INTO orders VALUES
  (1, 'Ada', 12.50, '2026-01-31 12:00:00+00', '{a,"b c"}', '{"k": [1, null]}', '\xdeadbeef', true),
  (9007199254740993, 'Grace', NULL, NULL, NULL, NULL, NULL, NULL);
CREATE SEQUENCE counter;
CREATE TABLE written (said text);
CREATE VIEW recent AS SELECT id, customer FROM orders WHERE placed IS NOT NULL;
CREATE FUNCTION evil() RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$ BEGIN INSERT INTO written VALUES ('evil'); RETURN 1; END $$;
CREATE FUNCTION hidden(orders) RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$ BEGIN INSERT INTO written VALUES ('hidden'); RETURN 1; END $$;
CREATE FUNCTION evil_plus(text, text) RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$ BEGIN INSERT INTO written VALUES ('operator'); RETURN 1; END $$;
CREATE OPERATOR @+@ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil_plus);
CREATE VIEW trap AS SELECT evil() AS x;
CREATE VIEW sleeper AS SELECT pg_sleep(0) IS NULL AS x;
CREATE EXTENSION dblink;
CREATE EXTENSION postgres_fdw;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1');
CREATE FOREIGN TABLE far (id int) SERVER elsewhere;
CREATE TABLE parts (id int) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE far_part PARTITION OF parts FOR VALUES FROM (0) TO (9) SERVER elsewhere;
CREATE SCHEMA private; CREATE TABLE private.salaries (who text); INSERT INTO private.salaries VALUES ('Ada');
CREATE ROLE reader LOGIN PASSWORD 'PASSWORD'; CREATE ROLE writer LOGIN PASSWORD 'PASSWORD';
CREATE ROLE almighty LOGIN SUPERUSER PASSWORD 'PASSWORD'; CREATE ROLE robber LOGIN PASSWORD 'PASSWORD'; GRANT pg_read_server_files TO robber;
GRANT USAGE ON SCHEMA private TO reader, writer;
GRANT SELECT ON ALL TABLES IN SCHEMA public, private TO reader;
GRANT ALL ON ALL TABLES IN SCHEMA public, private TO writer; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO writer; GRANT ALL ON SCHEMA public TO writer;
CREATE TYPE pair AS (a int);
CREATE TABLE pairs (p pair, q pair); INSERT INTO pairs VALUES (ROW(1), ROW(1));
CREATE FUNCTION compared(pair, pair) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$ BEGIN INSERT INTO written VALUES ('compared'); RETURN true; END $$;
CREATE OPERATOR = (LEFTARG = pair, RIGHTARG = pair, FUNCTION = compared);
CREATE OPERATOR < (LEFTARG = pair, RIGHTARG = pair, FUNCTION = compared);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE moods (m mood, many mood[]); INSERT INTO moods VALUES ('good', '{bad}'); CREATE VIEW feelings AS SELECT m FROM moods;
CREATE FUNCTION weighed(mood) RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$ BEGIN INSERT INTO written VALUES ('weighed'); RETURN 1; END $$;
CREATE CAST (mood AS int) WITH FUNCTION weighed(mood) AS IMPLICIT;
CREATE FUNCTION felt(text) RETURNS mood LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$ BEGIN INSERT INTO written VALUES ('felt'); RETURN 'good'; END $$;
CREATE CAST (text AS mood) WITH FUNCTION felt(text);
GRANT SELECT ON pairs, moods, feelings TO reader; GRANT ALL ON pairs, moods, feelings TO writer;
ANALYZE orders;
"#;

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let server = start("postgres", SCRIPT, |server| ask(server, "postgres", "SELECT 1").is_ok());
    ask(&server, "postgres", "CREATE DATABASE shop").unwrap();
    ask(&server, "shop", &SHOP.replace("'PASSWORD'", &format!("'{PASSWORD}'"))).unwrap();
    server
});

fn ask(server: &Server, database: &str, text: &str) -> Result<String, String> {
    let (folder, port) = (server.folder.display().to_string(), server.port.to_string());
    let arguments = [
        "-XAtq",
        "-v",
        "ON_ERROR_STOP=1",
        "-h",
        &folder,
        "-p",
        &port,
        "-U",
        "master",
        "-d",
        database,
        "-c",
        text,
    ];
    run("psql", &arguments)
}

/// All that the server keeps: schema, rows, sequences, roles, settings, slots, locks, files, and what it counts of writing.
fn state() -> String {
    let server = &*SERVER;
    let (folder, port) = (server.folder.display().to_string(), server.port.to_string());
    let dump = run("pg_dumpall", &["-h", &folder, "-p", &port, "-U", "master", "--no-sync"]).unwrap();
    // A line that is made up anew each time.
    let dump: Vec<&str> = dump
        .lines()
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"))
        .collect();
    let counted = ask(
        server,
        "shop",
        "SELECT pg_stat_force_next_flush(); SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_all_tables \
         WHERE schemaname IN ('public', 'private') ORDER BY 1; \
         SELECT name, setting FROM pg_settings WHERE source NOT IN ('default', 'client', 'session') ORDER BY 1; \
         SELECT pg_conf_load_time(); SELECT slot_name FROM pg_replication_slots; SELECT last_value, is_called FROM counter; \
         SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'; SELECT count(*) FROM pg_prepared_xacts; \
         SELECT count(*) FROM pg_largeobject_metadata; SELECT pg_walfile_name(pg_current_wal_lsn())",
    )
    .unwrap();
    let passing = [
        "/pg_stat",
        "/pg_wal",
        "/log",
        "/pgsql_tmp",
        "/pg_subtrans",
        "/pg_snapshots",
        "/base/",
        "/global/",
        "/pg_xact",
    ];
    format!(
        "{}\n{counted}\n{}",
        dump.join("\n"),
        files(&server.folder, &passing).join("\n")
    )
}

fn open(fence: Fence) -> Database {
    Database::new(fence, Engine::Postgres, SERVER.port)
}

pub(crate) fn settings() -> DatabaseSettings {
    DatabaseSettings {
        engine: Some(Engine::Postgres),
        host: Some("127.0.0.1".to_owned()),
        port: Some(SERVER.port),
        name: Some("shop".to_owned()),
        tls: TransportSecurity::Off,
        ..DatabaseSettings::default()
    }
}

async fn holds(attacks: &[&str]) {
    withstands(attacks, open, state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_questions_get_their_rows() {
    let database = open(Fence::Whole);
    let answer = database
        .query("SELECT id, customer, amount, placed, tags, extra, raw, paid, 1.5::float8 AS f, DATE '2026-02-03' AS d FROM orders ORDER BY orders.id")
        .await
        .unwrap();
    assert_eq!(
        answer["rows"],
        json!([
            { "id": 1, "customer": "Ada", "amount": 12.50, "placed": "2026-01-31T12:00:00+00:00", "tags": ["a", "b c"],
              "extra": { "k": [1, null] }, "raw": "3q2+7w==", "paid": true, "f": 1.5, "d": "2026-02-03" },
            { "id": "9007199254740993", "customer": "Grace", "amount": null, "placed": null, "tags": null, "extra": null,
              "raw": null, "paid": null, "f": 1.5, "d": "2026-02-03" },
        ])
    );
    assert_eq!(answer["columns"][2], json!({ "name": "amount", "type": "numeric" }));
    assert_eq!(answer["truncated"], false);
    let bound = json!({ "sql": "SELECT customer FROM orders WHERE amount > $1 AND customer = ANY($2)", "parameters": [10, ["Ada", "x\"y"]] });
    let answer: Value = serde_json::from_slice(&database.call("query", bound).await.unwrap()).unwrap();
    assert_eq!(answer["rows"], json!([{ "customer": "Ada" }]));
    assert_eq!(
        database.rows("SELECT customer FROM recent").await,
        json!([{ "customer": "Ada" }])
    );
    assert_eq!(
        database
            .rows("WITH t AS (SELECT count(*) AS n FROM orders) SELECT n, n AS n FROM t")
            .await,
        json!([{ "n": 2, "n_2": 2 }])
    );
    let limited = json!({ "sql": "SELECT id FROM orders ORDER BY id", "limit": 1 });
    let answer: Value = serde_json::from_slice(&database.call("query", limited).await.unwrap()).unwrap();
    assert_eq!(
        (&answer["rows"], &answer["truncated"]),
        (&json!([{ "id": 1 }]), &json!(true))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_listed_and_described() {
    let database = open(Fence::Whole);
    let tables: Value = serde_json::from_slice(&database.call("tables", json!({})).await.unwrap()).unwrap();
    assert_eq!(tables["engine"], "postgres");
    let listed = tables["tables"].as_array().unwrap();
    let orders = listed.iter().find(|table| table["name"] == "orders").unwrap();
    assert_eq!(
        *orders,
        json!({ "schema": "public", "name": "orders", "kind": "table", "rows": 2, "comment": "One row an order" })
    );
    assert!(!listed.iter().any(|table| table["name"] == "salaries"), "{tables}");
    let described = database
        .call("columns", json!({ "table": "public.orders" }))
        .await
        .unwrap();
    let described: Value = serde_json::from_slice(&described).unwrap();
    assert_eq!(
        described["columns"][2],
        json!({ "name": "amount", "type": "numeric(12,2)", "nullable": true, "key": false, "comment": "In euros, tax included" })
    );
    let failure = database
        .call("columns", json!({ "table": "private.salaries" }))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_a_file() {
    let database = open(Fence::Whole);
    let csv = json!({ "sql": "SELECT id, customer FROM orders ORDER BY id", "format": "csv" });
    assert_eq!(
        database.call("export", csv).await.unwrap(),
        b"id,customer\r\n1,Ada\r\n9007199254740993,Grace\r\n"
    );
    let lines = database
        .call(
            "export",
            json!({ "sql": "SELECT g FROM generate_series(1, 20000) AS g" }),
        )
        .await
        .unwrap();
    assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 20_000);
    let failure = database
        .call(
            "export",
            json!({ "sql": "SELECT repeat('x', 1000) AS x FROM generate_series(1, 5000)" }),
        )
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::AnswerTooLarge);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_too_mighty_is_not_used() {
    for (user, words) in [("almighty", "superuser"), ("robber", "pg_read_server_files")] {
        let failure = Database::of(Fence::Whole, user, settings())
            .query("SELECT 1 AS x")
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::CredentialRefused);
        assert!(failure.message.contains(words), "{failure}");
    }
    let failure = Database::of(Fence::Whole, "nobody", settings())
        .query("SELECT 1 AS x")
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::CredentialRefused, "{failure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_the_secret_that_opened_it() {
    let secrets = crate::rig::Secrets::default();
    secrets.set("password", PASSWORD);
    let settings = ServiceSettings {
        auth: [("user", "reader"), ("password", "store:password")]
            .map(|(slot, bound)| (slot.to_owned(), Bound::from(bound)))
            .into(),
        addresses: vec!["127.0.0.0/8".parse().unwrap()],
        database: Some(settings()),
        ..ServiceSettings::default()
    };
    let database = Database::with(&catalogue("20s"), settings, Arc::new(secrets.clone()), guard());
    assert_eq!(database.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
    secrets.set("password", "revoked");
    let failure = database.query("SELECT 1 AS x").await.unwrap_err();
    assert_eq!(failure.code, Code::CredentialRefused, "{failure:?}");
    secrets.set("password", PASSWORD);
    assert_eq!(database.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_schemas_are_read() {
    let database = open(Fence::Whole);
    for statement in [
        "SELECT * FROM private.salaries",
        "SELECT rolname FROM pg_catalog.pg_roles",
        "SELECT * FROM information_schema.tables",
    ] {
        let failure = database.query(statement).await.expect_err(statement);
        assert_eq!(failure.code, Code::Refused, "{failure:?}");
    }
    let listed = DatabaseSettings {
        schemas: vec!["private".to_owned()],
        ..settings()
    };
    assert_eq!(
        Database::of(Fence::Whole, "reader", listed)
            .rows("SELECT who FROM salaries")
            .await,
        json!([{ "who": "Ada" }])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_081_a_second_statement_changes_nothing() {
    holds(&[
        "SELECT 1; DROP TABLE orders",
        "SELECT 1;;DELETE FROM orders",
        "SELECT 1) AS q (c0) LIMIT 1; DROP TABLE orders; SELECT (1",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_082_a_transaction_cannot_be_left() {
    holds(&[
        "COMMIT; DROP TABLE orders; SELECT 1",
        "ROLLBACK",
        "END",
        "COMMIT",
        "ABORT",
        "BEGIN",
        "SET TRANSACTION READ WRITE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET default_transaction_read_only = off",
        "RESET ALL",
        "SAVEPOINT x",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_083_comments_and_brackets_hide_nothing() {
    holds(&[
        "/* c */ DELETE FROM orders",
        "-- x\nDELETE FROM orders",
        "(DELETE FROM orders)",
        "/* a /* b */ c */ UPDATE orders SET amount = 0",
    ])
    .await;
    assert_eq!(
        open(Fence::Whole)
            .rows("/* a /* b */ c */ (SELECT 1 AS x) -- end")
            .await,
        json!([{ "x": 1 }])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_084_no_part_of_a_query_writes() {
    holds(&[
        "WITH d AS (DELETE FROM orders RETURNING *) SELECT * FROM d",
        "WITH d AS (INSERT INTO written VALUES ('x') RETURNING *) SELECT * FROM d",
        "WITH d AS (UPDATE orders SET amount = 0 RETURNING *) SELECT * FROM d",
        "SELECT * FROM (WITH d AS (DELETE FROM orders RETURNING *) SELECT * FROM d) AS x",
        "MERGE INTO orders USING written ON false WHEN NOT MATCHED THEN INSERT VALUES (3, 'x')",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_085_nothing_is_made_or_locked() {
    holds(&[
        "SELECT * INTO stolen FROM orders",
        "CREATE TABLE stolen AS SELECT * FROM orders",
        "SELECT * FROM orders FOR UPDATE",
        "SELECT * FROM orders FOR SHARE",
        "CREATE TEMP TABLE t (x int)",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_086_nothing_is_explained_by_running_it() {
    holds(&[
        "EXPLAIN ANALYZE DELETE FROM orders",
        "EXPLAIN (ANALYZE, BUFFERS) SELECT evil()",
        "EXPLAIN (ANALYZE true) INSERT INTO written VALUES ('x')",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_087_nothing_is_copied() {
    holds(&[
        "COPY orders TO PROGRAM 'touch /tmp/belljar-copied'",
        "COPY (SELECT 1) TO STDOUT",
        "COPY orders FROM '/etc/passwd'",
        "COPY orders TO '/tmp/belljar-copied'",
    ])
    .await;
    assert!(!std::path::Path::new("/tmp/belljar-copied").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_088_commands_are_no_questions() {
    holds(&[
        "DO $$BEGIN DELETE FROM orders; END$$",
        "CALL evil()",
        "PREPARE p AS DELETE FROM orders",
        "EXECUTE p",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "LISTEN x",
        "NOTIFY x",
        "LOCK TABLE orders",
        "VACUUM",
        "CREATE EXTENSION hstore",
        "CHECKPOINT",
        "DISCARD ALL",
        "REINDEX TABLE orders",
        "GRANT ALL ON orders TO reader",
        "TRUNCATE orders",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_089_no_file_is_reached() {
    holds(&[
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_read_binary_file('/etc/passwd')",
        "SELECT pg_ls_dir('/')",
        "SELECT pg_stat_file('/etc/passwd')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT lo_export(1, '/tmp/belljar-lo')",
        "SELECT lo_get(1)",
        "SELECT lo_put(1, 0, 'x')",
        "SELECT lo_creat(-1)",
        "SELECT lo_from_bytea(0, 'x')",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_090_no_other_server_is_asked() {
    holds(&[
        "SELECT * FROM dblink('dbname=shop', 'SELECT 1') AS t(x int)",
        "SELECT dblink_exec('dbname=shop', 'DELETE FROM orders')",
        "SELECT dblink_connect('dbname=shop')",
        "SELECT * FROM far",
        "SELECT * FROM parts",
        "SELECT http_get('http://127.0.0.1/')",
    ])
    .await;
    // They are refused for what they are, before anybody is asked.
    for table in ["far", "parts"] {
        let failure = open(Fence::Whole)
            .query(&format!("SELECT id FROM {table}"))
            .await
            .unwrap_err();
        assert!(failure.message.contains("is a foreign table"), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_091_functions_are_known_by_what_they_are() {
    holds(&[
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SELECT set_config('search_path', 'private', false)",
        "SELECT pg_reload_conf()",
        "SELECT pg_switch_wal()",
        "SELECT pg_stat_statements_reset()",
        "SELECT pg_drop_replication_slot('x')",
        "SELECT pg_create_physical_replication_slot('x')",
        "SELECT nextval('counter')",
        "SELECT setval('counter', 9)",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_sleep(1000000)",
        "SELECT pg_import_system_collations('public')",
        "SELECT evil()",
        "SELECT public.evil()",
        "SELECT o.hidden FROM orders AS o",
        "SELECT (o).hidden FROM orders AS o",
        "SELECT 'a' @+@ 'b'",
        "SELECT * FROM trap",
        "SELECT * FROM sleeper",
        "SELECT query_to_xml('DELETE FROM orders', true, true, '')",
        "SELECT current_setting('data_directory')",
        "SELECT pg_notify('x', 'y')",
        "SELECT txid_current()",
        "SELECT pg_export_snapshot()",
    ])
    .await;
    // It would end the other connections of the very user, and no more.
    let failure = open(Fence::Whole)
        .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity")
        .await
        .unwrap_err();
    assert!(
        matches!(failure.code, Code::Refused | Code::InvalidArguments),
        "{failure:?}"
    );
}

/// What no function stands for in the text, and calls one all the same.
#[tokio::test(flavor = "multi_thread")]
async fn threat_091_comparisons_and_conversions_are_looked_up() {
    let attacks = [
        "SELECT 1 AS x FROM pairs WHERE p = q",
        "SELECT 1 AS x FROM pairs WHERE p IN (q)",
        "SELECT 1 AS x FROM pairs WHERE p NOT IN (SELECT q FROM pairs)",
        "SELECT 1 AS x FROM pairs WHERE p IN (SELECT q FROM pairs)",
        "SELECT 1 AS x FROM pairs WHERE p = ANY (ARRAY[q])",
        "SELECT CASE p WHEN q THEN 1 ELSE 2 END AS x FROM pairs",
        "SELECT NULLIF(p, q) IS NULL AS x FROM pairs",
        "SELECT p IS DISTINCT FROM q AS x FROM pairs",
        "SELECT ROW(p, 1) = ROW(q, 1) AS x FROM pairs",
        "SELECT 1 AS x FROM pairs AS a JOIN pairs AS b USING (p)",
        "SELECT 1 AS x FROM pairs AS a NATURAL JOIN pairs AS b",
        "SELECT p NOT BETWEEN q AND q AS x FROM pairs",
        "SELECT m::int AS x FROM moods",
        "SELECT CAST(m AS int) AS x FROM moods",
        "SELECT m + 1 AS x FROM moods",
        "SELECT abs(m) AS x FROM moods",
        "SELECT m + 1 AS x FROM feelings",
        "SELECT many::int[] AS x FROM moods",
        "SELECT customer::mood AS x FROM orders",
        "SELECT CAST('good'::text AS public.mood) AS x",
    ];
    holds(&attacks).await;
    let database = open(Fence::Whole);
    // Before it runs: the transaction would refuse what these write, and not what they tell somebody.
    for attack in attacks {
        let failure = database.query(attack).await.expect_err(attack);
        assert!(
            failure.message.contains("is written in plpgsql"),
            "{attack}: {failure:?}"
        );
    }
    // What is not of such a type is compared as ever.
    let honest = "SELECT count(*) AS n FROM orders AS a JOIN orders AS b USING (id) WHERE CASE a.id WHEN 1 THEN true ELSE a.id IN (SELECT id FROM orders) END";
    assert_eq!(database.rows(honest).await, json!([{ "n": 2 }]));
    // Who knows the function may list it.
    let listed = DatabaseSettings {
        functions: vec!["public.weighed".to_owned(), "public.felt".to_owned()],
        ..settings()
    };
    let failure = Database::of(Fence::Whole, "reader", listed)
        .query("SELECT m + 1 AS x FROM moods")
        .await
        .unwrap_err();
    assert!(failure.message.contains("read-only transaction"), "{failure:?}");
}

/// The server of these tests, which offers encryption; and who asks it encrypted.
pub(crate) fn encrypted() -> usize {
    let text = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND usename = 'reader'";
    ask(&SERVER, "shop", text).unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_094_rows_bytes_time_and_cost_have_an_end() {
    let database = open(Fence::Whole);
    let answer = database
        .query("SELECT g FROM generate_series(1, 1000000) AS g")
        .await
        .unwrap();
    assert_eq!(
        (answer["rows"].as_array().unwrap().len(), &answer["truncated"]),
        (1_000, &json!(true))
    );
    for statement in [
        "SELECT count(*) FROM generate_series(1, 1000000000000) AS g",
        "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, generate_series(1, 100000) c",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t) SELECT sum(n) FROM t",
    ] {
        let failure = database.query(statement).await.expect_err(statement);
        assert!(
            matches!(failure.code, Code::Refused | Code::Timeout),
            "{statement}: {failure:?}"
        );
    }
    // What the server estimates is refused before it runs, however much time there is.
    let database = Database::patient(Fence::Whole, "reader", settings(), "2m");
    let failure = database
        .query("SELECT count(*) FROM generate_series(1, 1000000000000) AS g")
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::Refused, "{failure:?}");
    for (statement, words) in [
        ("SELECT repeat('x', 9000000) AS x", "bytes in one row"),
        ("SELECT repeat('x', 20000000) AS x", "a row has more than"),
        ("SELECT repeat('x', 1000000000) AS x", "a row has more than"),
    ] {
        let failure = database.query(statement).await.expect_err(statement);
        assert_eq!(failure.code, Code::AnswerTooLarge, "{statement}: {failure:?}");
        assert!(failure.message.contains(words), "{statement}: {failure}");
    }
    // Many rows that fit one by one end where there is no more room.
    let answer = database
        .query("SELECT repeat('x', 1000000) AS x FROM generate_series(1, 100)")
        .await
        .unwrap();
    assert_eq!(
        (answer["rows"].as_array().unwrap().len(), &answer["truncated"]),
        (8, &json!(true))
    );
    // Nobody is still at it, and the next question has its answer.
    assert_eq!(database.rows("SELECT 1 AS x").await, json!([{ "x": 1 }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn threat_102_what_was_understood_is_what_runs() {
    let database = open(Fence::Whole);
    for statement in [
        "SELEC 1",
        "SELECT 'open",
        "SELECT 1 \0",
        "SELECT $$x",
        "\\d orders",
        "SELECT 1 FROM orders WHERE",
        "",
    ] {
        let failure = database.query(statement).await.expect_err(statement);
        assert!(
            matches!(failure.code, Code::InvalidArguments | Code::Refused),
            "{failure:?}"
        );
    }
    // What runs is told by the server itself.
    let text = "SELECT /* a comment */ 1 AS x";
    assert_eq!(database.rows(text).await, json!([{ "x": 1 }]));
    let last = ask(
        &SERVER,
        "shop",
        "SELECT string_agg(query, ' ') FROM pg_stat_activity WHERE usename = 'reader'",
    )
    .unwrap();
    assert!(!last.contains("a comment"), "{last}");
}
