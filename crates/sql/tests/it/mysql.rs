//! Attacks on MySQL and MariaDB.

use sql::Dialect::MySql;

use crate::{checked, refused};

#[test]
fn threat_095_no_comment_is_executed_and_nothing_is_written_out() {
    refused(
        MySql,
        &[
            "SELECT 1 /*!50000 INTO OUTFILE 'x' */",
            "SELECT 1 /*! INTO OUTFILE 'x' */",
            "SELECT 1 /*!INTO OUTFILE 'x'*/",
            "SELECT 1 /*M! INTO OUTFILE 'x' */",
            "SELECT 1 /*M!100000 INTO OUTFILE 'x' */",
            "SELECT 1 /*m! INTO OUTFILE 'x' */",
            "SELECT /*!99999 1, */ 2",
            "/*! DELETE FROM t */",
            "SELECT 1 /* a /*! INTO OUTFILE 'x' */ */",
            "SELECT 1 /* a */ /*!50000 UNION SELECT 2 */",
            "SELECT /*+ SET_VAR(sql_mode='') */ 1",
            "SELECT /*+ MAX_EXECUTION_TIME(1) */ 1",
            "SELECT 1 INTO OUTFILE 'x'",
            "SELECT 1 INTO/**/OUTFILE 'x'",
            "SELECT 1 INTO DUMPFILE 'x'",
            "SELECT 1 INTO/**/DUMPFILE 'x'",
            "SELECT a INTO OUTFILE 'x' FROM t",
            "SELECT a FROM t INTO OUTFILE 'x' FIELDS TERMINATED BY ','",
            "SELECT 1 INTO @v",
            "SELECT a FROM t LIMIT 1 INTO @v",
            "SELECT 1 INTO v",
            "SELECT 1 INTO v FROM t",
            "SELECT * FROM (SELECT 1 INTO OUTFILE 'x') t",
            "SELECT 1 UNION SELECT 2 INTO OUTFILE 'x'",
            "SELECT a FROM t INTO WHERE b = 1",
            "SELECT a FROM t AS INTO",
            "SELECT a INTO, OUTFILE FROM t",
        ],
    );
    // A comment that is one to everybody is left out of what runs.
    assert_eq!(checked(MySql, "SELECT /* one */ 1 -- two").text, "SELECT 1");
}

#[test]
fn threat_096_nothing_waits_locks_loads_or_sets() {
    refused(
        MySql,
        &[
            "SELECT LOAD_FILE('/etc/passwd')",
            "SELECT `LOAD_FILE`('/etc/passwd')",
            "SELECT load_file ('/etc/passwd')",
            "LOAD DATA LOCAL INFILE 'x' INTO TABLE t",
            "LOAD DATA INFILE 'x' INTO TABLE t",
            "LOAD XML INFILE 'x' INTO TABLE t",
            "SELECT SLEEP(10)",
            "SELECT 1 FROM t WHERE SLEEP(1)",
            "SELECT a FROM t ORDER BY SLEEP(1)",
            "SELECT BENCHMARK(1000000, MD5('x'))",
            "SELECT GET_LOCK('x', 1), RELEASE_LOCK('x'), RELEASE_ALL_LOCKS(), IS_FREE_LOCK('x')",
            "SELECT MASTER_POS_WAIT('x', 1)",
            "SELECT sys_exec('id')",
            "SELECT sys_eval('id')",
            "SELECT lib_mysqludf_sys_info()",
            "SELECT sys.sys_exec('id')",
            "SELECT mine(1)",
            "SELECT db.mine(1)",
            "SELECT NEXTVAL(s), SETVAL(s, 1), LASTVAL(s)",
            "SELECT NEXT VALUE FOR s",
            "SELECT LAST_INSERT_ID(5)",
            "SELECT UUID_SHORT()",
            "SELECT EXTRACTVALUE(1, 'x'), UPDATEXML(1, 'x', 'y')",
            "HANDLER t OPEN",
            "HANDLER t READ FIRST",
            "SET GLOBAL general_log = 1",
            "SET @a = 1",
            "SET SESSION TRANSACTION READ WRITE",
            "SET autocommit = 1",
            "SET PASSWORD = 'x'",
            "SET ROLE ALL",
            "KILL 1",
            "KILL QUERY 1",
            "FLUSH TABLES",
            "FLUSH TABLES WITH READ LOCK",
            "RESET MASTER",
            "PURGE BINARY LOGS TO 'x'",
            "LOCK TABLES t WRITE",
            "UNLOCK TABLES",
            "DO SLEEP(1)",
            "DO 1",
            "SELECT @a := 1",
            "SELECT @a:=@a+1 FROM t",
            "SELECT @@version",
            "SELECT @@global.secure_file_priv",
            "SELECT @a",
            "CALL p()",
            "PREPARE s FROM 'DELETE FROM t'",
            "EXECUTE s",
            "EXECUTE IMMEDIATE 'DELETE FROM t'",
            "BEGIN",
            "START TRANSACTION",
            "COMMIT",
            "ROLLBACK",
            "XA START 'x'",
            "USE mysql",
            "INSTALL PLUGIN x SONAME 'y'",
            "INSTALL SONAME 'y'",
            "CREATE FUNCTION f RETURNS INT SONAME 'y'",
            "SHUTDOWN",
            "CHANGE MASTER TO MASTER_HOST='x'",
            "SELECT * FROM t FOR UPDATE",
            "SELECT * FROM t FOR SHARE",
            "SELECT * FROM t LOCK IN SHARE MODE",
            "SELECT * FROM t PROCEDURE ANALYSE()",
            "SELECT SQL_CALC_FOUND_ROWS * FROM t",
            "INSERT INTO t VALUES (1)",
            "REPLACE INTO t VALUES (1)",
            "UPDATE t SET a = 1",
            "DELETE FROM t",
            "DELETE t FROM t JOIN u",
            "TRUNCATE t",
            "WITH x AS (SELECT 1) DELETE FROM t",
            "WITH x AS (SELECT 1) UPDATE t SET a = 1",
            "EXPLAIN DELETE FROM t",
            "EXPLAIN ANALYZE SELECT 1",
            "ANALYZE SELECT 1",
            "ANALYZE FORMAT=JSON SELECT 1",
            "ANALYZE TABLE t",
            "OPTIMIZE TABLE t",
            "CHECK TABLE t",
            "REPAIR TABLE t",
            "DROP TABLE t",
            "RENAME TABLE t TO u",
            "CREATE TABLE t AS SELECT 1",
            "GRANT ALL ON *.* TO x",
            "SHOW GRANTS",
            "SHOW PROCESSLIST",
            "SHOW VARIABLES",
            "SHOW MASTER STATUS",
            "SHOW CREATE USER x",
            "BINLOG 'x'",
            "HELP 'x'",
        ],
    );
}

