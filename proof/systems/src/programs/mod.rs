//! Programs that the papers measured with, on a mounted file system: real ones where Debian has them,
//! generated loads ([`Replay`]) where it does not.

mod database;
mod fio;
mod postmark;

use crate::error::SystemsError;
use crate::replay::Replay;
use crate::tool::is_on_path;
use coulter_flash::Workload;
use database::Database;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A program by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// fio, 8 threads, 4 KiB at random.
    Fio {
        /// Past the page cache.
        direct: bool,
    },
    /// PostMark with the block-layer paper's parameters, scaled to the space.
    Postmark,
    /// pgbench on PostgreSQL: TPC-B-like.
    Pgbench,
    /// sysbench's read-write transactions on PostgreSQL.
    Sysbench,
    /// A generated load, by the name that `coulter-lab flash run --workload` knows.
    Generated(&'static str),
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 10] = [
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

    /// What it is called in tables and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Program::Fio { direct: true } => "fio-direct",
            Program::Fio { direct: false } => "fio-buffered",
            Program::Postmark => "postmark",
            Program::Pgbench => "pgbench",
            Program::Sysbench => "sysbench",
            Program::Generated(name) => name,
        }
    }

    /// What is missing to run it.
    pub fn missing(self) -> Option<&'static str> {
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

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Program {
    type Err = String;

    fn from_str(name: &str) -> Result<Program, String> {
        let found = Program::ALL.into_iter().find(|program| program.name() == name);
        found.ok_or_else(|| {
            let names = Program::ALL.map(Program::name).join(", ");
            format!("'{name}' is none of {names}")
        })
    }
}

/// A program at work in a directory.
#[derive(Debug)]
pub struct AtWork(Doing);

#[derive(Debug)]
enum Doing {
    Fio(fio::Fio),
    Postmark(postmark::Postmark),
    Database(Database),
    Generated(Replay),
}

impl AtWork {
    /// Makes its files, so that they fill about `bytes`, and ages them. `outside` is a new
    /// directory that is not measured.
    ///
    /// # Errors
    /// When it is not installed, and what it says when it fails.
    ///
    /// # Panics
    /// When a generated load has no such name.
    pub fn prepare(
        program: Program,
        directory: &Path,
        outside: &Path,
        bytes: u64,
    ) -> Result<AtWork, SystemsError> {
        let kind = match program {
            Program::Fio { direct } => Doing::Fio(fio::Fio::prepare(directory, direct, bytes)?),
            Program::Postmark => {
                Doing::Postmark(postmark::Postmark::prepare(directory, outside, bytes)?)
            }
            Program::Pgbench => Doing::Database(Database::pgbench(directory, outside, bytes)?),
            Program::Sysbench => Doing::Database(Database::sysbench(directory, outside, bytes)?),
            Program::Generated(name) => {
                let workload: Workload = name.parse().expect("it is a workload");
                let replay = Replay::new(directory, workload, bytes, 1);
                replay.prepare()?;
                Doing::Generated(replay)
            }
        };
        Ok(AtWork(kind))
    }

    /// Works for so long; the operations or transactions that were done.
    ///
    /// # Errors
    /// What it says when it fails.
    pub fn run(&mut self, time: Duration) -> Result<f64, SystemsError> {
        match &mut self.0 {
            Doing::Fio(fio) => fio.run(time),
            Doing::Postmark(postmark) => postmark.run(time),
            Doing::Database(database) => database.run(time),
            Doing::Generated(replay) => Ok(replay.run(time)?.operations as f64),
        }
    }

    /// Leaves the directory to whoever unmounts it.
    ///
    /// # Errors
    /// When a server does not end in order.
    pub fn end(self) -> Result<(), SystemsError> {
        match self.0 {
            Doing::Database(database) => database.end(),
            Doing::Fio(_) | Doing::Postmark(_) | Doing::Generated(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_found_by_its_name() {
        for program in Program::ALL {
            assert_eq!(program.name().parse(), Ok(program));
        }
        assert!("fio".parse::<Program>().is_err_and(|said| said.contains("fio-direct")));
    }
}
