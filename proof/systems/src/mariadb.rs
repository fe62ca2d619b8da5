//! MariaDB committing transactions without its double-write buffer: the disk below must not tear a page.
//!
//! The server is a child of this process. InnoDB writes pages of 16 KiB directly, all the time: its buffer and its log
//! are small, and no page may stay dirty. After a cut the server recovers, which refuses pages that are torn; the
//! rows are compared, the server is shut down, and `innochecksum` reads every page.

use crate::error::SystemsError;
use crate::power::Power;
use crate::scratch::end_with_parent;
use crate::tool;
use crate::transactions::{CLIENT_COUNT, Clients, judge, question, schema};
use crate::workload::{Verified, Workload};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PACKAGE: &str = "mariadb-server-core";
const CLIENT_PACKAGE: &str = "mariadb-client-core";
const DATABASE: &str = "pages";
/// What docs/atomic-writes.md tells to set.
const PAGES_ONCE: [&str; 2] = ["--innodb-doublewrite=OFF", "--innodb-flush-method=O_DIRECT"];
/// Many pages written and read again, and a log that is used again.
const SETTINGS: [&str; 7] = [
    "--innodb-buffer-pool-size=8M",
    "--innodb-log-file-size=8M",
    "--innodb-max-dirty-pages-pct=0",
    "--innodb-max-dirty-pages-pct-lwm=0",
    "--innodb-io-capacity=2000",
    // No locks of gaps, for which clients would wait.
    "--transaction-isolation=READ-COMMITTED",
    // The log synced at each commit, which is the default.
    "--innodb-flush-log-at-trx-commit=1",
];
/// How long recovery, and a shutdown, may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// MariaDB. Dropping it ends it at once.
#[derive(Debug)]
pub struct MariaDb {
    /// Where its socket and its log lie: not on the volume.
    outside: PathBuf,
    server: Option<Child>,
    /// The last transaction acknowledged, by client.
    acknowledged: Vec<u64>,
    seen: Vec<u64>,
    clients: Clients,
}

impl MariaDb {
    /// A server whose socket lies in `outside`, a directory; `None` if it is not installed.
    pub fn new(outside: PathBuf) -> Option<MariaDb> {
        // The one that makes a database comes with the server, and would make one if it were tried.
        let programs = ["mariadbd", "mariadb", "innochecksum"];
        programs.into_iter().all(tool::is_installed).then(|| MariaDb {
            outside,
            server: None,
            acknowledged: vec![0; CLIENT_COUNT as usize],
            seen: Vec::new(),
            clients: Clients::default(),
        })
    }

    /// Starts it and waits until it answers.
    fn launch(&mut self, data: &Path) -> Result<(), SystemsError> {
        let path = self.outside.join("log");
        let failed = |source| SystemsError::io("write", &path, source);
        let log = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let mut command = tool::command("mariadbd");
        command.args(["--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables"]);
        command.args(PAGES_ONCE).args(SETTINGS).arg(argument("datadir", data));
        command.arg(argument("socket", &self.socket()));
        command.arg(argument("pid-file", &self.outside.join("pid")));
        command.stdout(Stdio::null()).stderr(log);
        let server = end_with_parent(&mut command).spawn();
        self.server = Some(server.map_err(|e| tool::not_started(&command, PACKAGE, e))?);
        self.wait(&path)
    }

