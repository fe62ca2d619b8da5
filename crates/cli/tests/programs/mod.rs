//! Programs that the papers measured with, on a mounted file system: real ones where Debian has them,
//! generated loads ([`coulter_systems::Replay`]) where it does not.

mod database;
mod fio;
mod postmark;

use crate::sandbox::is_on_path;
use coulter_flash::Workload;
use coulter_systems::{Replay, Scratch};
use database::Database;
use std::path::Path;
use std::time::Duration;

/// A program by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// fio, 8 threads, 4 KiB at random.
    Fio { direct: bool },
    /// PostMark with the block-layer paper's parameters, scaled to the space.
    Postmark,
    /// pgbench on PostgreSQL: TPC-B-like.
    Pgbench,
    /// sysbench's read-write transactions on PostgreSQL.
    Sysbench,
    /// A generated load.
    Generated(&'static str),
}

/// All of them.
const ALL: [Program; 10] = [
    Program::Fio { direct: true },
    Program::Fio { direct: false },
    Program::Postmark,
    Program::Pgbench,
    Program::Sysbench,
    Program::Generated("ffsb:0"),
    Program::Generated("ffsb:50"),
    Program::Generated("tiobench"),
    Program::Generated("varmail"),
    Program::Generated("tpcc"),
];

/// The programs that are run, if not all: a list of names in `COULTER_PROGRAMS`.
pub(crate) fn chosen() -> Vec<Program> {
    let names = std::env::var("COULTER_PROGRAMS").unwrap_or_default();
    let names: Vec<&str> = names.split(';').filter(|name| !name.is_empty()).collect();
    let is_chosen = |program: &Program| names.is_empty() || names.contains(&program.name());
    ALL.into_iter().filter(is_chosen).collect()
}

impl Program {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Fio { direct: true } => "fio, direct",
            Program::Fio { direct: false } => "fio, buffered",
            Program::Postmark => "PostMark",
            Program::Pgbench => "pgbench",
            Program::Sysbench => "sysbench",
            Program::Generated(name) => name,
        }
    }

    /// What is missing to run it.
    pub(crate) fn missing(self) -> Option<&'static str> {
        let needed: &[&'static str] = match self {
            Program::Fio { .. } => &["fio"],
            Program::Postmark => &["postmark"],
            Program::Pgbench => &["pgbench"],
            Program::Sysbench => &["pgbench", "sysbench"],
            Program::Generated(_) => &[],
        };
        needed.iter().copied().find(|program| !is_on_path(program))
    }
}

/// A program at work in a directory.
pub(crate) enum Running {
    Fio(fio::Fio),
    Postmark(postmark::Postmark),
    Database(Database),
    Generated(Replay),
}

impl Running {
    /// Makes its files, so that they fill about `bytes`, and ages them. `outside` is a place that is
    /// not measured.
    pub(crate) fn prepare(
        program: Program,
        directory: &Path,
        outside: &Scratch,
        bytes: u64,
    ) -> Running {
        match program {
            Program::Fio { direct } => Running::Fio(fio::Fio::prepare(directory, direct, bytes)),
            Program::Postmark => {
                Running::Postmark(postmark::Postmark::prepare(directory, outside, bytes))
            }
            Program::Pgbench => Running::Database(Database::pgbench(directory, outside, bytes)),
            Program::Sysbench => Running::Database(Database::sysbench(directory, outside, bytes)),
            Program::Generated(name) => {
                let workload: Workload = name.parse().expect("it is a workload");
                let replay = Replay::new(directory, workload, bytes, 1);
                replay.prepare().expect("there is room");
                Running::Generated(replay)
            }
        }
    }

    /// Works for so long; the operations or transactions that were done.
    pub(crate) fn run(&mut self, time: Duration) -> f64 {
        match self {
            Running::Fio(fio) => fio.run(time),
            Running::Postmark(postmark) => postmark.run(time),
            Running::Database(database) => database.run(time),
            Running::Generated(replay) => {
                replay.run(time).expect("there is room").operations as f64
            }
        }
    }

    /// Leaves the directory to whoever unmounts it.
    pub(crate) fn end(self) {
        if let Running::Database(database) = self {
            database.end();
        }
    }
}
