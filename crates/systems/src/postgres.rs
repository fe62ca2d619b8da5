//! PostgreSQL committing transactions, with all defaults that have to do with durability, and with
//! checksums on its pages; or without full-page writes, where the disk below must not tear a page.
//!
//! The server runs as a user of its own, as a child of this process. Several clients (`psql`) are
//! fed one transaction at a time and say its number when it is committed. A transaction inserts
//! two rows and counts itself, so that half of one would show. After a cut the server recovers,
//! the rows are compared, the server is shut down, and `pg_checksums` reads every page.

use crate::committer::Committer;
use crate::error::SystemsError;
use crate::postgres_server::{PACKAGE, PostgresServer};
use crate::power::Power;
use crate::scratch::end_with_parent;
use crate::tool;
use crate::workload::{Verified, Workload};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

const CLIENT_COUNT: u64 = 4;
/// Many checkpoints, and files of the log that are used again.
const SETTINGS: [&str; 3] = ["shared_buffers=16MB", "checkpoint_timeout=30s", "max_wal_size=64MB"];
/// Nothing repairs a page that was written in part.
const WITHOUT_FULL_PAGES: [&str; 4] =
    [SETTINGS[0], SETTINGS[1], SETTINGS[2], "full_page_writes=off"];
/// Bytes of a row's filling.
const FILLING_SIZE: u64 = 500;

/// PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    server: PostgresServer,
    settings: &'static [&'static str],
    /// The last transaction acknowledged, by client.
    acknowledged: Vec<u64>,
    seen: Vec<u64>,
    clients: Vec<(Child, JoinHandle<u64>)>,
}

impl Postgres {
    /// A server whose socket lies in `outside`, a directory; `None` if it is not installed.
    ///
    /// # Errors
    /// When the directory cannot be given to its user.
    pub fn new(outside: PathBuf) -> Result<Option<Postgres>, SystemsError> {
        let Some(server) = PostgresServer::new(outside)? else { return Ok(None) };
        Ok(Some(Postgres {
            server,
            settings: &SETTINGS,
            acknowledged: vec![0; CLIENT_COUNT as usize],
            seen: Vec::new(),
            clients: Vec::new(),
        }))
    }

    /// The same without full-page writes.
    #[must_use]
    pub fn without_full_pages(self) -> Postgres {
        let mut postgres = self;
        postgres.settings = &WITHOUT_FULL_PAGES;
        postgres
    }

    fn compare(&self) -> Result<Vec<u64>, SystemsError> {
        let answer = self.server.ask(&format!(
            "SELECT t.client, t.count, count(e.number), count(e.number) FILTER
                 (WHERE e.filling = {}), coalesce(max(e.number), 0), count(DISTINCT e.number)
             FROM total t LEFT JOIN entry e USING (client) GROUP BY 1, 2 ORDER BY 1",
            filling("e.number")
        ));
        let answer = answer.map_err(|error| SystemsError::violation(error.to_string()))?;
        let mut counts = Vec::new();
        let mut wrong = Vec::new();
        for line in answer.lines() {
            let numbers: Vec<u64> = line.split('|').filter_map(|n| n.parse().ok()).collect();
            let [client, count, rows, whole, last, distinct] = numbers[..] else {
                return Err(SystemsError::violation(format!("it answers {line}")));
            };
            let acknowledged = self.acknowledged[client as usize];
            let is_whole = [rows, whole] == [2 * count; 2] && [last, distinct] == [count; 2];
            if !is_whole || !(acknowledged..=acknowledged + 1).contains(&count) {
                wrong.push(format!(
                    "client {client}: {count} transactions ({acknowledged} acknowledged), {rows} \
                     rows, {whole} of them whole, {distinct} numbers up to {last}"
                ));
            }
            counts.push(count);
        }
        if counts.len() as u64 != CLIENT_COUNT {
            wrong.push(format!("{} clients of {CLIENT_COUNT}", counts.len()));
        }
        match wrong.is_empty() {
            true => Ok(counts),
            false => Err(SystemsError::violation(wrong.join("; "))),
        }
    }
}

impl Workload for Postgres {
    fn name(&self) -> &'static str {
        if self.settings.len() == SETTINGS.len() { "postgresql" } else { "postgresql, pages once" }
    }

    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError> {
        let data = directory.join("data");
        self.server.create(&data)?;
        self.server.start(&data, self.settings)?;
        self.server.ask(&format!(
            "CREATE TABLE entry (client int, number bigint, half int, filling text);
             CREATE INDEX ON entry (client, number);
             CREATE TABLE total (client int PRIMARY KEY, count bigint);
             INSERT INTO total SELECT client, 0 FROM generate_series(0, {}) client",
            CLIENT_COUNT - 1
        ))?;
        self.server.shut_down(&data)
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.server.start(&directory.join("data"), self.settings)?;
        for (client, acknowledged) in (0..).zip(self.acknowledged.clone()) {
            let mut command = self.server.client();
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = end_with_parent(&mut command)
                .spawn()
                .map_err(|error| tool::not_started(&command, PACKAGE, error))?;
            let input = process.stdin.take().expect("it is a pipe");
            let output = BufReader::new(process.stdout.take().expect("it is a pipe"));
            let power = power.clone();
            let body = move || {
                let committer = Committer { input, output, power: &power };
                committer.commit_all(acknowledged, |number| transaction(client, number))
            };
            self.clients.push((process, std::thread::spawn(body)));
        }
        Ok(())
    }

    fn stop(&mut self) {
        for (number, (mut client, thread)) in self.clients.drain(..).enumerate() {
            let _ = client.kill();
            let _ = client.wait();
            self.acknowledged[number] = thread.join().expect("a client does not panic");
        }
        self.server.kill();
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let data = directory.join("data");
        self.server.start(&data, self.settings)?;
        let compared = self.compare();
        let stopped = self.server.shut_down(&data);
        self.seen = compared?;
        stopped?;
        let mut checksums = self.server.command("pg_checksums");
        let output = tool::finish(checksums.args(["--check", "-D"]).arg(&data), PACKAGE)?;
        if !output.status.success() {
            return Err(SystemsError::violation(tool::words_of(&output)));
        }
        let durable = self.acknowledged.iter().sum();
        Ok(Verified { durable, bytes: self.seen.iter().sum::<u64>() * 2 * FILLING_SIZE })
    }

    fn settle(&mut self) {
        self.acknowledged = std::mem::take(&mut self.seen);
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The client's transaction of this number.
fn transaction(client: u64, number: u64) -> String {
    let filling = filling(number);
    let row = |half| format!("INSERT INTO entry VALUES ({client}, {number}, {half}, {filling});");
    format!(
        "BEGIN; {} {} UPDATE total SET count = count + 1 WHERE client = {client}; COMMIT; \
         SELECT {number};\n",
        row(0),
        row(1)
    )
}

/// The filling of a row, as an expression that depends on its number.
fn filling(number: impl std::fmt::Display) -> String {
    format!("lpad(({number})::text, {FILLING_SIZE}, 'x')")
}
