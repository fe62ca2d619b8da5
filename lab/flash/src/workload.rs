//! What programs do: writes to a bare device, or file operations of several threads.
//!
//! The file workloads are generators after the descriptions of the programs of the same name, with
//! the parameters that the S-LFS paper leaves open chosen here:
//!
//! | name | threads | what each does |
//! |---|---|---|
//! | `tiobench` | 4 | 4 KiB writes at random places of its own file, fsync after 1024 |
//! | `tpcc` | 8 | transactions: five 8 KiB pages of one database, chosen by Zipf's law (0.9), then 4 KiB to a log and fsync of it; the database is fsynced after 256 transactions |
//! | `fio-seq`, `fio-rand` | 8 | 4 KiB writes to its own file, one after the other or at random places |
//! | `fio-read` | 8 | 128 KiB reads of its own file, one after the other |
//! | `ffsb:READS` | 8 | 4 KiB: so many reads in a hundred, the rest overwrites and appends in equal parts, of 100 files |
//! | `postmark` | 1 | transactions on 200 files: read or append, then delete or create; no fsync |
//! | `varmail` | 16 | delete a file; create one, write 16 KiB on average, fsync; read one, append, fsync; read one |

use crate::host::FileOperation;
use coulter_workload::{Addresses, Pattern, Permutation, Random};
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// A workload by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Workload {
    /// Writes of one size to a bare device, as many outstanding as the drive takes.
    Blocks {
        /// Where.
        pattern: Pattern,
        /// Blocks of each write.
        count: u32,
        /// Writes that are replaced by reads, in a hundred.
        reads_percent: u8,
    },
    /// Plain writes, by eight threads to a file each.
    Fio {
        /// At random places.
        random: bool,
    },
    /// Plain sequential reads, by eight threads of a file each.
    FioRead,
    /// A mix of reads, overwrites and appends.
    Ffsb {
        /// Reads in a hundred.
        reads_percent: u8,
    },
    /// Transactions on files that come and go.
    Postmark,
    /// Random writes to files.
    Tiobench,
    /// Transactions.
    Tpcc,
    /// A mail server.
    Varmail,
}

impl Workload {
    /// Whether it writes nothing.
    pub(crate) fn only_reads(self) -> bool {
        matches!(self, Workload::FioRead | Workload::Ffsb { reads_percent: 100 })
    }

