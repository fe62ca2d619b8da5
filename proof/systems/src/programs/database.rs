//! pgbench and sysbench on PostgreSQL, eight clients.

use crate::error::SystemsError;
use crate::postgres_server::{PACKAGE, POSTGRES_USER, PostgresServer};
use crate::tool;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const CLIENT_COUNT: u64 = 8;
/// Bytes of a unit of pgbench's scale, indexes included.
const SCALE_BYTES: u64 = 16 << 20;
const TABLE_COUNT: u64 = 8;
/// Bytes of a row of sysbench's, indexes included.
const ROW_BYTES: u64 = 250;
const SETTINGS: [&str; 4] =
    ["shared_buffers=64MB", "max_wal_size=128MB", "checkpoint_timeout=30s", "fsync=on"];

#[derive(Debug)]
pub(super) struct Database {
    server: PostgresServer,
    data: PathBuf,
    /// Of the server's socket.
    socket: PathBuf,
    kind: Client,
}

#[derive(Debug)]
enum Client {
    Pgbench,
    Sysbench { rows: u64 },
}

impl Database {
    pub(super) fn pgbench(
        directory: &Path,
        outside: &Path,
        bytes: u64,
    ) -> Result<Database, SystemsError> {
        let database = Database::start(directory, outside, Client::Pgbench)?;
        // A half is left for the log and for dead rows.
        let scale = (bytes / 2 / SCALE_BYTES).max(1).to_string();
        let mut pgbench = database.pgbench_command();
        pgbench.args(["--initialize", "--quiet", "--scale", &scale, "postgres"]);
        tool::run(&mut pgbench, PACKAGE)?;
        Ok(database)
    }

    pub(super) fn sysbench(
        directory: &Path,
        outside: &Path,
        bytes: u64,
    ) -> Result<Database, SystemsError> {
        let rows = (bytes / 2 / TABLE_COUNT / ROW_BYTES).max(1000);
        let database = Database::start(directory, outside, Client::Sysbench { rows })?;
        // By one thread: with several, sysbench 1.0.20 has died here of a null pointer.
        let mut sysbench = database.sysbench_command(rows);
        tool::run(sysbench.args(["--threads=1", "prepare"]), "sysbench")?;
        Ok(database)
    }

    fn start(directory: &Path, outside: &Path, kind: Client) -> Result<Database, SystemsError> {
        let missing = || SystemsError::Missing { program: "postgres".to_owned(), package: PACKAGE };
        let mut server = PostgresServer::new(outside.to_owned())?.ok_or_else(missing)?;
        let data = directory.join("data");
        server.create(&data)?;
        server.start(&data, &SETTINGS)?;
        Ok(Database { server, data, socket: outside.to_owned(), kind })
    }

    fn pgbench_command(&self) -> Command {
        let mut pgbench = self.server.command("pgbench");
        pgbench.arg("--host").arg(&self.socket);
        pgbench
    }

    fn sysbench_command(&self, rows: u64) -> Command {
        let mut sysbench = tool::command("sysbench");
        sysbench.args(["oltp_read_write", "--db-driver=pgsql", "--pgsql-db=postgres"]);
        sysbench.arg(format!("--pgsql-host={}", self.socket.display()));
        sysbench.arg(format!("--pgsql-user={POSTGRES_USER}"));
        sysbench.arg(format!("--tables={TABLE_COUNT}")).arg(format!("--table-size={rows}"));
        sysbench.arg("--rand-seed=7");
        sysbench
    }

    /// Transactions.
    pub(super) fn run(&mut self, time: Duration) -> Result<f64, SystemsError> {
        let seconds = time.as_secs().max(1);
        match self.kind {
            Client::Pgbench => {
                let mut pgbench = self.pgbench_command();
                pgbench.arg(format!("--client={CLIENT_COUNT}")).arg(format!("--time={seconds}"));
                pgbench.args(["--jobs=2", "--no-vacuum", "--random-seed=7", "postgres"]);
                number_after(&mut pgbench, "number of transactions actually processed:")
            }
            Client::Sysbench { rows } => {
                let mut sysbench = self.sysbench_command(rows);
                sysbench.arg(format!("--threads={CLIENT_COUNT}"));
                sysbench.arg(format!("--time={seconds}")).arg("run");
                number_after(&mut sysbench, "transactions:")
            }
        }
    }

    pub(super) fn end(mut self) -> Result<(), SystemsError> {
        self.server.shut_down(&self.data)
    }
}

/// The number that a program prints after these words.
fn number_after(command: &mut Command, words: &str) -> Result<f64, SystemsError> {
    let output = tool::run(command, PACKAGE)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let found = said.split_once(words).and_then(|(_, rest)| rest.split_whitespace().next());
    found.and_then(|number| number.parse().ok()).ok_or_else(|| SystemsError::Program {
        command: tool::described(command),
        output: tool::words_of(&output),
    })
}