#[test]
fn threat_098_never_more_than_one_statement() {
    refused(
        MySql,
        &[
            "SELECT 1; SELECT 2",
            "SELECT 1;SELECT 2;",
            "SELECT 1; -- x\nDROP TABLE t",
            "SELECT 1 /* ; */; DROP TABLE t",
            "DELIMITER //\nSELECT 1//",
            "SELECT 1\\G",
            "",
            ";",
            "-- nothing",
        ],
    );
    assert_eq!(checked(MySql, "SELECT 1;").text, "SELECT 1");
    assert_eq!(checked(MySql, "SELECT ';'").text, "SELECT ';'");
}

#[test]
fn threat_102_what_servers_read_in_two_ways_is_refused() {
    refused(
        MySql,
        &[
            // strings that end elsewhere, as the server is set
            "SELECT 'a\\'; DROP TABLE t; -- '",
            "SELECT 'a\\\\'",
            "SELECT \"a\"",
            "SELECT \"a'\", 'b\"'",
            "SELECT 'a' 'b\\'",
            // comments that are none, as the server is set
            "SELECT 1--1",
            "SELECT 1--\u{0}x",
            "SELECT 1 # x\n+ 1",
            "SELECT 1 /* /* */ + 1 */",
            "SELECT 1 /* x",
            "SELECT 1 -- x\rDROP TABLE t",
            "SELECT 1 -- x\u{85}+ 1",
            // texts whose letters mean something else
            "SELECT _utf8'x'",
            "SELECT _gbk 'x'",
            "SELECT N'x'",
            "SELECT n'x'",
            "SELECT b'01'",
            "SELECT _binary'x' COLLATE utf8mb4_bin",
            // operators that mean two things
            "SELECT 'a' || 'b'",
            // blanks that are none
            "SELECT\u{a0}1",
            "SELECT\u{3000}1",
            "SELECT 1\u{0}",
            "SELECT 1 \u{8}",
            "SELECT \\N",
            "SELECT `a``b` FROM t",
            "SELECT `a\\` FROM t",
            "SELECT 'x",
            "SELECT `x",
            // not understood
            "SELECT 1 FROM",
            "SELEC 1",
            "garbage",
            "SELECT 1 }",
        ],
    );
    assert_eq!(
        checked(MySql, "select a,'it''s' from `t` where x=0x41").text,
        "SELECT a, 'it''s' FROM `t` WHERE x = X'41'"
    );
    let deep = format!("SELECT {}1{}", "(1+".repeat(400), ")".repeat(400));
    refused(MySql, &[&deep]);
}
