//! Queries of every day pass.

use sql::Dialect::{MySql, Postgres, Snowflake};

use crate::passes;

#[test]
fn queries_of_every_day_pass_for_postgres() {
    passes(
        Postgres,
        &[
            "SELECT 1",
            "VALUES (1, 'a'), (2, 'b')",
            "TABLE t",
            "SHOW server_version",
            "SELECT DISTINCT ON (a) a, b AS \"B c\", t.*, count(*) FILTER (WHERE c > 0) FROM t GROUP BY a, b HAVING sum(c) > 1 ORDER BY a DESC NULLS LAST LIMIT 10 OFFSET 5",
            "SELECT * FROM a JOIN b USING (id) LEFT JOIN c ON c.id = b.id AND c.x IS NOT NULL CROSS JOIN d NATURAL JOIN e FULL JOIN f ON true",
            "SELECT u.id, o.total FROM users u, LATERAL (SELECT sum(total) AS total FROM orders WHERE user_id = u.id) o",
            "WITH RECURSIVE tree AS (SELECT id, parent, 1 AS depth FROM n WHERE parent IS NULL UNION ALL SELECT n.id, n.parent, depth + 1 FROM n JOIN tree ON n.parent = tree.id) SEARCH DEPTH FIRST BY id SET o CYCLE id SET is_cycle USING path SELECT * FROM tree ORDER BY o",
            "SELECT row_number() OVER w, lag(x, 1) OVER (PARTITION BY y ORDER BY z), sum(x) OVER (ORDER BY z ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM t WINDOW w AS (ORDER BY z)",
            "SELECT data ->> 'a', data -> 'b' -> 0, data #>> '{a,b}', data @> '{\"a\": 1}'::jsonb, data ? 'k', jsonb_path_query(data, '$.a[*]') FROM t",
            "SELECT ARRAY[1, 2, 3], a[1], a[1:2], a && ARRAY['x'], 1 = ANY (a), array_agg(b ORDER BY c), unnest(a) FROM t GROUP BY a",
            "SELECT now() - interval '7 days', date_trunc('week', at AT TIME ZONE 'UTC'), extract(epoch FROM at), age(at), at::date + 1, current_date, current_timestamp FROM t",
            "SELECT a::numeric(10, 2), CAST(b AS text[]), c::timestamptz(3), 'x'::varchar(5), '1'::int8, '{}'::jsonb, 'a'::regclass FROM t",
            "SELECT CASE WHEN a > 1 THEN 'x' WHEN a IS NULL THEN 'y' ELSE 'z' END, CASE a WHEN 1 THEN 2 END, coalesce(a, b), nullif(a, b), greatest(a, b) FROM t",
            "SELECT * FROM t WHERE a IN (1, 2) AND b NOT IN (SELECT b FROM u) AND EXISTS (SELECT 1) AND c LIKE 'x%' AND d ILIKE '%y' AND e ~ '^z' AND f SIMILAR TO 'a|b' AND g BETWEEN 1 AND 2 AND h IS DISTINCT FROM i AND j IS TRUE",
            "SELECT a, b, sum(c) FROM t GROUP BY GROUPING SETS ((a, b), ROLLUP (a), CUBE (b), ())",
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x), string_agg(DISTINCT y, ', ' ORDER BY y), mode() WITHIN GROUP (ORDER BY z) FROM t",
            "(SELECT a FROM t UNION ALL SELECT b FROM u EXCEPT SELECT c FROM v) INTERSECT SELECT d FROM w ORDER BY 1 FETCH FIRST 5 ROWS ONLY",
            "SELECT * FROM generate_series(1, 10) WITH ORDINALITY AS g(n, i), ROWS FROM (unnest(ARRAY[1]), unnest(ARRAY[2])) AS r(a, b)",
            "SELECT * FROM json_to_recordset('[]') AS x(a int, b text)",
            "SELECT * FROM t TABLESAMPLE bernoulli (10) REPEATABLE (1)",
            "SELECT substring(a FROM 1 FOR 2), position('x' IN a), trim(BOTH 'x' FROM a), overlay(a PLACING 'y' FROM 1), a COLLATE \"C\", upper(a) || lower(b), regexp_replace(a, '\\d+', 'n', 'g'), format('%s', a), normalize(a) FROM t",
            "SELECT (r).a, (ROW(1, 2)).f1, ROW(a, b) = (1, 2), (a, b) IN (SELECT 1, 2) FROM t",
            "SELECT to_tsvector('english', a) @@ plainto_tsquery('english', $1) FROM t WHERE b = $2",
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog')",
            "SELECT c.relname, pg_size_pretty(pg_total_relation_size(c.oid)), obj_description(c.oid) FROM pg_catalog.pg_class c",
            "SELECT current_user, session_user, current_database(), version(), gen_random_uuid()",
            "SELECT JSON_OBJECT('a': 1, 'b': x), JSON_ARRAY(1, 2), JSON_VALUE(d, '$.a' RETURNING int), JSON_EXISTS(d, '$.a'), d IS JSON OBJECT FROM t",
            "SELECT * FROM JSON_TABLE('[]'::jsonb, '$[*]' COLUMNS (id FOR ORDINALITY, a text PATH '$.a')) AS j",
            "SELECT -a, +b, NOT c, a % 2, a ^ 2, |/ 4, @ -5, a << 1, B'101', X'1F', 1e10, .5, 1_000, 0xff FROM t",
            "SELECT make_interval(days => 10), concat(VARIADIC ARRAY['a', 'b'])",
            "EXPLAIN (COSTS off) WITH x AS MATERIALIZED (SELECT 1) SELECT * FROM x",
            "SELECT \"weird \"\"name\", 'it''s', U&'\\0441', E'tab\\t' FROM \"Sch\".\"Tab\"",
        ],
    );
}

