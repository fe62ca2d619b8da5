//! What clients of a database server commit, and whether all of it is there: in words that PostgreSQL and MariaDB
//! both understand.
//!
//! A transaction inserts two rows and counts itself, so that half of one would show. It also touches both rows of an
//! earlier one, so that pages are overwritten that were written long ago, and not only those at the end.

use crate::committer::Committer;
use crate::error::SystemsError;
use crate::power::Power;
use crate::scratch::end_with_parent;
use crate::tool;
use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

pub(crate) const CLIENT_COUNT: u64 = 4;
/// Bytes of a row's filling.
pub(crate) const FILLING_SIZE: u64 = 500;
/// A step of the golden ratio: which earlier transaction a transaction touches.
const STEP: u64 = 0x9e37_79b1;

/// Tables of nothing.
pub(crate) fn schema() -> String {
    let totals = (0..CLIENT_COUNT).map(|client| format!("({client}, 0)"));
    format!(
        "CREATE TABLE entry (client int, number bigint, half int, touched int, filling text);
         CREATE INDEX by_number ON entry (client, number);
         CREATE TABLE total (client int PRIMARY KEY, count bigint);
         INSERT INTO total VALUES {}",
        totals.collect::<Vec<_>>().join(", ")
    )
}

/// The client's transaction of this number, in a line; it answers the number.
fn transaction(client: u64, number: u64) -> String {
    let filling = filling(number);
    let row =
        |half| format!("INSERT INTO entry VALUES ({client}, {number}, {half}, 0, {filling});");
    let earlier = 1 + number.wrapping_mul(STEP) % number;
    format!(
        "BEGIN; {} {} UPDATE entry SET touched = touched + 1 WHERE client = {client} AND number = {earlier}; \
         UPDATE total SET count = count + 1 WHERE client = {client}; COMMIT; SELECT {number};\n",
        row(0),
        row(1)
    )
}

/// The filling of a row, as an expression that depends on its number.
fn filling(number: impl std::fmt::Display) -> String {
    format!("lpad(concat({number}, ''), {FILLING_SIZE}, 'x')")
}

/// What [`judge`] wants to know.
pub(crate) fn question() -> String {
    format!(
        "SELECT t.client, t.count, count(e.number), count(CASE WHEN e.filling = {} THEN 1 END),
             coalesce(max(e.number), 0), count(DISTINCT e.number), coalesce(sum(e.touched), 0)
         FROM total t LEFT JOIN entry e ON e.client = t.client GROUP BY t.client, t.count ORDER BY t.client",
        filling("e.number")
    )
}

/// How many transactions of each client are there, by the answer to [`question`], of which these were
/// acknowledged.
///
/// # Errors
/// A violation with all that is wrong.
pub(crate) fn judge(answer: &str, acknowledged: &[u64]) -> Result<Vec<u64>, SystemsError> {
    let (mut counts, mut wrong) = (Vec::new(), Vec::new());
    for line in answer.lines() {
        let numbers: Vec<u64> = line.split(['|', '\t']).filter_map(|n| n.parse().ok()).collect();
        let [client, count, rows, whole, last, distinct, touched] = numbers[..] else {
            return Err(SystemsError::violation(format!("it answers {line}")));
        };
        let acknowledged = acknowledged.get(client as usize).copied().unwrap_or_default();
        let is_whole = [rows, whole, touched] == [2 * count; 3] && [last, distinct] == [count; 2];
        if !is_whole || !(acknowledged..=acknowledged + 1).contains(&count) {
            wrong.push(format!(
                "client {client}: {count} transactions ({acknowledged} acknowledged), {rows} rows, {whole} of them \
                 whole, {distinct} numbers up to {last}, {touched} touched"
            ));
        }
        counts.push(count);
    }
    if counts.len() != acknowledged.len() {
        wrong.push(format!("{} clients of {}", counts.len(), acknowledged.len()));
    }
    match wrong.is_empty() {
        true => Ok(counts),
        false => Err(SystemsError::violation(wrong.join("; "))),
    }
}

/// Clients at work: programs, and the threads that feed them.
#[derive(Debug, Default)]
pub(crate) struct Clients(Vec<(Child, JoinHandle<u64>)>);

impl Clients {
    /// Has one client for each of the numbers that were acknowledged commit, by a program of this package.
    ///
    /// # Errors
    /// When a program does not start.
    pub(crate) fn start(
        &mut self,
        program: impl Fn() -> Command,
        package: &'static str,
        acknowledged: &[u64],
        power: &Power,
    ) -> Result<(), SystemsError> {
        for (client, &last) in (0..).zip(acknowledged) {
            let mut command = program();
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut process = end_with_parent(&mut command)
                .spawn()
                .map_err(|error| tool::not_started(&command, package, error))?;
            let input = process.stdin.take().expect("it is a pipe");
            let output = BufReader::new(process.stdout.take().expect("it is a pipe"));
            let power = power.clone();
            let body = move || {
                let committer = Committer { input, output, power: &power };
                committer.commit_all(last, |number| transaction(client, number))
            };
            self.0.push((process, std::thread::spawn(body)));
        }
        Ok(())
    }

    /// Ends those that were started, and says what was acknowledged to them.
    pub(crate) fn stop(&mut self, acknowledged: &mut [u64]) {
        for (number, (mut client, thread)) in self.0.drain(..).enumerate() {
            let _ = client.kill();
            let _ = client.wait();
            acknowledged[number] = thread.join().expect("a client does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_must_be_there_whole_and_one_more_may_be() {
        let judged = |answer: &str| judge(answer, &[5, 0]).map_err(|error| error.to_string());
        assert_eq!(judged("0|5|10|10|5|5|10\n1|0|0|0|0|0|0\n"), Ok(vec![5, 0]));
        assert_eq!(judged("0\t6\t12\t12\t6\t6\t12\n1\t1\t2\t2\t1\t1\t2\n"), Ok(vec![6, 1]));
        let lost = "0|4|8|8|4|4|8\n1|0|0|0|0|0|0";
        let half = "0|5|10|10|5|5|9\n1|0|0|0|0|0|0";
        let changed = "0|5|10|9|5|5|10\n1|0|0|0|0|0|0";
        for wrong in [lost, half, changed, "0|5|10|10|5|5|10", "ERROR", ""] {
            assert!(judged(wrong).is_err(), "{wrong}");
        }
    }
}
