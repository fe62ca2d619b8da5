//! An operator who never rests. Hosts write all the while and know what they must read; daemons are tuned,
//! restarted, stopped, ended and killed, also in the middle of starting, restarting and detaching;
//! stores grow, are checked, and come back by another attach point.
//!
//! Each single act has a test of its own elsewhere. Here they meet in orders that nobody thought of.
//!
//! # What must hold
//! - A write or zeroing that was answered is there whenever the volume is: a daemon may be killed, the
//!   machine is not. One that was under way is there or not, block by block; whole or not at all, if it is a
//!   write of an NBD client's.
//! - A daemon that is killed may lose discards that it has answered: of each host the last ones, and none
//!   before a write or zeroing that was answered.
//! - One that acknowledges from memory may then lose whatever was not flushed: of each host the last
//!   requests, and none before one that is there.
//! - A host meets an error only when the operator took its device away.
//! - No command hangs, none fails that may not, and no host stands still.
//! - A store is sound whenever it is not attached.
//!
//! For seconds in every run of the tests; for `COULTER_OPERATOR_SECONDS` (300) by `make operator`.
//! `COULTER_OPERATOR_SEED` chooses another series of acts. Threads and kernels have their own time, so the
//! same seed gives the same acts, not the same moments.

mod hosts;
mod sandbox;

use coulter_workload::Random;
use hosts::{HostThread, Loss, SIZE, Site, Trouble, Way};
use sandbox::{PATIENCE, Sandbox, can_mount, is_running, send, wait_until};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// With little to spare beside the blocks of all hosts, so that there is always something to clean.
const STORE_MIB: u64 = 112;
const STORE_MIB_MAX: u64 = 144;
const NAME: &str = "disk";
const STORE: &str = "disk.img";

/// Every setting of `coulter tune` and the values that are tried.
const SETTINGS: &[(&str, &[&str])] = &[
    ("cleaning", &["paced", "paused", "drain"]),
    ("policy", &["damped-age", "cost-benefit", "greedy"]),
    ("placement", &["lifetime", "apart", "mixed"]),
    ("reclaim", &["copy-out", "hole-fill", "threaded"]),
    ("cleaning-rate", &["1M", "100M", "none"]),
    ("latency-target", &["1ms", "none"]),
    ("idle-cleaning", &["on", "off"]),
    ("idle-after", &["10ms", "1s"]),
    ("defrag", &["on", "off"]),
    ("space-patience", &["1s", "1m"]),
];

/// Who does things to daemons.
struct Operator {
    sandbox: Sandbox,
    site: Arc<Site>,
    random: Random,
    can_mount: bool,
    is_loop: bool,
    /// Whether writes are acknowledged from memory.
    is_buffered: bool,
    /// What the daemon may have lost when it ended, and hosts were not told yet.
    loss: Loss,
    store_mib: u64,
    programs: [PathBuf; 2],
}

