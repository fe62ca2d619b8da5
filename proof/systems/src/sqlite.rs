//! SQLite committing transactions, in both of its ways of journalling.
//!
//! | journal | synchronous | a commit is durable after |
//! |---|---|---|
//! | write-ahead log | `FULL` | the log is synced |
//! | rollback | `EXTRA` | the journal is removed, and its directory synced |
//!
//! Each database has one client: the program `sqlite3`, which is fed one transaction at a time and
//! says its number when it is committed. A transaction inserts two rows and counts itself, so that
//! half of one would show.

use crate::committer::Committer;
use crate::error::SystemsError;
use crate::power::Power;
use crate::scratch::end_with_parent;
use crate::tool;
use crate::workload::{Verified, Workload};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

/// Bytes of a row's filling.
const FILLING_SIZE: u64 = 3000;

/// A way of journalling.
#[derive(Debug)]
struct Mode {
    file: &'static str,
    pragmas: &'static str,
}

const MODES: [Mode; 2] = [
    Mode { file: "wal.db", pragmas: "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" },
    Mode { file: "rollback.db", pragmas: "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA;" },
];

/// SQLite.
#[derive(Debug, Default)]
pub struct Sqlite {
    /// The last transaction acknowledged, by mode.
    acknowledged: Vec<u64>,
    seen: Vec<u64>,
    clients: Vec<(Child, JoinHandle<u64>)>,
}

impl Sqlite {
    /// Whether its program is installed.
    pub fn is_installed() -> bool {
        tool::is_installed("sqlite3")
    }
}

impl Workload for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError> {
        for mode in &MODES {
            let schema = "CREATE TABLE entry (number INTEGER, half INTEGER, filling BLOB);
                CREATE INDEX by_number ON entry (number, half);
                CREATE TABLE total (count INTEGER); INSERT INTO total VALUES (0);";
            ask(&directory.join(mode.file), &format!("{}{schema}", mode.pragmas))?;
            self.acknowledged.push(0);
        }
        let synced = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|source| SystemsError::io("sync", directory, source))
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        for (mode, acknowledged) in MODES.iter().zip(&self.acknowledged) {
            let mut command = tool::command("sqlite3");
            command.args(["-batch", "-bail"]).arg(directory.join(mode.file));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut client = end_with_parent(&mut command)
                .spawn()
                .map_err(|error| tool::not_started(&command, "sqlite3", error))?;
            let input = client.stdin.take().expect("it is a pipe");
            let output = BufReader::new(client.stdout.take().expect("it is a pipe"));
            let (pragmas, last) = (mode.pragmas, *acknowledged);
            let power = power.clone();
            let body = move || commit(input, output, pragmas, last, &power);
            let thread = std::thread::spawn(body);
            self.clients.push((client, thread));
        }
        Ok(())
    }

    fn stop(&mut self) {
        for (number, (mut client, thread)) in self.clients.drain(..).enumerate() {
            let _ = client.kill();
            let _ = client.wait();
            self.acknowledged[number] = thread.join().expect("a client does not panic");
        }
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let mut verified = Verified::default();
        self.seen.clear();
        for (mode, acknowledged) in MODES.iter().zip(&self.acknowledged) {
            let path = directory.join(mode.file);
            let found = look(&path, *acknowledged)?;
            verified.durable += acknowledged;
            verified.bytes += found * 2 * FILLING_SIZE;
            self.seen.push(found);
        }
        Ok(verified)
    }

    fn settle(&mut self) {
        self.acknowledged = std::mem::take(&mut self.seen);
    }
}

/// Sets the database's journal, then commits one transaction after the other; the number of the last
/// that was acknowledged.
fn commit(
    mut input: impl Write,
    mut output: impl BufRead,
    pragmas: &str,
    acknowledged: u64,
    power: &Power,
) -> u64 {
    // Each answers a line for the journal's mode.
    let mut line = String::new();
    if writeln!(input, "{pragmas}").is_err() || output.read_line(&mut line).is_err() {
        return acknowledged;
    }
    Committer { input, output, power }.commit_all(acknowledged, transaction)
}

/// The transaction of this number.
fn transaction(number: u64) -> String {
    let filling = filling(number);
    let row = |half| format!("INSERT INTO entry VALUES ({number}, {half}, {filling});");
    format!(
        "BEGIN; {} {} UPDATE total SET count = count + 1; COMMIT; SELECT {number};\n",
        row(0),
        row(1)
    )
}

/// The filling of a row, as an expression that depends on its number.
fn filling(number: impl std::fmt::Display) -> String {
    format!("substr(hex(zeroblob({FILLING_SIZE})) || {number}, -{FILLING_SIZE})")
}

/// How many transactions the database has, if it is whole and has all that were acknowledged; one
/// more may have been committed without an answer.
fn look(path: &Path, acknowledged: u64) -> Result<u64, SystemsError> {
    let wrong = |what: String| SystemsError::violation(format!("{}: {what}", path.display()));
    let question = format!(
        "PRAGMA integrity_check; SELECT count FROM total; SELECT count(*) FROM entry;
         SELECT count(*) FROM entry WHERE filling = {}; SELECT coalesce(max(number), 0) FROM entry;
         SELECT count(*) FROM (SELECT DISTINCT number, half FROM entry INDEXED BY by_number);",
        filling("number")
    );
    let answer = ask(&path.to_owned(), &question).map_err(|error| wrong(error.to_string()))?;
    let mut lines = answer.lines();
    if lines.next() != Some("ok") {
        return Err(wrong(format!("integrity_check: {answer}")));
    }
    let numbers: Vec<u64> = lines.filter_map(|line| line.parse().ok()).collect();
    let [count, rows, whole, last, distinct] = numbers[..] else {
        return Err(wrong(format!("it answers {answer}")));
    };
    if [rows, whole, distinct] != [2 * count; 3] || last != count {
        return Err(wrong(format!(
            "{count} transactions, {rows} rows, {distinct} of them distinct, {whole} of them \
             whole, the last {last}"
        )));
    }
    if !(acknowledged..=acknowledged + 1).contains(&count) {
        return Err(wrong(format!("{count} transactions, {acknowledged} acknowledged")));
    }
    Ok(count)
}

/// Runs statements on a database.
fn ask(path: &PathBuf, statements: &str) -> Result<String, SystemsError> {
    let mut command = tool::command("sqlite3");
    let output = tool::run(command.args(["-batch", "-bail"]).arg(path).arg(statements), "sqlite3")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
