//! PostgreSQL committing transactions, with all defaults that have to do with durability, and with
//! checksums on its pages.
//!
//! The server runs as a user of its own, as a child of this process. Several clients (`psql`) are
//! fed one transaction at a time and say its number when it is committed. A transaction inserts
//! two rows and counts itself, so that half of one would show. After a cut the server recovers,
//! the rows are compared, the server is shut down, and `pg_checksums` reads every page.

use crate::error::SystemsError;
use crate::power::Power;
use crate::scratch::end_with_parent;
use crate::tool;
use crate::workload::{Verified, Workload};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CLIENT_COUNT: u64 = 4;
const PACKAGE: &str = "postgresql";
const USER: &str = "postgres";
/// How long recovery, and a shutdown, may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of a row's filling.
const FILLING_SIZE: u64 = 500;

/// Where the programs are, and who runs them.
#[derive(Clone, Debug)]
struct Installation {
    programs: PathBuf,
    user: u32,
    group: u32,
}

/// PostgreSQL.
#[derive(Debug)]
pub struct Postgres {
    installation: Installation,
    /// Where its socket and its log lie: not on the volume.
    outside: PathBuf,
    /// The last transaction acknowledged, by client.
    acknowledged: Vec<u64>,
    seen: Vec<u64>,
    server: Option<Child>,
    clients: Vec<(Child, JoinHandle<u64>)>,
}

impl Postgres {
    /// A server whose socket lies in `outside`, a directory; `None` if it is not installed.
    ///
    /// # Errors
    /// When the directory cannot be given to its user.
    pub fn new(outside: PathBuf) -> Result<Option<Postgres>, SystemsError> {
        let Some(installation) = Installation::find() else { return Ok(None) };
        installation.own(&outside)?;
        Ok(Some(Postgres {
            installation,
            outside,
            acknowledged: vec![0; CLIENT_COUNT as usize],
            seen: Vec::new(),
            server: None,
            clients: Vec::new(),
        }))
    }

    fn command(&self, program: &str) -> Command {
        let Installation { programs, user, group } = &self.installation;
        let mut command = tool::command(&programs.join(program).display().to_string());
        command.uid(*user).gid(*group).current_dir("/");
        command
    }

