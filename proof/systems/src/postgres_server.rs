//! A PostgreSQL server, as a child of this process and a user of its own, with all defaults that have
//! to do with durability, and with checksums on its pages.

use crate::error::SystemsError;
use crate::scratch::end_with_parent;
use crate::tool;
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const PACKAGE: &str = "postgresql";
/// The user of the system, and of the database, that owns everything.
pub const POSTGRES_USER: &str = "postgres";
/// How long recovery, and a shutdown, may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Where the programs are, and who runs them.
#[derive(Clone, Debug)]
struct Installation {
    programs: PathBuf,
    user: u32,
    group: u32,
}

/// A server. Dropping it ends it at once.
#[derive(Debug)]
pub struct PostgresServer {
    installation: Installation,
    /// Where its socket and its log lie: not on the volume.
    outside: PathBuf,
    server: Option<Child>,
}

impl PostgresServer {
    /// A server whose socket lies in `outside`, a directory; `None` if it is not installed.
    ///
    /// # Errors
    /// When the directory cannot be given to its user.
    pub fn new(outside: PathBuf) -> Result<Option<PostgresServer>, SystemsError> {
        let Some(installation) = Installation::find() else { return Ok(None) };
        installation.own(&outside)?;
        Ok(Some(PostgresServer { installation, outside, server: None }))
    }

    /// Makes the directory `data` and an empty cluster in it.
    ///
    /// # Errors
    /// When the directory is there already, and what `initdb` says.
    pub fn create(&self, data: &Path) -> Result<(), SystemsError> {
        fs::create_dir(data).map_err(|source| SystemsError::io("make", data, source))?;
        self.installation.own(data)?;
        let mut initdb = self.command("initdb");
        initdb.args(["--data-checksums", "--auth=trust", "--no-locale", "--encoding=UTF8"]);
        tool::run(initdb.arg("-D").arg(data), PACKAGE).map(drop)
    }

    /// Starts it and waits until it answers. `settings` are `name=value`.
    ///
    /// # Errors
    /// When it cannot be started; a violation when it does not come back.
    pub fn start(&mut self, data: &Path, settings: &[&str]) -> Result<(), SystemsError> {
        self.launch(data, settings)?;
        self.wait()
    }

    /// One of its programs, run by its user.
    pub fn command(&self, program: &str) -> Command {
        let Installation { programs, user, group } = &self.installation;
        let mut command = tool::command(&programs.join(program).display().to_string());
        command.uid(*user).gid(*group).current_dir("/");
        command
    }

    /// `psql`, connected to it.
    pub(crate) fn client(&self) -> Command {
        let mut command = self.command("psql");
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        command.args(["--set", "ON_ERROR_STOP=1", "--dbname", "postgres", "--host"]);
        command.arg(&self.outside);
        command
    }

    /// What it answers to statements.
    ///
    /// # Errors
    /// What `psql` says.
    pub fn ask(&self, statements: &str) -> Result<String, SystemsError> {
        let output = tool::run(self.client().args(["--command", statements]), PACKAGE)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts the server without waiting for it.
    fn launch(&mut self, data: &Path, settings: &[&str]) -> Result<(), SystemsError> {
        let path = self.outside.join("log");
        let failed = |source| SystemsError::io("write", &path, source);
        let log = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(data).arg("-k").arg(&self.outside);
        command.args(["-c", "listen_addresses="]);
        for setting in settings {
            command.args(["-c", *setting]);
        }
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

    /// Ends it in order.
    ///
    /// # Errors
    /// What `pg_ctl` says.
    pub fn shut_down(&mut self, data: &Path) -> Result<(), SystemsError> {
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
    pub(crate) fn kill(&mut self) {
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
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Installation {
    fn find() -> Option<Installation> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        let line = passwd.lines().find(|line| line.split(':').next() == Some(POSTGRES_USER))?;
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