#[test]
fn queries_of_every_day_pass_for_mysql() {
    passes(
        MySql,
        &[
            "SELECT 1",
            "SELECT DISTINCT a, b AS `B c`, t.*, COUNT(*), COUNT(DISTINCT c) FROM t GROUP BY a, b WITH ROLLUP HAVING SUM(c) > 1 ORDER BY a DESC LIMIT 10 OFFSET 5",
            "SELECT a FROM t LIMIT 5, 10",
            "SELECT * FROM a JOIN b USING (id) LEFT JOIN c ON c.id = b.id CROSS JOIN d NATURAL JOIN e",
            "SELECT * FROM a STRAIGHT_JOIN b ON a.id = b.id",
            "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 10) SELECT * FROM n",
            "SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY b), SUM(c) OVER (ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), LAG(c, 1) OVER w FROM t WINDOW w AS (ORDER BY b)",
            "SELECT doc->'$.a', doc->>'$.b', JSON_EXTRACT(doc, '$.c'), JSON_UNQUOTE(d), JSON_ARRAYAGG(e) FROM t GROUP BY doc, d",
            "SELECT NOW() - INTERVAL 7 DAY, DATE_SUB(a, INTERVAL 1 MONTH), DATE_FORMAT(a, '%Y-%m'), EXTRACT(YEAR FROM a), TIMESTAMPDIFF(DAY, a, b), CURDATE(), UNIX_TIMESTAMP(a), CURRENT_TIMESTAMP FROM t",
            "SELECT CAST(a AS SIGNED), CAST(b AS DECIMAL(10, 2)), CAST(c AS CHAR), CONVERT(d USING utf8mb4), CAST(e AS DATE) FROM t",
            "SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END, IF(a, b, c), IFNULL(a, b), COALESCE(a, b), NULLIF(a, b) FROM t",
            "SELECT * FROM t WHERE a IN (1, 2) AND b NOT IN (SELECT b FROM u) AND EXISTS (SELECT 1 FROM v) AND c LIKE 'x%' AND d REGEXP '^y' AND e BETWEEN 1 AND 2 AND f <=> g AND h IS NOT NULL AND i <> 3 XOR j",
            "SELECT GROUP_CONCAT(DISTINCT a ORDER BY a DESC SEPARATOR ', ') FROM t",
            "SELECT a FROM t UNION ALL SELECT b FROM u EXCEPT SELECT c FROM v ORDER BY 1",
            "SELECT SUBSTRING(a, 1, 2), TRIM(BOTH 'x' FROM a), CONCAT(a, b), REPLACE(a, 'x', 'y'), LEFT(a, 1), POSITION('x' IN a), a COLLATE utf8mb4_bin FROM t",
            "SELECT MATCH (a) AGAINST ('x' IN BOOLEAN MODE) FROM t",
            "SELECT a DIV b, a % b, -a, ~a, a & b, a | b, a ^ b, a << 1 FROM t",
            "SELECT (SELECT MAX(a) FROM u WHERE u.id = t.id) AS m FROM db.t AS t WHERE (a, b) = (1, 2) AND c > ALL (SELECT 1) AND d = ?",
            "SELECT * FROM (SELECT a FROM t) AS x, (SELECT 1 AS b) AS y",
            "EXPLAIN SELECT * FROM t",
            "DESCRIBE t",
            "SHOW TABLES",
            "SHOW FULL TABLES FROM db LIKE 'a%'",
            "SHOW COLUMNS FROM t",
            "SHOW DATABASES",
            "SHOW CREATE TABLE t",
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
        ],
    );
}

#[test]
fn queries_of_every_day_pass_for_snowflake() {
    passes(
        Snowflake,
        &[
            "SELECT 1",
            "SELECT * EXCLUDE (a) FROM t",
            "SELECT v:a.b[0]::string, v['c'], PARSE_JSON(w):d::number(10, 2), TRY_CAST(x AS INT) FROM t",
            "SELECT f.value:id::int FROM t, LATERAL FLATTEN(input => v:items, outer => true) f",
            "SELECT * FROM t, TABLE(FLATTEN(input => v)) f",
            "SELECT a, ROW_NUMBER() OVER (PARTITION BY b ORDER BY c DESC) AS n FROM t QUALIFY n = 1",
            "SELECT a, b FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) = 1",
            "SELECT DATE_TRUNC('month', at), DATEADD(day, -7, CURRENT_DATE()), DATEDIFF('day', a, b), at::date, CURRENT_TIMESTAMP FROM db.s.t GROUP BY ALL",
            "SELECT IFF(a, b, c), ZEROIFNULL(d), NVL(e, f), a ILIKE '%x', DECODE(a, 1, 'x', 'y'), a || b FROM t WHERE g IN (?, ?)",
            "WITH x AS (SELECT 1 AS a) SELECT * FROM x LEFT JOIN y ON x.a = y.a ORDER BY 1 NULLS LAST LIMIT 10",
            "SELECT LISTAGG(a, ', ') WITHIN GROUP (ORDER BY a), COUNT(DISTINCT b), APPROX_COUNT_DISTINCT(c), ARRAY_AGG(d) FROM t",
            "SELECT OBJECT_CONSTRUCT('a', 1), ARRAY_CONSTRUCT(1, 2) FROM t",
            "SHOW TABLES",
            "SHOW SCHEMAS",
            "SHOW COLUMNS IN TABLE t",
            "DESCRIBE TABLE t",
            "EXPLAIN SELECT * FROM t",
            "SELECT \"Mixed Case\" FROM \"Db\".\"S\".\"T\"",
        ],
    );
}
