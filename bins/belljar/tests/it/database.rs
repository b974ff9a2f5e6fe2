//! Files of SQLite as the control plane reads them: by the real program, which can open nothing else.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use worker::{Config, FileCell, FileFault, FilePart, FileQuery, Worker, WorkerError};

const SHOP: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, raw BLOB, amount REAL);
INSERT INTO orders VALUES (1, 'Ada', x'deadbeef', 12.5), (2, 'Grace', NULL, NULL);";

/// A database in a folder of its own, and the worker that reads it.
struct Shop {
    folder: TempDir,
    worker: Worker,
}

impl Shop {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        // Its processes can be told from those of others by their path.
        symlink(env!("CARGO_BIN_EXE_belljar"), folder.path().join("belljar")).unwrap();
        let config = Config {
            program: folder.path().join("belljar"),
            start: Duration::from_secs(60),
            ..Config::default()
        };
        let shop = Self {
            worker: Worker::new(config),
            folder,
        };
        shop.write(SHOP);
        shop
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    fn write(&self, statements: &str) {
        let connection = rusqlite::Connection::open(self.file()).unwrap();
        connection.execute_batch(statements).unwrap();
    }

    async fn all(&self, text: &str) -> Result<Vec<Vec<FileCell>>, WorkerError> {
        self.of(&self.file(), text, Duration::from_secs(60)).await
    }

    async fn of(&self, file: &Path, text: &str, time: Duration) -> Result<Vec<Vec<FileCell>>, WorkerError> {
        let mut reading = self.worker.read_file(file, query(text, time)).await?;
        let mut all = Vec::new();
        while let Some(part) = reading.next().await? {
            if let FilePart::Rows(rows) = part {
                all.extend(rows);
            }
        }
        Ok(all)
    }

    /// Every file in the database's folder, with its bytes.
    fn state(&self) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let file = |entry: std::fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, std::fs::read(entry.path()).unwrap_or_default())
        };
        let mut files: Vec<_> = entries.map(file).collect();
        files.sort();
        files
    }

    fn processes(&self) -> Vec<Pid> {
        let program = self.folder.path().join("belljar");
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if let Some(pid) = pid
                && line.split(|byte| *byte == 0).next() == Some(program.as_os_str().as_encoded_bytes())
            {
                found.push(pid);
            }
        }
        found
    }
}

fn query(text: &str, time: Duration) -> FileQuery {
    FileQuery {
        text: text.to_owned(),
        parameters: Vec::new(),
        ours: false,
        time,
    }
}

fn fault(result: Result<Vec<Vec<FileCell>>, WorkerError>) -> FileFault {
    match result {
        Err(WorkerError::File(fault)) => fault,
        other => panic!("{:?}", other.map(|rows| rows.len())),
    }
}

#[tokio::test]
async fn a_file_gives_its_rows() {
    let shop = Shop::new();
    let parameters = FileQuery {
        parameters: vec![json!("Ada")],
        ..query(
            "SELECT *, datetime(0, 'unixepoch', 'localtime') > '' AS t FROM orders WHERE customer = ?",
            Duration::from_secs(60),
        )
    };
    let mut reading = shop.worker.read_file(&shop.file(), parameters).await.unwrap();
    let columns = ["id", "customer", "raw", "amount", "t"].map(str::to_owned);
    let kinds = ["integer", "text", "blob", "real", "integer"].map(str::to_owned);
    assert_eq!(
        reading.next().await.unwrap(),
        Some(FilePart::Columns(columns.into_iter().zip(kinds).collect()))
    );
    let row = vec![
        FileCell::Integer(1),
        FileCell::Text("Ada".to_owned()),
        FileCell::Bytes("3q2+7w==".to_owned()),
        FileCell::Real("12.5".to_owned()),
        FileCell::Integer(1),
    ];
    assert_eq!(reading.next().await.unwrap(), Some(FilePart::Rows(vec![row])));
    assert_eq!(reading.next().await.unwrap(), None);
    // As many rows as there are, whoever reads them.
    let many =
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t LIMIT 100000) SELECT n, 'some words' FROM t";
    assert_eq!(shop.all(many).await.unwrap().len(), 100_000);
}

/// A log that is written ahead, with and without somebody who has it open.
#[tokio::test]
async fn a_file_that_others_write_is_read() {
    let shop = Shop::new();
    shop.write("PRAGMA journal_mode = WAL; INSERT INTO orders (customer) VALUES ('Edsger')");
    let before = shop.state();
    assert_eq!(shop.all("SELECT id FROM orders").await.unwrap().len(), 3);
    assert_eq!(shop.state(), before, "nothing was put beside it");
    let open = rusqlite::Connection::open(shop.file()).unwrap();
    open.execute_batch("INSERT INTO orders (customer) VALUES ('Barbara')")
        .unwrap();
    assert_eq!(shop.all("SELECT id FROM orders").await.unwrap().len(), 4);
    let link = shop.folder.path().join("elsewhere.db");
    symlink(shop.file(), &link).unwrap();
    let rows = shop.of(&link, "SELECT id FROM orders", Duration::from_secs(60)).await;
    assert_eq!(rows.unwrap().len(), 4);
}

