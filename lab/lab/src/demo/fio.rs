//! fio, the load generator that everybody knows: what we ask of it and what it answers.

use crate::error::{LabError, SystemError};
use coulter_cli::interrupt::Interrupt;
use coulter_cli::tool;
use serde::Deserialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// 4 KiB requests that are under way at once.
pub(crate) const QUEUE_DEPTH: u32 = 32;

/// The seed of the verified pass, so that a later run can tell what has to be there.
const SEED: &str = "--randseed=20150701";

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Write all of it once, in large pieces, from start to end.
    Fill,
    /// Write 4 KiB blocks at random for a time.
    Random(Duration),
    /// Write every 4 KiB block once, in random order, each with a checksum and its place in it.
    WriteVerified,
    /// Read what `WriteVerified` wrote and compare it.
    ReadVerified,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Completed 4 KiB writes per second.
    pub(crate) write_iops: f64,
    /// Bytes that were read.
    pub(crate) read_bytes: u64,
    /// Blocks that were not what they had to be.
    pub(crate) mismatches: u64,
}

/// An fio that was found to run here.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    engine: &'static str,
    /// Where its reports go; not on the file system that is measured.
    report: PathBuf,
    interrupt: Interrupt,
}

impl Fio {
    /// Finds the best way of asynchronous I/O that fio has here, by writing a file in `directory`.
    ///
    /// # Errors
    /// When fio is not installed, or can do none.
    pub(crate) fn find(directory: &Path, interrupt: &Interrupt) -> Result<Fio, LabError> {
        let path = directory.join("fio-probe");
        let mut last = None;
        for engine in ["io_uring", "libaio"] {
            let report = directory.join("fio-report.json");
            let fio = Fio { engine, report, interrupt: interrupt.clone() };
            let result = fio.run(&path, 1 << 20, Work::Fill);
            let _ = std::fs::remove_file(&path);
            match result {
                Ok(_) => return Ok(fio),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| SystemError::Interrupted.into()))
    }

    /// Whether somebody wants an end.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// When fio fails for another reason than blocks that are wrong; when interrupted.
    pub(crate) fn run(&self, file: &Path, size: u64, work: Work) -> Result<Outcome, LabError> {
        let mut child = self.start(file, size, work)?;
        let status = self.interrupt.wait_for(&mut child)?;
        let text = std::fs::read_to_string(&self.report)
            .map_err(|source| LabError::io("read", &self.report, source))?;
        match parse(&text) {
            Some((outcome, 0)) => Ok(outcome),
            Some((outcome, libc::EILSEQ)) if work == Work::ReadVerified => Ok(outcome),
            _ => {
                let words = words(&text);
                Err(tool::failed(&self.described(file, size, work), status, words.as_bytes())
                    .into())
            }
        }
    }

    /// Starts fio without waiting for it; nobody will ask what came of it.
    ///
    /// # Errors
    /// When fio is not installed.
    pub(crate) fn start(&self, file: &Path, size: u64, work: Work) -> Result<Child, LabError> {
        let failed = |source| LabError::io("write", &self.report, source);
        let out = File::create(&self.report).map_err(failed)?;
        let both = out.try_clone().map_err(failed)?;
        tool::command("fio")
            .args(self.arguments(file, size, work))
            .stdout(Stdio::from(out))
            .stderr(Stdio::from(both))
            .spawn()
            .map_err(|error| tool::not_started("fio", "fio", error).into())
    }