    fn client(&self) -> Command {
        let mut command = self.command("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        command.args(["--set", "ON_ERROR_STOP=1", "--dbname", "postgres", "--host"]);
        command.arg(&self.outside);
        command
    }

    fn ask(&self, statements: &str) -> Result<String, SystemsError> {
        let output = tool::run(self.client().args(["--command", statements]), PACKAGE)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts the server without waiting for it.
    fn launch(&mut self, data: &Path) -> Result<(), SystemsError> {
        let path = self.outside.join("log");
        let failed = |source| SystemsError::io("write", &path, source);
        let log = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(data).arg("-k").arg(&self.outside);
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB"]);
        // Many checkpoints, and files of the log that are used again.
        command.args(["-c", "checkpoint_timeout=30s", "-c", "max_wal_size=64MB"]);
        command.stdout(Stdio::null()).stderr(log);
        let server = end_with_parent(&mut command).spawn();
        self.server = Some(server.map_err(|e| tool::not_started(&command, PACKAGE, e))?);
        Ok(())
    }

    /// Waits until the server answers.
    fn wait(&mut self) -> Result<(), SystemsError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.ask("SELECT 1").is_ok() {
                return Ok(());
            }
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.outside.join("log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(12).collect();
                let last = last.into_iter().rev().collect::<Vec<_>>().join(" | ");
                let what = format!("the server does not come back ({ended:?}): {last}");
                self.kill();
                return Err(SystemsError::violation(what));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends the server as `signal` asks it to: `INT` for an orderly end.
    fn shut_down(&mut self, data: &Path) -> Result<(), SystemsError> {
        let stopped = tool::run(
            self.command("pg_ctl").args(["stop", "--mode=fast", "--silent", "-D"]).arg(data),
            PACKAGE,
        );
        match (self.server.take(), stopped) {
            (Some(mut server), Ok(_)) => {
                let _ = server.wait();
                Ok(())
            }
            (server, stopped) => {
                self.server = server;
                self.kill();
                stopped.map(drop)
            }
        }
    }

    /// Ends the server at once. Its children notice and follow.
    fn kill(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let children = children_of(server.id());
        let _ = server.kill();
        let _ = server.wait();
        let deadline = Instant::now() + PATIENCE;
        for child in children {
            // They notice by themselves when they look; a busy one may not look for a while.
            kill(child);
            while Path::new(&format!("/proc/{child}")).exists() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn compare(&self) -> Result<Vec<u64>, SystemsError> {
        let answer = self.ask(&format!(
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
        "postgresql"
    }

    fn prepare(&mut self, directory: &Path) -> Result<(), SystemsError> {
        let data = directory.join("data");
        fs::create_dir(&data).map_err(|source| SystemsError::io("make", &data, source))?;
        self.installation.own(&data)?;
        let mut initdb = self.command("initdb");
        initdb.args(["--data-checksums", "--auth=trust", "--no-locale", "--encoding=UTF8"]);
        tool::run(initdb.arg("-D").arg(&data), PACKAGE)?;
        self.launch(&data)?;
        self.wait()?;
        self.ask(&format!(
            "CREATE TABLE entry (client int, number bigint, half int, filling text);
             CREATE INDEX ON entry (client, number);
             CREATE TABLE total (client int PRIMARY KEY, count bigint);
             INSERT INTO total SELECT client, 0 FROM generate_series(0, {}) client",
            CLIENT_COUNT - 1
        ))?;
        self.shut_down(&data)
    }

    fn start(&mut self, directory: &Path, power: &Power) -> Result<(), SystemsError> {
        self.launch(&directory.join("data"))?;
        self.wait()?;
        for (client, acknowledged) in (0..).zip(self.acknowledged.clone()) {
            let mut command = self.client();
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = end_with_parent(&mut command)
                .spawn()
                .map_err(|error| tool::not_started(&command, PACKAGE, error))?;
            let input = process.stdin.take().expect("it is a pipe");
            let output = BufReader::new(process.stdout.take().expect("it is a pipe"));
            let power = power.clone();
            let body = move || commit(input, output, client, acknowledged, &power);
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
        self.kill();
    }

    fn verify(&mut self, directory: &Path) -> Result<Verified, SystemsError> {
        let data = directory.join("data");
        self.launch(&data)?;
        self.wait()?;
        let compared = self.compare();
        let stopped = self.shut_down(&data);
        self.seen = compared?;
        stopped?;
        let mut checksums = self.command("pg_checksums");
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

impl Installation {
    fn find() -> Option<Installation> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        let line = passwd.lines().find(|line| line.split(':').next() == Some(USER))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        let (Some(Ok(user)), Some(Ok(group))) = (numbers.next(), numbers.next()) else {
            return None;
        };
        // Debian keeps each major version apart.
        let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let programs = versions.map(|version| version.path().join("bin"));
        let programs = programs.filter(|path| path.join("postgres").exists()).max()?;
        Some(Installation { programs, user, group })
    }

    fn own(&self, directory: &Path) -> Result<(), SystemsError> {
        chown(directory, Some(self.user), Some(self.group))
            .map_err(|source| SystemsError::io("change the owner of", directory, source))
    }
}

/// Commits one transaction after the other; the number of the last that was acknowledged.
fn commit(
    mut input: impl Write,
    mut output: impl BufRead,
    client: u64,
    mut acknowledged: u64,
    power: &Power,
) -> u64 {
    let mut line = String::new();
    loop {
        let number = acknowledged + 1;
        let filling = filling(number);
        let row =
            |half| format!("INSERT INTO entry VALUES ({client}, {number}, {half}, {filling});");
        let transaction = format!(
            "BEGIN; {} {} UPDATE total SET count = count + 1 WHERE client = {client}; COMMIT; \
             SELECT {number};\n",
            row(0),
            row(1)
        );
        line.clear();
        let sent = input.write_all(transaction.as_bytes());
        if sent.is_err() || output.read_line(&mut line).is_err() {
            return acknowledged;
        }
        if line.trim() != number.to_string() || !power.is_on() {
            return acknowledged;
        }
        acknowledged = number;
    }
}

/// The filling of a row, as an expression that depends on its number.
fn filling(number: impl std::fmt::Display) -> String {
    format!("lpad(({number})::text, {FILLING_SIZE}, 'x')")
}

fn children_of(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