#[tokio::test]
async fn threat_094_a_statement_fills_neither_disk_nor_memory() {
    let shop = Shop::new();
    let before = shop.state();
    let bomb = "WITH RECURSIVE t(n, x) AS (SELECT 1, printf('%01000000d', 1) UNION SELECT n + 1, printf('%01000000d', n) FROM t) \
                SELECT count(*) FROM (SELECT x FROM t ORDER BY x)";
    let refused = fault(shop.all(bomb).await);
    assert!(matches!(refused, FileFault::TooLarge(_)), "{refused:?}");
    let sorted = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT printf('%0100000d', n) AS x FROM t ORDER BY x";
    let refused = fault(shop.all(sorted).await);
    assert!(matches!(refused, FileFault::TooLarge(_)), "{refused:?}");
    let columns = ["printf('%015000000d', 1)"; 4].join(", ");
    let refused = fault(shop.all(&format!("SELECT {columns}")).await);
    assert!(matches!(refused, FileFault::TooLarge(_)), "{refused:?}");
    assert_eq!(shop.state(), before);
}

#[tokio::test]
async fn threat_094_a_statement_ends_with_its_time_or_with_who_waits() {
    let shop = Shop::new();
    let endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT sum(n) FROM t";
    let late = shop.of(&shop.file(), endless, Duration::from_millis(200)).await;
    assert_eq!(fault(late), FileFault::Late);
    let reading = shop
        .worker
        .read_file(&shop.file(), query(endless, Duration::from_secs(3_600)))
        .await
        .unwrap();
    assert_eq!(shop.processes().len(), 1);
    drop(reading);
    testkit::eventually("the reader is gone", || shop.processes().is_empty().then_some(()));
}

#[tokio::test]
async fn a_reader_that_is_killed_is_told_and_the_next_one_reads() {
    let shop = Shop::new();
    let endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT sum(n) FROM t";
    let mut reading = shop
        .worker
        .read_file(&shop.file(), query(endless, Duration::from_secs(3_600)))
        .await
        .unwrap();
    for pid in shop.processes() {
        kill_process(pid, Signal::KILL).unwrap();
    }
    let error = reading.next().await.unwrap_err();
    assert!(matches!(error, WorkerError::Crashed { .. }), "{error:?}");
    drop(reading);
    assert_eq!(shop.all("SELECT id FROM orders").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_told() {
    let shop = Shop::new();
    let before = shop.state();
    let missing = shop.folder.path().join("missing.db");
    let unread = fault(shop.of(&missing, "SELECT 1", Duration::from_secs(60)).await);
    assert!(matches!(unread, FileFault::Unreadable(_)), "{unread:?}");
    assert_eq!(shop.state(), before, "it is not made");
    let mut bytes = std::fs::read(shop.file()).unwrap();
    let broken = shop.folder.path().join("broken.db");
    // The first page, which says where everything is, but for its head.
    bytes[100..4096].fill(0x5a);
    std::fs::write(&broken, &bytes).unwrap();
    for file in [&*broken, Path::new("/etc/passwd")] {
        let unread = fault(shop.of(file, "SELECT * FROM orders", Duration::from_secs(60)).await);
        assert!(
            matches!(unread, FileFault::Unreadable(_)),
            "{}: {unread:?}",
            file.display()
        );
    }
}

/// The statement as a thief would have it past the guard.
#[tokio::test]
async fn a_reader_reads_its_file_and_nothing_else() {
    let shop = Shop::new();
    let other = shop.folder.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch(SHOP).unwrap();
    let before = shop.state();
    let attach = format!("ATTACH '{}' AS other", other.display());
    let vacuum = format!("VACUUM INTO '{}'", shop.folder.path().join("stolen.db").display());
    for attack in [
        &*attach,
        &vacuum,
        "DELETE FROM orders",
        "PRAGMA journal_mode = WAL",
        "CREATE TEMP TABLE t (x)",
        "SELECT load_extension('x')",
    ] {
        fault(shop.all(attack).await);
        // With the authorizer open too: what holds then is how the file is opened, and the kernel.
        let ours = FileQuery {
            ours: true,
            ..query(attack, Duration::from_secs(60))
        };
        let mut reading = shop.worker.read_file(&shop.file(), ours).await.unwrap();
        while let Ok(Some(_)) = reading.next().await {}
        assert_eq!(shop.state(), before, "{attack}");
    }
}
