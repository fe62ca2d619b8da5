//! SQLite itself, with a log that is cut off and mapped memory that others read.

use crate::overlaid::put_over;
use crate::sandbox::{Sandbox, can_mount, send, skipped};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Said first by each who uses the database.
const SETTINGS: &str = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; \
    PRAGMA mmap_size=268435456; PRAGMA wal_autocheckpoint=100; PRAGMA cache_size=50;";
/// Rows of about 200 bytes, updates all over them, and the log cut off.
const STEPS: [&str; 4] = [
    "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, v TEXT); CREATE INDEX i ON t(k); \
     WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<8000) \
     INSERT INTO t SELECT x, x*7919%8009, printf('%0200d', x*31) FROM n;",
    "PRAGMA wal_checkpoint(TRUNCATE); UPDATE t SET v=printf('%0180d', k), k=k+1 WHERE id*13%17=3;",
    "DELETE FROM t WHERE id*11%19=5; PRAGMA wal_checkpoint(TRUNCATE); \
     INSERT INTO t SELECT id+10000, k*3, v FROM t WHERE id%7=2;",
    "UPDATE t SET k=k*5%4001 WHERE id%3=1; PRAGMA wal_checkpoint(PASSIVE); VACUUM;",
];
const DIGEST: &str = "SELECT count(*), sum(k), sum(length(v)), sum(id*k%1009) FROM t;";

fn sqlite(database: &Path, statements: &str) -> String {
    let output = Command::new("sqlite3").arg(database).arg(statements).output();
    let output = output.expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{statements}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// One who has the database open all the time.
struct Reader {
    process: Child,
    asks: ChildStdin,
    hears: BufReader<ChildStdout>,
}

impl Reader {
    fn new(database: &Path) -> Reader {
        let mut process = Command::new("sqlite3")
            .arg("-batch")
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be run");
        let asks = process.stdin.take().expect("it is piped");
        let hears = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut reader = Reader { process, asks, hears };
        reader.tell(".output /dev/null");
        reader.tell(SETTINGS);
        reader.tell(".output stdout");
        reader
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.asks, "{line}").expect("it listens");
    }

    fn ask(&mut self, question: &str) -> String {
        self.tell(question);
        let mut answer = String::new();
        self.hears.read_line(&mut answer).expect("it answers");
        answer
    }

    fn end(mut self) {
        self.tell(".quit");
        assert!(self.process.wait().expect("it runs").success());
    }
}

#[test]
fn sqlite_with_a_log_and_mapped_memory_is_what_it_is_on_the_bare_directory() {
    let Some(_right) = can_mount("SQLite") else { return };
    if Command::new("sqlite3").arg("--version").output().is_err() {
        return skipped("SQLite over an overlay: sqlite3 is not installed");
    }
    let sandbox = Sandbox::new();
    let over = sandbox.make_directory("data").join("base");
    let bare = sandbox.make_directory("bare").join("base");
    let mut pid = put_over(&sandbox, "data", &["--remap", "all"]);
    let mut reader = None;
    for (number, step) in STEPS.iter().enumerate() {
        let statements = format!("{SETTINGS} {step}");
        for database in [&over, &bare] {
            sqlite(database, &statements);
        }
        let digest = sqlite(&bare, DIGEST);
        assert_eq!(sqlite(&over, DIGEST), digest, "step {number}");
        // One who had it open before the log was cut off sees the same.
        let reader = reader.get_or_insert_with(|| Reader::new(&over));
        assert_eq!(reader.ask(DIGEST), digest, "step {number}");
    }
    reader.expect("it was made").end();
    sandbox.ok(&["overlay", "remap", "data", "random"]);
    let last = "UPDATE t SET v=printf('%0190d', id) WHERE id*23%29<9;";
    for database in [&over, &bare] {
        sqlite(database, &format!("{SETTINGS} {last}"));
    }
    send(pid, "KILL");
    pid = put_over(&sandbox, "data", &[]);
    let digest = sqlite(&bare, DIGEST);
    assert_eq!(sqlite(&over, DIGEST), digest, "what was committed is there after a kill");
    assert_eq!(sqlite(&over, "PRAGMA integrity_check;"), "ok\n");
    sandbox.ok(&["overlay", "detach", "data"]);
    assert!(!crate::is_running(pid), "its daemon has ended");
    assert_eq!(
        sqlite(&over, &format!("PRAGMA integrity_check; {DIGEST}")),
        format!("ok\n{digest}")
    );
}
