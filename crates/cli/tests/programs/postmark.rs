//! PostMark: 20 files, 20 transactions, 4 KiB reads and writes, bias 10 / 10, as in the block-layer
//! paper; the size of the files follows from the space.

use coulter_systems::Scratch;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FILE_COUNT: u64 = 20;
const TRANSACTION_COUNT: u64 = 20;

pub(crate) struct Postmark {
    directory: PathBuf,
    /// Where it runs.
    outside: PathBuf,
    file_bytes: u64,
}

impl Postmark {
    pub(super) fn prepare(directory: &Path, outside: &Scratch, bytes: u64) -> Postmark {
        // Each transaction makes a file or appends to one.
        let file_bytes = bytes / (FILE_COUNT + TRANSACTION_COUNT) / 2;
        let outside = outside.directory().to_owned();
        let postmark = Postmark { directory: directory.to_owned(), outside, file_bytes };
        postmark.once();
        postmark
    }

    pub(super) fn run(&self, time: Duration) -> f64 {
        let deadline = Instant::now() + time;
        let mut transactions = 0;
        while Instant::now() < deadline {
            transactions += self.once();
        }
        transactions as f64
    }

    /// Makes the files, does the transactions, deletes the files; the transactions.
    fn once(&self) -> u64 {
        let (least, most) = (self.file_bytes / 2, self.file_bytes);
        let plan = format!(
            "set location {}\nset size {least} {most}\nset number {FILE_COUNT}\n\
             set transactions {TRANSACTION_COUNT}\nset read 4096\nset write 4096\n\
             set bias read 10\nset bias create 10\nset buffering false\nrun\nquit\n",
            self.directory.display()
        );
        let mut command = Command::new("postmark");
        command.current_dir(&self.outside).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("postmark can be run");
        let mut input = child.stdin.take().expect("it is a pipe");
        input.write_all(plan.as_bytes()).expect("postmark reads");
        drop(input);
        let output = child.wait_with_output().expect("it is our child");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("transactions"), "postmark: {said}");
        assert!(!said.contains("Error"), "postmark: {said}");
        TRANSACTION_COUNT
    }
}
