//! SQL contexts: SQLite, and a real MariaDB server.

mod support;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::Daemon;
use support::code::{Context, Ran, daemon, daemon_with, wait_until};

/// Columns and rows of the last result.
#[track_caller]
fn table(ran: &Ran) -> Value {
    assert_eq!(ran.error(), None, "{:?}", ran.events);
    let results = ran.results();
    let text = results.last().and_then(|forms| forms["text"].as_str()).expect("text");
    serde_json::from_str(text).expect("JSON in the text")
}

/// What holds for every database.
fn check(daemon: &Daemon) {
    let sql = Context::new(daemon, "sql");
    let ran = sql
        .run("CREATE TABLE t (id INTEGER, name VARCHAR(20)); INSERT INTO t VALUES (1, 'a;b'), (2, NULL) -- two; rows");
    assert_eq!(ran.results().len(), 2);
    assert_eq!(table(&ran), json!({ "columns": ["affected_rows"], "rows": [[2]] }));
    let ran = sql.run("select id, name from t order by id;");
    assert_eq!(table(&ran), json!({ "columns": ["id", "name"], "rows": [["1", "a;b"], ["2", null]] }));
    let count = ran.events.iter().find(|event| event["type"] == "execution_count").expect("a count");
    assert_eq!(count["execution_count"], 1);
    assert_eq!(sql.run("SELECT nothing FROM t").error_name(), "DBQueryError");
    assert_eq!(sql.run("DROP TABLE none").error_name(), "DBExecError");
    for empty in [";", " ; ;", "-- only a comment", "/* ; */"] {
        assert_eq!(sql.run(empty).error_name(), "DBExecError", "{empty:?}");
    }
    for blank in ["", " ", "\n"] {
        let body = json!({ "code": blank, "context": { "language": "sql" } });
        daemon.post("/code", &body).refuses(400, "INVALID_REQUEST_BODY", "code");
    }
    let ran = sql.run("UPDATE t SET name = 'x'; SELECT broken; SELECT 1");
    assert_eq!((ran.error_name().as_str(), ran.results().len()), ("DBQueryError", 1), "it stops where it fails");
    assert_eq!(table(&sql.run("SELECT name FROM t"))["rows"], json!([["x"], ["x"]]));
}

#[test]
fn os_072_sqlite_answers_where_there_is_no_mysql() {
    let daemon = daemon_with(&[("EXECD_CODE_MYSQL", "127.0.0.1:1")]);
    check(&daemon);
    let sql = Context::new(&daemon, "sql");
    assert_eq!(sql.run("SELECT * FROM t").error_name(), "DBQueryError", "contexts have databases of their own");
    sql.run("CREATE TABLE t (a); CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; SELECT 1; END; INSERT INTO t VALUES (1)");
    assert_eq!(table(&sql.run("SELECT count(*) FROM t"))["rows"], json!([["0"]]));
    assert_eq!(table(&sql.run("SELECT x'ff00', 1.5"))["rows"], json!([["0xff00", "1.5"]]));
    // Half of the rows were read when it fails.
    let halfway = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) \
                   SELECT CASE WHEN i < 4000 THEN i ELSE abs(-9223372036854775808) END FROM n";
    let ran = sql.run(&format!("SELECT * FROM ({halfway})"));
    assert_eq!((ran.error_name().as_str(), ran.results().len()), ("RowIterationError", 0));
    let ran =
        sql.run("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT printf('%1000d', i) FROM n");
    assert_eq!(ran.error_name(), "RowIterationError", "a result that is too large is no result");
}

#[test]
fn ex_012_sqlite_is_interrupted_and_keeps_its_tables() {
    let daemon = daemon_with(&[("EXECD_CODE_MYSQL", "127.0.0.1:1")]);
    let sql = Context::new(&daemon, "sql");
    sql.run("CREATE TABLE t (a); INSERT INTO t VALUES (7)");
    let running =
        sql.begin("SELECT 1; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n");
    sql.interrupt();
    assert_eq!(running.end().error_name(), "KeyboardInterrupt");
    assert_eq!(table(&sql.run("SELECT a FROM t"))["rows"], json!([["7"]]));
}

#[test]
fn os_072_a_mysql_server_is_used_where_one_listens() {
    let mut server = Maria::start();
    let daemon = daemon_with(&[("EXECD_CODE_MYSQL", &server.address())]);
    check(&daemon);
    let (one, other) = (Context::new(&daemon, "sql"), Context::new(&daemon, "sql"));
    assert_eq!(table(&one.run("SELECT database()"))["rows"], json!([["sandbox"]]));
    one.run("CREATE TABLE shared (a INT); INSERT INTO shared VALUES (3)");
    assert_eq!(table(&other.run("SELECT a FROM shared"))["rows"], json!([["3"]]));
    let wide = table(&one.run("SELECT repeat('é', 100000) AS w, X'ff' AS b, seq FROM seq_1_to_3"));
    assert_eq!(wide["rows"][2], json!(["é".repeat(100_000), "0xff", "3"]));
    let ran = one.run("SELECT a, (SELECT 1 UNION SELECT 2) FROM shared");
    assert!(matches!(ran.error_name().as_str(), "DBQueryError" | "RowIterationError"), "{:?}", ran.events);
    let running = one.begin("SELECT sleep(600)");
    one.interrupt();
    assert_eq!(running.end().error_name(), "KeyboardInterrupt");
    assert_eq!(table(&one.run("SELECT a FROM shared"))["rows"], json!([["3"]]));
    server.stop();
    assert_eq!(one.run("SELECT 1").error_name(), "DBPingError", "a server that went away is an error");
    daemon.delete("/code/contexts?language=sql").ok();
}

#[test]
fn os_071_sql_needs_python() {
    let daemon = daemon_with(&[("PATH", "/nowhere")]);
    daemon.post("/code/context", &json!({ "language": "sql" })).refuses(400, "NOT_SUPPORTED", "sql needs python3");
    drop(daemon);
    assert_eq!(table(&Context::new(&self::daemon(), "sql").run("SELECT 1 AS one"))["columns"], json!(["one"]));
}

/// A MariaDB server of this test, with data of its own.
struct Maria {
    child: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Maria {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().join("data");
        let user = if rustix::process::geteuid().is_root() { vec!["--user=mysql"] } else { vec![] };
        if !user.is_empty() {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(directory.path(), mode).expect("chmod");
        }
        let installed = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .args(&user)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("mariadb-install-db is installed");
        assert!(installed.success(), "{installed}");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let child = Command::new("/usr/sbin/mariadbd")
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-buffer-pool-size=8M"])
            .args([format!("--datadir={}", data.display()), format!("--port={port}")])
            .args([format!("--socket={}", path("socket")), format!("--pid-file={}", path("pid"))])
            .args(&user)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd is installed");
        wait_until("the start of MariaDB", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port, directory }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Maria {
    fn drop(&mut self) {
        self.stop();
        let _ = &self.directory; // goes after the server
    }
}