    /// Waits until the server answers.
    fn wait(&mut self, log: &Path) -> Result<(), SystemsError> {
        let deadline = Instant::now() + PATIENCE;
        while self.ask("", "SELECT 1").is_err() {
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(12)..].join(" | ");
                self.kill();
                let what = format!("the server does not come back ({ended:?}): {last}");
                return Err(SystemsError::violation(what));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Ends it in order.
    fn shut_down(&mut self) -> Result<(), SystemsError> {
        let stopped = self.ask("", "SHUTDOWN");
        if let (Some(mut server), true) = (self.server.take(), stopped.is_ok()) {
            let _ = server.wait();
        }
        stopped.map(drop)
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    fn socket(&self) -> PathBuf {
        self.outside.join("socket")
    }

    /// Its client, which answers each line at once.
    fn client(&self, database: &str) -> Command {
        let mut command = tool::command("mariadb");
        command.args(["--no-defaults", "--batch", "--skip-column-names", "--unbuffered"]);
        command.arg(argument("socket", &self.socket()));
        if !database.is_empty() {
            command.arg(format!("--database={database}"));
        }
        command
    }

    /// What it answers to statements.
    fn ask(&self, database: &str, statements: &str) -> Result<String, SystemsError> {
        let output =
            tool::run(self.client(database).args(["--execute", statements]), CLIENT_PACKAGE)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Workload for MariaDb {
    fn name(&self) -> &'static str {
        "mariadb-pages-once"
    }

    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError> {
        let data = directory.join("data");
        let mut install = tool::command("mariadb-install-db");
        install.args(["--no-defaults", "--user=root", "--skip-test-db", SETTINGS[1]]);
        install.args(["--auth-root-authentication-method=normal"]).arg(argument("datadir", &data));
        tool::run(&mut install, PACKAGE)?;
        self.launch(&data)?;
        self.ask("", &format!("CREATE DATABASE {DATABASE}"))?;
        self.ask(DATABASE, &schema())?;
        self.shut_down()
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.launch(&directory.join("data"))?;
        let mut clients = std::mem::take(&mut self.clients);
        let program = || self.client(DATABASE);
        let started = clients.start(program, CLIENT_PACKAGE, &self.acknowledged, power);
        self.clients = clients;
        started
    }

    fn stop(&mut self) {
        self.clients.stop(&mut self.acknowledged);
        self.kill();
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let data = directory.join("data");
        self.launch(&data)?;
        let answer = self.ask(DATABASE, &question());
        let answer = answer.map_err(|error| SystemsError::violation(error.to_string()));
        let compared = answer.and_then(|answer| judge(&answer, &self.acknowledged));
        let stopped = self.shut_down();
        self.seen = compared?;
        stopped?;
        let page_bytes = check_pages(&data)?;
        Ok(Verified { durable: self.acknowledged.iter().sum(), bytes: page_bytes })
    }

    fn settle(&mut self) {
        self.acknowledged = std::mem::take(&mut self.seen);
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads every page of every file, and how many bytes that were.
fn check_pages(data: &Path) -> Result<u64, SystemsError> {
    let mut files: Vec<PathBuf> = ["ibdata1", "undo001", "undo002", "undo003"]
        .iter()
        .map(|name| data.join(name))
        .filter(|path| path.exists())
        .collect();
    let tables = data.join(DATABASE);
    let entries =
        fs::read_dir(&tables).map_err(|source| SystemsError::io("list", &tables, source))?;
    let tables = entries.flatten().map(|entry| entry.path());
    files.extend(tables.filter(|path| path.extension().is_some_and(|kind| kind == "ibd")));
    let mut bytes = 0;
    for file in &files {
        let output = tool::finish(tool::command("innochecksum").arg(file), PACKAGE)?;
        if !output.status.success() {
            let what = format!("a page of {} is torn: {}", file.display(), tool::words_of(&output));
            return Err(SystemsError::violation(what));
        }
        bytes += fs::metadata(file).map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}

fn argument(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_torn_page_is_found() {
        let scratch = Scratch::new(Path::new("/var/tmp")).expect("a directory can be made");
        let outside = scratch.make_directory("outside").expect("it is ours");
        let Some(mut mariadb) = MariaDb::new(outside) else {
            println!("SKIPPED: mariadb is not installed");
            return;
        };
        let directory = scratch.make_directory("inside").expect("it is ours");
        mariadb.prepare(&directory).expect("it works");
        let verified = mariadb.verify(&directory).expect("all is well");
        assert!(verified.bytes > 0, "pages were read");
        let table = directory.join("data").join(DATABASE).join("entry.ibd");
        let file = File::options().read(true).write(true).open(table).expect("it is there");
        // The root of the table: its second half comes from another time.
        file.write_all_at(&[7; 8192], 3 * 16384 + 8192).expect("it is ours");
        let error = mariadb.verify(&directory).expect_err("a page is torn");
        assert!(error.is_violation(), "{error}");
    }
}
