//! PostMark: 20 files, 20 transactions, 4 KiB reads and writes, bias 10 / 10, as in the block-layer
//! paper; the size of the files follows from the space.

use crate::error::SystemsError;
use crate::tool;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const FILE_COUNT: u64 = 20;
const TRANSACTION_COUNT: u64 = 20;

#[derive(Debug)]
pub(super) struct Postmark {
    directory: PathBuf,
    /// Where it runs.
    outside: PathBuf,
    file_bytes: u64,
}

impl Postmark {
    pub(super) fn prepare(
        directory: &Path,
        outside: &Path,
        bytes: u64,
    ) -> Result<Postmark, SystemsError> {
        // Each transaction makes a file or appends to one.
        let file_bytes = bytes / (FILE_COUNT + TRANSACTION_COUNT) / 2;
        let outside = outside.to_owned();
        let postmark = Postmark { directory: directory.to_owned(), outside, file_bytes };
        postmark.once()?;
        Ok(postmark)
    }

    pub(super) fn run(&self, time: Duration) -> Result<f64, SystemsError> {
        let deadline = Instant::now() + time;
        let mut transactions = 0;
        while Instant::now() < deadline {
            transactions += self.once()?;
        }
        Ok(transactions as f64)
    }

    /// Makes the files, does the transactions, deletes the files; the transactions.
    fn once(&self) -> Result<u64, SystemsError> {
        let (least, most) = (self.file_bytes / 2, self.file_bytes);
        let plan = format!(
            "set location {}\nset size {least} {most}\nset number {FILE_COUNT}\n\
             set transactions {TRANSACTION_COUNT}\nset read 4096\nset write 4096\n\
             set bias read 10\nset bias create 10\nset buffering false\nrun\nquit\n",
            self.directory.display()
        );
        let mut command = tool::command("postmark");
        command.current_dir(&self.outside).stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| tool::not_started(&command, "postmark", error))?;
        let failed = |error| SystemsError::io("talk to", "postmark".as_ref(), error);
        let mut input = child.stdin.take().expect("it is a pipe");
        let told = input.write_all(plan.as_bytes());
        drop(input);
        let output = child.wait_with_output().map_err(failed)?;
        told.map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stdout);
        if said.contains("transactions") && !said.contains("Error") {
            return Ok(TRANSACTION_COUNT);
        }
        Err(SystemsError::Program {
            command: tool::described(&command),
            output: tool::words_of(&output),
        })
    }
}