    /// Whether it needs a file system.
    pub fn is_of_files(self) -> bool {
        !matches!(self, Workload::Blocks { .. })
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Blocks { pattern, count, reads_percent } => {
                write!(f, "{pattern}")?;
                if *count != 1 {
                    write!(f, ",blocks={count}")?;
                }
                if *reads_percent != 0 {
                    write!(f, ",reads={reads_percent}")?;
                }
                Ok(())
            }
            Workload::Fio { random: false } => f.write_str("fio-seq"),
            Workload::Fio { random: true } => f.write_str("fio-rand"),
            Workload::FioRead => f.write_str("fio-read"),
            Workload::Ffsb { reads_percent } => write!(f, "ffsb:{reads_percent}"),
            Workload::Postmark => f.write_str("postmark"),
            Workload::Tiobench => f.write_str("tiobench"),
            Workload::Tpcc => f.write_str("tpcc"),
            Workload::Varmail => f.write_str("varmail"),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    /// `tiobench`, `tpcc`, `varmail`, or a pattern with `,blocks=N` and `,reads=PERCENT`.
    fn from_str(text: &str) -> Result<Workload, String> {
        match text {
            "fio-seq" => return Ok(Workload::Fio { random: false }),
            "fio-rand" => return Ok(Workload::Fio { random: true }),
            "fio-read" => return Ok(Workload::FioRead),
            "postmark" => return Ok(Workload::Postmark),
            "tiobench" => return Ok(Workload::Tiobench),
            "tpcc" => return Ok(Workload::Tpcc),
            "varmail" => return Ok(Workload::Varmail),
            _ => {}
        }
        if let Some(reads) = text.strip_prefix("ffsb:") {
            let percent = reads.parse().ok().filter(|percent| *percent <= 100);
            let percent = percent.ok_or_else(|| format!("ffsb:{reads}: 0 to 100"))?;
            return Ok(Workload::Ffsb { reads_percent: percent });
        }
        let mut parts = text.split(',');
        let pattern = parts.next().unwrap_or_default().parse().map_err(|_| {
            format!(
                "`{text}` is no workload; there are fio-seq fio-rand fio-read \
                 ffsb:READS postmark tiobench tpcc varmail, and uniform sequential \
                 zipf:THETA hot:PERCENT:ACCESS_PERCENT with ,blocks=N and ,reads=PERCENT"
            )
        })?;
        let (mut count, mut reads_percent) = (1, 0);
        for part in parts {
            let number = |text: &str| text.parse::<u32>().ok();
            match part.split_once('=') {
                Some(("blocks", value)) => {
                    count = number(value)
                        .filter(|n| (1..=65536).contains(n))
                        .ok_or_else(|| format!("blocks={value}: 1 to 65536"))?;
                }
                Some(("reads", value)) => {
                    reads_percent = number(value)
                        .filter(|n| *n <= 100)
                        .ok_or_else(|| format!("reads={value}: 0 to 100"))?
                        as u8;
                }
                _ => return Err(format!("`{part}` says nothing about a workload")),
            }
        }
        Ok(Workload::Blocks { pattern, count, reads_percent })
    }
}

/// A file workload under way: what its threads ask a file system for, one operation after the other,
/// without end.
#[derive(Debug)]
pub struct FileLoad {
    kind: Workload,
    threads: Vec<VecDeque<FileOperation>>,
    /// Sizes of the files, in blocks.
    sizes: Vec<u32>,
    /// Where each thread's sequential run is.
    positions: Vec<u32>,
    /// The random order of blocks of a file.
    order: Permutation,
    /// Blocks up to which files of mixes grow.
    most: u32,
    random: Random,
    pages: Addresses,
    log_next: u32,
    transactions: u32,
}

/// Blocks of a mail file at most.
const MAIL_BLOCKS_MAX: u32 = 16;

/// Blocks of the transactions' log.
const LOG_BLOCKS: u32 = 4096;

impl FileLoad {
    /// A workload over files that fill `blocks` blocks of 4096 bytes together. One on a bare device has
    /// no files, and must not be asked for.
    pub fn new(kind: Workload, blocks: u64, seed: u64) -> FileLoad {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX).max(64);
        let (threads, sizes) = match kind {
            Workload::Tiobench => (4, vec![blocks / 4; 4]),
            Workload::Fio { .. } | Workload::FioRead => (8, vec![blocks / 8; 8]),
            // Room is left for what is appended.
            Workload::Ffsb { .. } => (8, vec![(blocks / 200).max(1); 100]),
            Workload::Postmark => (1, vec![(blocks / 400).max(1); 200]),
            Workload::Tpcc => {
                let log = LOG_BLOCKS.min(blocks / 8);
                (8, vec![(blocks - log) / 2 * 2, log])
            }
            // Files begin with four blocks, settle at about eight, and have a node or inode each.
            _ => (16, vec![4; (blocks / 11) as usize]),
        };
        let pages = match kind {
            Workload::Tpcc => Pattern::Zipf { theta: 0.9 }.over(u64::from(sizes[0] / 2), seed),
            _ => Pattern::Uniform.over(sizes[0].into(), seed),
        };
        FileLoad {
            kind,
            threads: vec![VecDeque::new(); threads],
            positions: vec![0; threads],
            order: Permutation::new(sizes[0].max(1).into(), seed ^ 0x0bde),
            most: (blocks / 120).max(2),
            sizes,
            random: Random::new(seed ^ 0xf11e),
            pages,
            log_next: 0,
            transactions: 0,
        }
    }

    /// Threads that take part.
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// The operations that make the files, in order.
    pub fn creation(&self) -> Vec<FileOperation> {
        let step = 256;
        let mut operations = Vec::new();
        for (file, size) in self.sizes.iter().enumerate() {
            for block in (0..*size).step_by(step as usize) {
                let count = step.min(size - block);
                operations.push(FileOperation::Write { file: file as u32, block, count });
            }
        }
        operations
    }

    /// Overwrites that age the file system, without end: of single blocks anywhere.
    pub fn ageing(&mut self) -> FileOperation {
        let file = self.random.below(self.sizes.len() as u64) as u32;
        let size = self.sizes[file as usize].max(1);
        let block = self.random.below(size.into()) as u32;
        FileOperation::Write { file, block, count: 1 }
    }

    /// What a thread does next.
    ///
    /// # Panics
    /// When there is no such thread.
    pub fn next(&mut self, thread: usize) -> FileOperation {
        if self.threads[thread].is_empty() {
            match self.kind {
                Workload::Fio { random } => self.plan_fio(thread, random),
                Workload::FioRead => self.plan_reads(thread),
                Workload::Ffsb { reads_percent } => self.plan_mix(thread, reads_percent),
                Workload::Postmark => self.plan_postmark(thread),
                Workload::Tiobench => self.plan_tiobench(thread),
                Workload::Tpcc => self.plan_transaction(thread),
                _ => self.plan_mail(thread),
            }
        }
        self.threads[thread].pop_front().expect("every plan has operations")
    }

    fn plan_fio(&mut self, thread: usize, random: bool) {
        let size = self.sizes[thread];
        let next = self.positions[thread];
        self.positions[thread] = (next + 1) % size;
        // As fio does: each block once, in random order, then all again.
        let block = if random { self.order.at(next.into()) as u32 } else { next };
        let file = thread as u32;
        self.threads[thread].push_back(FileOperation::Write { file, block, count: 1 });
    }

    fn plan_reads(&mut self, thread: usize) {
        let size = self.sizes[thread];
        let block = self.positions[thread];
        let count = 32.min(size - block);
        self.positions[thread] = (block + count) % size;
        let file = thread as u32;
        self.threads[thread].push_back(FileOperation::Read { file, block, count });
    }

