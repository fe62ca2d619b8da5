//! A client of a database that commits one transaction after the other.

use crate::power::Power;
use std::io::{BufRead, Write};

/// A client's two ends of the program that it talks to. The program answers each transaction with its
/// number, on a line, once it is committed.
pub(crate) struct Committer<'a, W, R> {
    pub(crate) input: W,
    pub(crate) output: R,
    /// What a commit is acknowledged under: an answer that comes later may be of no use.
    pub(crate) power: &'a Power,
}

impl<W: Write, R: BufRead> Committer<'_, W, R> {
    /// Commits until the power goes or the program does. Gives the number of the last transaction
    /// that was acknowledged, `acknowledged` being the one before the first.
    pub(crate) fn commit_all(
        mut self,
        mut acknowledged: u64,
        transaction: impl Fn(u64) -> String,
    ) -> u64 {
        let mut line = String::new();
        loop {
            let number = acknowledged + 1;
            line.clear();
            let sent = self.input.write_all(transaction(number).as_bytes());
            if sent.is_err() || self.output.read_line(&mut line).is_err() {
                return acknowledged;
            }
            if line.trim() != number.to_string() || !self.power.is_on() {
                return acknowledged;
            }
            acknowledged = number;
        }
    }
}
