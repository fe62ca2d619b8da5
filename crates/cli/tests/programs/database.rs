//! pgbench and sysbench on PostgreSQL, eight clients.

use coulter_systems::{POSTGRES_USER, PostgresServer, Scratch};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const CLIENT_COUNT: u64 = 8;
/// Bytes of a unit of pgbench's scale, indexes included.
const SCALE_BYTES: u64 = 16 << 20;
const TABLE_COUNT: u64 = 8;
/// Bytes of a row of sysbench's, indexes included.
const ROW_BYTES: u64 = 250;
const SETTINGS: [&str; 4] =
    ["shared_buffers=64MB", "max_wal_size=128MB", "checkpoint_timeout=30s", "fsync=on"];

pub(crate) struct Database {
    server: PostgresServer,
    data: PathBuf,
    /// Of the server's socket.
    socket: PathBuf,
    kind: Kind,
}

enum Kind {
    Pgbench,
    Sysbench { rows: u64 },
}

impl Database {
    pub(super) fn pgbench(directory: &Path, outside: &Scratch, bytes: u64) -> Database {
        let database = Database::start(directory, outside, Kind::Pgbench);
        // A half is left for the log and for dead rows.
        let scale = (bytes / 2 / SCALE_BYTES).max(1).to_string();
        let mut pgbench = database.pgbench_command();
        run(pgbench.args(["--initialize", "--quiet", "--scale", &scale, "postgres"]));
        database
    }

    pub(super) fn sysbench(directory: &Path, outside: &Scratch, bytes: u64) -> Database {
        let rows = (bytes / 2 / TABLE_COUNT / ROW_BYTES).max(1000);
        let database = Database::start(directory, outside, Kind::Sysbench { rows });
        // By one thread: with several, sysbench 1.0.20 has died here of a null pointer.
        run(database.sysbench_command(rows).args(["--threads=1", "prepare"]));
        database
    }

    fn start(directory: &Path, outside: &Scratch, kind: Kind) -> Database {
        let socket = outside.make_directory("postgres").expect("it is new");
        let server = PostgresServer::new(socket.clone()).expect("its user can be given a place");
        let mut server = server.expect("pgbench comes with the server");
        let data = directory.join("data");
        server.create(&data).expect("there is room");
        server.start(&data, &SETTINGS).expect("it comes up");
        Database { server, data, socket, kind }
    }

    fn pgbench_command(&self) -> Command {
        let mut pgbench = self.server.command("pgbench");
        pgbench.arg("--host").arg(&self.socket);
        pgbench
    }

    fn sysbench_command(&self, rows: u64) -> Command {
        let mut sysbench = Command::new("sysbench");
        sysbench.args(["oltp_read_write", "--db-driver=pgsql", "--pgsql-db=postgres"]);
        sysbench.arg(format!("--pgsql-host={}", self.socket.display()));
        sysbench.arg(format!("--pgsql-user={POSTGRES_USER}"));
        sysbench.arg(format!("--tables={TABLE_COUNT}")).arg(format!("--table-size={rows}"));
        sysbench.arg("--rand-seed=7");
        sysbench
    }

    /// Transactions.
    pub(super) fn run(&mut self, time: Duration) -> f64 {
        let seconds = time.as_secs().max(1);
        match self.kind {
            Kind::Pgbench => {
                let mut pgbench = self.pgbench_command();
                pgbench.arg(format!("--client={CLIENT_COUNT}")).arg(format!("--time={seconds}"));
                pgbench.args(["--jobs=2", "--no-vacuum", "--random-seed=7", "postgres"]);
                let said = text(&run(&mut pgbench));
                number_after(&said, "number of transactions actually processed:")
            }
            Kind::Sysbench { rows } => {
                let mut sysbench = self.sysbench_command(rows);
                sysbench.arg(format!("--threads={CLIENT_COUNT}"));
                let said = text(&run(sysbench.arg(format!("--time={seconds}")).arg("run")));
                number_after(&said, "transactions:")
            }
        }
    }

    pub(super) fn end(mut self) {
        self.server.shut_down(&self.data).expect("it ends in order");
    }
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it can be run");
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&both));
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn number_after(said: &str, words: &str) -> f64 {
    let found = said.split_once(words).and_then(|(_, rest)| rest.split_whitespace().next());
    found.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {words} in {said}"))
}