impl Operator {
    fn command(&self, arguments: &[&str]) -> Command {
        let program = self.sandbox.command(arguments);
        let mut command = Command::new("timeout");
        // What hangs ends with 137.
        command.args(["--signal=KILL", &PATIENCE.as_secs().to_string()]);
        command.arg(program.get_program()).args(arguments);
        command
            .current_dir(self.sandbox.path(""))
            .env("COULTER_STATE_DIRECTORY", self.sandbox.path("state"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command that may fail, but not hang.
    fn run(&self, arguments: &[&str]) -> Output {
        ended(arguments, self.start(arguments))
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("`timeout` is there")
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "coulter {}: {error}", arguments.join(" "));
        output
    }

    fn pause(&mut self, milliseconds: u64) {
        thread::sleep(Duration::from_millis(self.random.below(milliseconds)));
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.random.below(from.len() as u64) as usize]
    }

    /// Attaches the volume, gives it to the hosts and waits until each has seen that nothing is lost.
    fn attach(&mut self) {
        self.is_loop = self.can_mount && self.random.below(2) == 0;
        let via = if self.is_loop { "loop" } else { "nbd-server" };
        let tune = self.setting();
        self.is_buffered = self.random.below(2) == 0;
        let acknowledge = if self.is_buffered { "buffered" } else { "written" };
        let arguments =
            ["attach", STORE, "--name", NAME, "--via", via, "--acknowledge", acknowledge];
        let tuned = [arguments.as_slice(), &["--tune", &tune]].concat();
        // To be drained or put in order is asked for later.
        let is_tuned = self.random.below(2) == 0 && !tune.starts_with("defrag");
        let output = self.ok(if is_tuned { &tuned } else { &arguments });
        let device = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        let socket = self.sandbox.path(&format!("state/{NAME}.nbd"));
        let way = if self.is_loop { Way::Path(device.into()) } else { Way::Nbd(socket) };
        self.site.give(way, std::mem::take(&mut self.loss));
        self.expect_progress();
    }

    /// Waits until each host has been answered.
    fn expect_progress(&self) {
        for answered in &self.site.answered {
            let before = answered.load(Ordering::SeqCst);
            wait_until("a host goes on", || {
                answered.load(Ordering::SeqCst) > before || self.site.is_over()
            });
        }
    }

    fn setting(&mut self) -> String {
        let (key, values) = SETTINGS[self.random.below(SETTINGS.len() as u64) as usize];
        format!("{key}={}", self.pick(values))
    }

    /// Does one thing to a volume that is attached, and leaves it attached.
    fn act(&mut self) {
        let kind = self.random.below(16);
        let begun = Instant::now();
        let what = match kind {
            0..3 => self.tune(),
            3 => self.look(),
            4..6 => self.restart(),
            6 => self.stop_for_a_moment(),
            7 => self.detach_by_force(),
            8 => self.end_by_signal("TERM"),
            9 => self.end_by_signal("KILL"),
            10 => self.kill_within("KILL", &["restart", NAME]),
            11 => self.kill_within("TERM", &["restart", NAME]),
            12 => self.kill_within("KILL", &["detach", NAME, "--force"]),
            13 => self.two_at_once(),
            14 => self.end_the_one_who_attaches(),
            _ => self.grow(),
        };
        println!("{:6} ms: {what}", begun.elapsed().as_millis());
        self.expect_progress();
    }

    fn tune(&mut self) -> String {
        let setting = self.setting();
        self.ok(&["tune", NAME, &setting]);
        setting
    }

    fn look(&mut self) -> String {
        self.ok(&["status", NAME, "--json"]);
        self.ok(&["list"]);
        let output = self.run(&["check", STORE]);
        assert!(!output.status.success(), "somebody else has the store");
        "look".to_owned()
    }

    fn restart(&mut self) -> String {
        let program = self.programs[self.random.below(2) as usize].clone();
        // Connections to a server end with it.
        if !self.is_loop {
            self.site.take_away();
        }
        self.ok(&["restart", NAME, "--program", &program.to_string_lossy()]);
        if !self.is_loop {
            let socket = self.sandbox.path(&format!("state/{NAME}.nbd"));
            self.site.give(Way::Nbd(socket), Loss::Nothing);
        }
        format!("restart, loop: {}", self.is_loop)
    }

    fn stop_for_a_moment(&mut self) -> String {
        let pid = self.sandbox.pid_of(NAME);
        send(pid, "STOP");
        self.pause(200);
        send(pid, "CONT");
        "stop and continue".to_owned()
    }

    fn detach_by_force(&mut self) -> String {
        self.site.take_away();
        self.ok(&["detach", NAME, "--force"]);
        self.check_and_attach("detach --force")
    }

    /// What the daemon may lose if it ends by a signal.
    fn loss_by(&self, signal: &str) -> Loss {
        match signal {
            "KILL" if self.is_buffered => Loss::Requests,
            "KILL" => Loss::Discards,
            _ => Loss::Nothing,
        }
    }

    fn end_by_signal(&mut self, signal: &str) -> String {
        self.site.take_away();
        let pid = self.sandbox.pid_of(NAME);
        send(pid, signal);
        wait_until("the daemon is gone", || !is_running(pid));
        self.loss = self.loss_by(signal);
        self.check_and_attach(signal)
    }

    /// Sends the daemon a signal while it is at work on a command.
    fn kill_within(&mut self, signal: &str, command: &[&str]) -> String {
        self.site.take_away();
        let pid = self.sandbox.pid_of(NAME);
        let child = self.start(command);
        self.pause(80);
        if is_running(pid) {
            let pid = pid.to_string();
            // It may be gone by now.
            let _ = Command::new("kill").args(["-s", signal, &pid]).stderr(Stdio::null()).status();
        }
        ended(command, child);
        wait_until("the daemon is gone", || !is_running(pid));
        self.loss = self.loss_by(signal);
        self.check_and_attach(&format!("{signal} within {}", command[0]))
    }

    /// Two commands, of which either may find that the other was quicker.
    fn two_at_once(&mut self) -> String {
        let commands: [&[&str]; 6] = [
            &["status", NAME],
            &["restart", NAME],
            &["tune", NAME, "cleaning=paced"],
            &["detach", NAME, "--force"],
            &["attach", STORE, "--name", NAME, "--via", "nbd-server"],
            &["check", STORE],
        ];
        self.site.take_away();
        let two = [0, 1].map(|_| commands[self.random.below(6) as usize]);
        let children = two.map(|command| self.start(command));
        for (command, child) in two.iter().zip(children) {
            ended(command, child);
        }
        // Either of them may have ended it.
        let output = self.run(&["detach", NAME, "--force"]);
        assert!(output.status.success() || !self.is_attached(), "{output:?}");
        self.check_and_attach(&format!("{} and {} at once", two[0][0], two[1][0]))
    }

    /// The command ends before it could say that the volume is attached; it may be, or not.
    fn end_the_one_who_attaches(&mut self) -> String {
        self.site.take_away();
        self.ok(&["detach", NAME, "--force"]);
        let via = if self.can_mount { "loop" } else { "nbd-server" };
        // `timeout` would leave it alone when it is killed itself.
        let mut child = self
            .sandbox
            .command(&["attach", STORE, "--name", NAME, "--via", via])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started");
        self.pause(120);
        let _ = child.kill();
        let _ = child.wait();
        // The daemon goes on with what it began, or ends.
        wait_until("the store is free", || {
            self.run(&["detach", NAME, "--force"]);
            self.run(&["check", STORE]).status.success()
        });
        self.check_and_attach("attach interrupted")
    }

    fn grow(&mut self) -> String {
        self.site.take_away();
        self.ok(&["detach", NAME, "--force"]);
        if self.store_mib < STORE_MIB_MAX {
            self.store_mib += 2 * (1 + self.random.below(2));
        }
        let size = format!("{}M", self.store_mib);
        self.ok(&["grow", STORE, "--store-size", &size]);
        self.check_and_attach(&format!("grow to {size}"))
    }

    fn is_attached(&self) -> bool {
        let output = self.ok(&["list", "--json"]);
        String::from_utf8_lossy(&output.stdout).contains(&format!("\"{NAME}\""))
    }

    fn check_and_attach(&mut self, what: &str) -> String {
        if self.random.below(2) == 0 {
            // What a killed daemon left behind is cleared by this, or by the next one.
            self.run(&["detach", NAME]);
        }
        if self.random.below(2) == 0 {
            self.ok(&["check", STORE, "--data"]);
        }
        self.attach();
        format!("{what}, loop: {}, buffered: {}", self.is_loop, self.is_buffered)
    }
}

/// What a command said, which was given enough time.
fn ended(arguments: &[&str], child: Child) -> Output {
    let output = child.wait_with_output().expect("it is our child");
    assert_ne!(output.status.code(), Some(137), "coulter {} hangs", arguments.join(" "));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!error.contains("panicked"), "coulter {}: {error}", arguments.join(" "));
    output
}