    fn arguments(&self, file: &Path, size: u64, work: Work) -> Vec<String> {
        let mut arguments = vec![
            "--name=coulter-demo".to_owned(),
            format!("--filename={}", file.display().to_string().replace(':', "\\:")),
            format!("--size={size}"),
            format!("--ioengine={}", self.engine),
            format!("--iodepth={QUEUE_DEPTH}"),
            "--direct=1".to_owned(),
            // One process: killing it leaves no job of it behind that keeps a mount busy.
            "--thread".to_owned(),
            // It would be left in the directory that we were called from.
            "--verify_state_save=0".to_owned(),
            "--output-format=json".to_owned(),
        ];
        let verified = ["--rw=randwrite", "--bs=4k", "--verify=crc32c", SEED];
        let more: Vec<String> = match work {
            Work::Fill => ["--rw=write", "--bs=1m", "--end_fsync=1"].map(str::to_owned).into(),
            Work::Random(time) => vec![
                "--rw=randwrite".to_owned(),
                "--bs=4k".to_owned(),
                "--norandommap".to_owned(),
                "--randrepeat=0".to_owned(),
                "--time_based".to_owned(),
                format!("--runtime={}ms", time.as_millis()),
            ],
            Work::WriteVerified => {
                let rest = ["--do_verify=0", "--end_fsync=1"];
                verified.into_iter().chain(rest).map(str::to_owned).collect()
            }
            Work::ReadVerified => {
                let rest = ["--verify_only=1", "--continue_on_error=verify"];
                verified.into_iter().chain(rest).map(str::to_owned).collect()
            }
        };
        arguments.extend(more);
        arguments
    }

    fn described(&self, file: &Path, size: u64, work: Work) -> String {
        format!("fio {}", self.arguments(file, size, work).join(" "))
    }
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<JobReport>,
}

#[derive(Deserialize)]
struct JobReport {
    error: i32,
    #[serde(default)]
    total_err: u64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    iops: f64,
}

/// What fio said besides its report of hundreds of lines.
fn words(text: &str) -> String {
    let said: Vec<&str> = text.lines().filter(|line| line.starts_with("fio: ")).collect();
    if said.is_empty() { text.to_owned() } else { said.join("\n") }
}

/// The outcome and fio's error number. fio prints warnings in front of its JSON.
fn parse(text: &str) -> Option<(Outcome, i32)> {
    let json = &text[text.find('{')?..];
    let mut documents = serde_json::Deserializer::from_str(json).into_iter::<Report>();
    let job = documents.next()?.ok()?.jobs.into_iter().next()?;
    let outcome = Outcome {
        write_iops: job.write.iops,
        read_bytes: job.read.io_bytes,
        mismatches: job.total_err,
    };
    Some((outcome, job.error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    const SIZE: u64 = 4 << 20;

    fn fio(directory: &Path) -> Option<Fio> {
        match Fio::find(directory, &Interrupt::default()) {
            Ok(fio) => Some(fio),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "\nSKIPPED: fio cannot be used here: {error}");
                None
            }
        }
    }

    #[test]
    fn verification_finds_each_changed_block_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let Some(fio) = fio(directory.path()) else { return };
        let path = directory.path().join("data");
        fio.run(&path, SIZE, Work::WriteVerified).expect("it can be written");
        let clean = fio.run(&path, SIZE, Work::ReadVerified).expect("it can be read");
        assert_eq!((clean.read_bytes, clean.mismatches), (SIZE, 0));

        let file = File::options().write(true).open(&path).expect("it is writable");
        for block in [3, 700] {
            file.write_all_at(b"x", block * 4096 + 2000).expect("it is writable");
        }
        let damaged = fio.run(&path, SIZE, Work::ReadVerified).expect("it can be read");
        assert_eq!(damaged.mismatches, 2);
    }

    #[test]
    fn random_writes_are_counted() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let Some(fio) = fio(directory.path()) else { return };
        let path = directory.path().join("data");
        fio.run(&path, SIZE, Work::Fill).expect("it can be filled");
        let work = Work::Random(Duration::from_millis(200));
        let outcome = fio.run(&path, SIZE, work).expect("it can be written");
        assert!(outcome.write_iops > 0.0);
    }

    #[test]
    fn a_failing_fio_shows_its_words() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let Some(fio) = fio(directory.path()) else { return };
        let obstacle = directory.path().join("file");
        File::create(&obstacle).expect("the directory is writable");
        let error = fio.run(&obstacle.join("data"), SIZE, Work::Fill).expect_err("it cannot be");
        assert!(error.to_string().contains("Not a directory"), "{error}");
        assert!(!error.to_string().contains('{'), "its report is told: {error}");
    }
}