    fn plan_mix(&mut self, thread: usize, reads_percent: u8) {
        let file = self.random.below(self.sizes.len() as u64) as u32;
        let size = self.sizes[file as usize];
        let inside = self.random.below(size.into()) as u32;
        let plan = &mut self.threads[thread];
        if self.random.below(100) < reads_percent.into() {
            plan.push_back(FileOperation::Read { file, block: inside, count: 1 });
            return;
        }
        let appends = self.random.below(2) == 0 && size < self.most;
        let block = if appends { size } else { inside };
        self.sizes[file as usize] = size.max(block + 1);
        plan.push_back(FileOperation::Write { file, block, count: 1 });
    }

    fn plan_postmark(&mut self, thread: usize) {
        let files = self.sizes.len() as u64;
        let [touched, replaced] = [(); 2].map(|()| self.random.below(files) as u32);
        let size = self.sizes[touched as usize];
        let plan = &mut self.threads[thread];
        if self.random.below(2) == 0 {
            plan.push_back(FileOperation::Read { file: touched, block: 0, count: size });
        } else if size < self.most {
            plan.push_back(FileOperation::Write { file: touched, block: size, count: 1 });
            self.sizes[touched as usize] = size + 1;
        }
        let count = 1 + self.random.below(u64::from(self.most) * 3 / 5) as u32;
        plan.push_back(FileOperation::Delete { file: replaced });
        for block in 0..count {
            plan.push_back(FileOperation::Write { file: replaced, block, count: 1 });
        }
        self.sizes[replaced as usize] = count;
    }

    fn plan_tiobench(&mut self, thread: usize) {
        let file = thread as u32;
        for _ in 0..1024 {
            let block = self.random.below(self.sizes[thread].into()) as u32;
            self.threads[thread].push_back(FileOperation::Write { file, block, count: 1 });
        }
        self.threads[thread].push_back(FileOperation::Sync { file });
    }

    fn plan_transaction(&mut self, thread: usize) {
        for _ in 0..5 {
            let block = self.pages.address() as u32 * 2;
            self.threads[thread].push_back(FileOperation::Write { file: 0, block, count: 2 });
        }
        let block = self.log_next;
        self.log_next = (self.log_next + 1) % self.sizes[1];
        self.threads[thread].push_back(FileOperation::Write { file: 1, block, count: 1 });
        self.threads[thread].push_back(FileOperation::Sync { file: 1 });
        self.transactions += 1;
        if self.transactions.is_multiple_of(256) {
            self.threads[thread].push_back(FileOperation::Sync { file: 0 });
        }
    }

    fn plan_mail(&mut self, thread: usize) {
        let files = self.sizes.len() as u64;
        let [gone, read, other] = [(); 3].map(|()| self.random.below(files) as u32);
        // One to seven blocks: four on average, 16 KiB.
        let [first, more] = [(); 2].map(|()| 1 + self.random.below(7) as u32);
        let plan = &mut self.threads[thread];
        plan.push_back(FileOperation::Delete { file: gone });
        plan.push_back(FileOperation::Write { file: gone, block: 0, count: first });
        plan.push_back(FileOperation::Sync { file: gone });
        self.sizes[gone as usize] = first;
        let size = self.sizes[read as usize];
        plan.push_back(FileOperation::Read { file: read, block: 0, count: size });
        let block = if size + more > MAIL_BLOCKS_MAX { 0 } else { size };
        plan.push_back(FileOperation::Write { file: read, block, count: more });
        plan.push_back(FileOperation::Sync { file: read });
        self.sizes[read as usize] = size.max(block + more);
        let count = self.sizes[other as usize];
        plan.push_back(FileOperation::Read { file: other, block: 0, count });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for name in [
            "fio-seq",
            "fio-rand",
            "fio-read",
            "ffsb:50",
            "postmark",
            "tiobench",
            "tpcc",
            "varmail",
            "uniform",
            "zipf:0.9,blocks=4,reads=30",
        ] {
            let workload: Workload = name.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(workload.to_string(), name);
        }
        for wrong in ["", "tpch", "uniform,blocks=0", "uniform,reads=101", "uniform,size=4"] {
            assert!(wrong.parse::<Workload>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn file_workloads_stay_inside_their_files() {
        for kind in [Workload::Tiobench, Workload::Tpcc, Workload::Varmail] {
            let mut files = FileLoad::new(kind, 8192, 1);
            let created: u64 = files.creation().iter().map(blocks_of).sum();
            assert!(created <= 8192, "{kind}: {created}");
            for step in 0..10_000 {
                let operation = files.next(step % files.thread_count());
                if let FileOperation::Write { file, block, count } = operation {
                    let most = match kind {
                        Workload::Varmail => MAIL_BLOCKS_MAX + 7,
                        _ => files.sizes[file as usize],
                    };
                    assert!(block + count <= most, "{kind}: {operation:?}");
                }
            }
        }
    }

    fn blocks_of(operation: &FileOperation) -> u64 {
        match operation {
            FileOperation::Write { count, .. } => u64::from(*count),
            _ => 0,
        }
    }
}