fn operate(duration: Duration, seed: u64) {
    println!("seed {seed}");
    let right = can_mount("an operator of loop devices");
    let sandbox = Sandbox::new();
    let size = format!("{STORE_MIB}M");
    let volume = SIZE.to_string();
    let create = ["create", STORE, "--store-size", &size, "--size", &volume];
    sandbox.ok(&[create.as_slice(), &["--segment-size", "2M"]].concat());
    let programs = ["coulter-1", "coulter-2"].map(|name| sandbox.path(name));
    for program in &programs {
        std::fs::copy(env!("CARGO_BIN_EXE_coulter"), program).expect("there is room");
    }
    let site = Arc::new(Site::default());
    let hosts = [0, 1, 2].map(|index| {
        let (site, host) = (site.clone(), HostThread::new(index, seed));
        thread::spawn(move || {
            let result = host.run(&site);
            if result.is_err() {
                site.end();
            }
            result
        })
    });
    let mut operator = Operator {
        sandbox,
        site: site.clone(),
        random: Random::new(seed),
        can_mount: right.is_some(),
        is_loop: false,
        is_buffered: false,
        loss: Loss::Nothing,
        store_mib: STORE_MIB,
        programs,
    };
    operator.attach();
    let (begun, mut acts) = (Instant::now(), 0);
    while begun.elapsed() < duration && !site.is_over() {
        operator.pause(300);
        operator.act();
        acts += 1;
    }
    site.end();
    let hosts = hosts.map(|host| host.join().expect("a host does not panic"));
    let hosts = hosts.map(|host| host.unwrap_or_else(|what| panic!("{what}")));
    operator.ok(&["detach", NAME, "--force"]);
    operator.ok(&["check", STORE, "--data"]);
    operator.ok(&["attach", STORE, "--name", NAME, "--via", "nbd-server", "--read-only"]);
    let way = Way::Nbd(operator.sandbox.path(&format!("state/{NAME}.nbd")));
    let mut disk = way.connect().expect("the server answers");
    for mut host in hosts {
        match host.look(disk.as_mut(), true) {
            Ok(()) => {}
            Err(Trouble::Io(error)) => panic!("{error}"),
            Err(Trouble::Broken(what)) => panic!("{what}"),
        }
    }
    drop(disk);
    operator.ok(&["detach", NAME]);
    let answered: u64 = site.answered.iter().map(|it| it.load(Ordering::SeqCst)).sum();
    let devices = site.devices();
    let lost = site.lost.load(Ordering::SeqCst);
    println!(
        "{acts} acts, {devices} devices, {answered} requests, {lost} lost, as may be, all as it should be"
    );
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_is_lost_by_an_operator_for_seconds() {
    operate(Duration::from_secs(8), 1);
}

#[test]
#[ignore = "minutes: make operator"]
fn nothing_is_lost_by_an_operator() {
    let seconds = from_environment("COULTER_OPERATOR_SECONDS").unwrap_or(300);
    let seed = from_environment("COULTER_OPERATOR_SEED").unwrap_or(1);
    operate(Duration::from_secs(seconds), seed);
}
