//! A machine as its user sees it: power that is turned on and goes, and a block device meanwhile.
//!
//! The disk and the volume are in a process of their own (`disk`), which ends with this one.

use crate::error::SystemsError;
use crate::power::Power;
use crate::protocol::{Cut, Reply, Request, receive, send};
use crate::scratch::end_with_parent;
use crate::tool;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(1);

/// What a machine is like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The program `power-cut`, which is the disk's process too.
    pub program: PathBuf,
    /// Bytes of the volume, or of the disk if it is plain.
    pub volume_size: u64,
    /// Whether the disk itself is the block device, without a volume.
    pub is_plain: bool,
    /// Whether the disk says yes to flushes and does nothing.
    pub lies: bool,
}

/// A machine.
#[derive(Debug)]
pub struct Machine {
    channel: Channel,
}

/// How turning the power on came out.
#[derive(Debug)]
pub enum Start {
    /// It runs.
    Running(Running),
    /// The power went again before it did.
    Cut,
}

/// A machine with power, or that had it until a moment ago.
#[derive(Debug)]
pub struct Running {
    channel: Channel,
    device: PathBuf,
}

impl Machine {
    /// Makes a disk with a store. The attach point is mounted at `point`, a path in a scratch.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn new(shape: &Shape, point: &Path) -> Result<Machine, SystemsError> {
        let mut command = Command::new(&shape.program);
        command.arg("disk").arg("--point").arg(point);
        command.args(["--volume-size", &shape.volume_size.to_string()]);
        if shape.lies {
            command.arg("--lies");
        }
        if shape.is_plain {
            command.arg("--plain");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = end_with_parent(&mut command)
            .spawn()
            .map_err(|error| tool::not_started(&command, "coulter", error))?;
        let input = process.stdin.take().expect("it is a pipe");
        let output = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let line = Line { input: Some(input), output, process };
        let channel = Channel(Arc::new(Mutex::new(line)));
        // It says that the store is made.
        channel.lock().receive()?;
        Ok(Machine { channel })
    }

    /// Turns the power on, opens the volume and attaches it.
    ///
    /// # Errors
    /// A violation if the store does not open while there is power.
    pub fn start(&self, cut: Option<Cut>) -> Result<Start, SystemsError> {
        match self.channel.ask(&Request::Start { cut })? {
            Reply::Running { device } => {
                Ok(Start::Running(Running { channel: self.channel.clone(), device }))
            }
            _ => Ok(Start::Cut),
        }
    }

    /// Has the independent checker read the disk, all data included.
    ///
    /// # Errors
    /// A violation with its findings.
    pub fn check(&self) -> Result<(), SystemsError> {
        self.channel.ask(&Request::Check).map(drop)
    }
}

impl Running {
    /// The block device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Its power.
    pub fn power(&self) -> Power {
        Power::of(self.channel.clone())
    }

    /// Has the power go after so many commands from now.
    ///
    /// # Errors
    /// When the disk's process is gone.
    pub fn arm(&self, cut: Cut) -> Result<(), SystemsError> {
        self.channel.ask(&Request::Arm { cut }).map(drop)
    }

    /// Waits until the power is gone by itself; cuts it after `limit`. `seed` decides what
    /// survives.
    ///
    /// # Errors
    /// When the disk's process is gone.
    pub fn cut_within(&self, limit: Duration, seed: u64) -> Result<(), SystemsError> {
        let (power, deadline) = (self.power(), Instant::now() + limit);
        while power.is_on() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        }
        self.channel.ask(&Request::Cut { seed }).map(drop)
    }

    /// Takes away what runs without power. Nothing may be mounted from the device any more.
    ///
    /// # Errors
    /// When the attach point cannot be taken away.
    pub fn abandon(self) -> Result<(), SystemsError> {
        assert!(!self.power().is_on(), "who has power is shut down");
        self.channel.ask(&Request::Abandon).map(drop)
    }

    /// Detaches and closes in order. Nothing may be mounted from the device any more.
    ///
    /// # Errors
    /// When the attach point cannot be taken away; a violation if the volume does not close.
    pub fn shut_down(self) -> Result<(), SystemsError> {
        self.channel.ask(&Request::ShutDown).map(drop)
    }
}

/// The way to the disk's process.
#[derive(Clone, Debug)]
pub(crate) struct Channel(Arc<Mutex<Line>>);

#[derive(Debug)]
struct Line {
    /// `None` once it is told to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    process: Child,
}

impl Channel {
    fn lock(&self) -> std::sync::MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &Request) -> Result<Reply, SystemsError> {
        self.lock().ask(request)
    }

    /// Whether there is power; there is none where no process is.
    pub(crate) fn has_power(&self) -> bool {
        matches!(self.ask(&Request::Power), Ok(Reply::Power { is_on: true }))
    }
}

impl Line {
    fn ask(&mut self, request: &Request) -> Result<Reply, SystemsError> {
        if let Some(input) = &mut self.input {
            send(input, request).map_err(gone)?;
        }
        self.receive()
    }

    fn receive(&mut self) -> Result<Reply, SystemsError> {
        let reply = receive(&mut self.output).map_err(gone)?;
        match reply.ok_or_else(|| gone(io::ErrorKind::UnexpectedEof.into()))? {
            Reply::Violation { what } => Err(SystemsError::Violation { what }),
            Reply::Failed { what } => Err(gone(io::Error::other(what))),
            reply => Ok(reply),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // It takes everything away when it has nobody to listen to.
        self.input = None;
        let _ = self.process.wait();
    }
}

fn gone(source: io::Error) -> SystemsError {
    SystemsError::io("use", Path::new("the disk's process"), source)
}
