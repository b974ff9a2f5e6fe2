//! What a statement names is told, so that it can be looked up.

use sql::Dialect::{MySql, Postgres, Snowflake, Sqlite};

use crate::{checked, names, refused};

#[test]
fn relations_are_told_and_those_of_a_with_are_not() {
    let cases = [
        ("SELECT * FROM a, s.b JOIN c ON true", vec!["a", "c", "s.b"]),
        ("WITH a AS (SELECT * FROM b) SELECT * FROM a", vec!["b"]),
        // Outside of its query the name is a table again.
        ("SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a) x, a", vec!["a"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", vec!["a"]),
        (
            "WITH RECURSIVE a AS (SELECT 1 UNION SELECT * FROM a) SELECT * FROM a",
            vec![],
        ),
        ("WITH a AS (SELECT 1) SELECT * FROM public.a", vec!["public.a"]),
        ("WITH a AS (SELECT 1) SELECT * FROM x UNION SELECT * FROM a", vec!["x"]),
        (
            "SELECT 1 UNION (WITH a AS (SELECT 1) SELECT * FROM a) UNION SELECT 1 FROM a",
            vec!["a"],
        ),
        (
            "SELECT (SELECT 1 FROM a) WHERE EXISTS (SELECT 1 FROM b) ORDER BY (SELECT 1 FROM c)",
            vec!["a", "b", "c"],
        ),
        (
            "WITH b AS (SELECT * FROM c), c AS (SELECT 1) SELECT * FROM b, c",
            vec!["c"],
        ),
    ];
    for (text, relations) in cases {
        for dialect in [Postgres, MySql, Snowflake, Sqlite] {
            let text = if dialect == MySql {
                text.replace("WHERE EXISTS", "FROM d WHERE EXISTS")
            } else {
                text.to_owned()
            };
            let mut told = names(&checked(dialect, &text).relations);
            told.retain(|name| !name.eq_ignore_ascii_case("d"));
            told.iter_mut().for_each(|name| *name = name.to_lowercase());
            told.sort();
            assert_eq!(told, relations, "{dialect:?}: {text}");
        }
    }
}

#[test]
fn a_name_in_quotes_is_another_where_the_server_says_so() {
    let told = checked(Snowflake, "WITH a AS (SELECT 1) SELECT * FROM \"a\", db.s.t");
    assert_eq!(names(&told.relations), ["a", "DB.S.T"]);
}

#[test]
fn operators_and_types_of_others_are_told() {
    let told = checked(
        Postgres,
        "SELECT a <-> b, c::app.kind, d::mood, e::text, f OPERATOR(pg_catalog.+) 1, g BETWEEN 1 AND 2 FROM t",
    );
    assert_eq!(names(&told.operators), ["<->", "<=", ">="]);
    assert_eq!(names(&told.types), ["mood", "app.kind"]);
    assert_eq!(
        names(&checked(Postgres, "SELECT a OPERATOR(app.+) b FROM t").operators),
        ["app.+"]
    );
    assert_eq!(
        names(&checked(Postgres, "SELECT 1 ORDER BY 1 USING >").operators),
        [">"]
    );
    for (statement, operators) in [
        ("SELECT 1 FROM t WHERE a IN (1)", ["="].as_slice()),
        ("SELECT 1 FROM t WHERE a IN (SELECT b FROM u)", &["="]),
        ("SELECT CASE a WHEN 1 THEN 2 END FROM t", &["="]),
        ("SELECT 1 FROM t JOIN u USING (a)", &["="]),
        ("SELECT 1 FROM t NATURAL JOIN u", &["="]),
        ("SELECT NULLIF(a, b), a IS DISTINCT FROM b FROM t", &["="]),
        ("SELECT 1 FROM t WHERE (a, b) < (c, d)", &["<"]),
        ("SELECT 1 FROM t WHERE a NOT BETWEEN 1 AND 2", &["<", ">"]),
        (
            "SELECT CASE WHEN a THEN 2 END, EXISTS (SELECT 1) FROM t CROSS JOIN u",
            &[],
        ),
    ] {
        assert_eq!(names(&checked(Postgres, statement).operators), operators, "{statement}");
    }
    refused(
        Postgres,
        &["SELECT a::pg_catalog.pg_ddl_command FROM t", "SELECT a::a.b.c FROM t"],
    );
}

#[test]
fn what_is_listed_is_read() {
    for (dialect, statement, read) in [
        (MySql, "SHOW TABLES FROM other", ["other.*"].as_slice()),
        (MySql, "SHOW COLUMNS FROM other.t", &["other.t"]),
        (MySql, "SHOW COLUMNS FROM t", &["t"]),
        (MySql, "SHOW TABLES", &[]),
        (Snowflake, "SHOW TABLES IN DATABASE other", &["OTHER.*.*"]),
        (Snowflake, "SHOW COLUMNS IN TABLE t", &["T"]),
        // Which of the two a server means by a later one's name, is not told by the text.
        (
            MySql,
            "WITH RECURSIVE a AS (SELECT x FROM b), b AS (SELECT 1 AS x) SELECT x FROM a",
            &["b"],
        ),
        (
            MySql,
            "WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a WHERE x < 9) SELECT x FROM a",
            &[],
        ),
    ] {
        assert_eq!(
            names(&checked(dialect, statement).relations),
            read,
            "{dialect:?}: {statement}"
        );
    }
    refused(Snowflake, &["SHOW TABLES IN ACCOUNT"]);
}

#[test]
fn parameters_are_counted() {
    assert_eq!(checked(Postgres, "SELECT $1, $3").parameters, 3);
    assert_eq!(checked(Postgres, "SELECT $2::int + (SELECT $2)").parameters, 2);
    assert_eq!(checked(Postgres, "SELECT '$1'").parameters, 0);
    for dialect in [MySql, Snowflake, Sqlite] {
        assert_eq!(
            checked(dialect, "SELECT a FROM t WHERE b = ? AND c IN (?, ?)").parameters,
            3,
            "{dialect:?}"
        );
    }
    refused(Postgres, &["SELECT $0", "SELECT $99999"]);
    refused(Snowflake, &["SELECT $1", "SELECT :1", "SELECT :name"]);
    refused(Sqlite, &["SELECT $a", "SELECT :a", "SELECT @a"]);
}

#[test]
fn threat_102_what_would_be_written_as_something_else_is_refused() {
    for dialect in [MySql, Snowflake, Sqlite] {
        // Written anew, the signs would begin a comment, and the quotes end the text.
        refused(
            dialect,
            &["SELECT - -1, a FROM t", "SELECT a FROM t WHERE b = 'it''''s'"],
        );
    }
}
