//! PostgreSQL committing transactions, with all defaults that have to do with durability, and with
//! checksums on its pages; or without full-page writes, where the disk below must not tear a page.
//!
//! The server runs as a user of its own, as a child of this process. Several clients (`psql`) are
//! fed one transaction at a time and say its number when it is committed. After a cut the server
//! recovers, the rows are compared, the server is shut down, and `pg_checksums` reads every page.

use crate::error::SystemsError;
use crate::postgres_server::{PACKAGE, PostgresServer};
use crate::power::Power;
use crate::tool;
use crate::transactions::{CLIENT_COUNT, Clients, FILLING_SIZE, judge, question, schema};
use crate::workload::{Verified, Workload};
use std::path::{Path, PathBuf};

/// Many checkpoints, and files of the log that are used again.
const SETTINGS: [&str; 3] = ["shared_buffers=16MB", "checkpoint_timeout=30s", "max_wal_size=64MB"];
/// Nothing repairs a page that was written in part.
const WITHOUT_FULL_PAGES: [&str; 4] =
    [SETTINGS[0], SETTINGS[1], SETTINGS[2], "full_page_writes=off"];

/// PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    server: PostgresServer,
    settings: &'static [&'static str],
    /// The last transaction acknowledged, by client.
    acknowledged: Vec<u64>,
    seen: Vec<u64>,
    clients: Clients,
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
            clients: Clients::default(),
        }))
    }

    /// The same without full-page writes.
    #[must_use]
    pub fn without_full_pages(self) -> Postgres {
        let mut postgres = self;
        postgres.settings = &WITHOUT_FULL_PAGES;
        postgres
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
        self.server.ask(&schema())?;
        self.server.shut_down(&data)
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.server.start(&directory.join("data"), self.settings)?;
        self.clients.start(|| self.server.client(), PACKAGE, &self.acknowledged, power)
    }

    fn stop(&mut self) {
        self.clients.stop(&mut self.acknowledged);
        self.server.kill();
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let data = directory.join("data");
        self.server.start(&data, self.settings)?;
        let answer = self.server.ask(&question());
        let answer = answer.map_err(|error| SystemsError::violation(error.to_string()));
        let compared = answer.and_then(|answer| judge(&answer, &self.acknowledged));
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
