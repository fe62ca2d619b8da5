//! What an overlay tells of itself: figures for metrics, and JSON.

use crate::lower::Lower;
use crate::overlay::Overlay;
use coulter_format::BLOCK_SIZE;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Faults that the report tells one by one.
const FAULTS_MAX: usize = 64;
/// Records that one listing of what is not served holds; each takes less than 350 bytes.
const LISTED_MAX: usize = 128;

/// The numbers of an overlay at one moment. Counters run from the opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Files of which blocks are in the store.
    pub files: u64,
    /// Files that are at home, and whose records are forgotten soon.
    pub settled_files: u64,
    /// Files that are to be brought home, the one under way included.
    pub settle_backlog_files: u64,
    /// Files whose lower file is gone.
    pub orphans: u64,
    /// Files that cannot be served, orphans included.
    pub faults_total: u64,
    /// Bytes in the store.
    pub stored_bytes: u64,
    /// Bytes that the store can hold.
    pub capacity_bytes: u64,
    /// Windows of 2 MiB in use.
    pub windows: u64,
    /// All windows.
    pub windows_total: u64,
    /// Nodes that the kernel knows.
    pub known_nodes: u64,
    /// Requests of the kernel.
    pub requests: u64,
    /// Writes to the lower file.
    pub in_place_writes: u64,
    /// Writes to the store.
    pub remapped_writes: u64,
    /// Files that got a record.
    pub adoptions: u64,
    /// Flushes of the store that requests waited for.
    pub flushes: u64,
    /// Files that were brought home.
    pub files_brought_home: u64,
    /// Bytes that were brought home.
    pub bytes_brought_home: u64,
}

impl Figures {
    /// The figures by their names in JSON and metrics.
    pub fn named(&self) -> [(&'static str, u64); 17] {
        [
            ("files", self.files),
            ("settled_files", self.settled_files),
            ("settle_backlog_files", self.settle_backlog_files),
            ("orphans", self.orphans),
            ("faults_total", self.faults_total),
            ("stored_bytes", self.stored_bytes),
            ("capacity_bytes", self.capacity_bytes),
            ("windows", self.windows),
            ("windows_total", self.windows_total),
            ("known_nodes", self.known_nodes),
            ("requests", self.requests),
            ("in_place_writes", self.in_place_writes),
            ("remapped_writes", self.remapped_writes),
            ("adoptions", self.adoptions),
            ("flushes", self.flushes),
            ("files_brought_home", self.files_brought_home),
            ("bytes_brought_home", self.bytes_brought_home),
        ]
    }
}

/// The latest figures of an overlay, for other threads. A clone shows the same.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Figures>>);

impl Shown {
    /// The figures as they were after the last request or completion.
    pub fn figures(&self) -> Figures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Lower> Overlay<L> {
    /// Where the figures are shown from now on.
    pub fn shown(&self) -> Shown {
        self.shown.clone()
    }

    pub(crate) fn show(&self) {
        let figures = self.figures();
        *self.shown.0.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    fn figures(&self) -> Figures {
        let counters = &self.counters;
        Figures {
            files: self.store.file_count(),
            settled_files: self.store.lists().settled(),
            settle_backlog_files: self.settling.backlog(),
            orphans: self.orphans.len() as u64,
            faults_total: self.store.lists().faults().len() as u64,
            stored_bytes: self.store.mapped * BLOCK,
            capacity_bytes: self.store.superblock.capacity * BLOCK,
            windows: (self.store.windows.len() - self.store.free_windows.len()) as u64,
            windows_total: self.store.windows.len() as u64,
            known_nodes: self.nodes.len() as u64,
            requests: counters.requests,
            in_place_writes: counters.in_place_writes,
            remapped_writes: counters.remapped_writes,
            adoptions: counters.adoptions,
            flushes: counters.flushes,
            files_brought_home: counters.settled_files,
            bytes_brought_home: counters.settled_bytes,
        }
    }

    /// The object that `coulter overlay status` shows.
    pub(crate) fn report(&self) -> String {
        let mut text = format!(
            "{{\"remap\":\"{}\",\"settle\":\"{}\",\"was_closed_in_order\":{}",
            self.options.remap.word(),
            self.options.settle.word(),
            self.was_clean
        );
        let figures = self.figures();
        for (name, value) in figures.named() {
            // A string takes all text.
            let _ = write!(text, ",\"{name}\":{value}");
        }
        let job = self.settling.jobs.first();
        let settling = job.map_or(0, |job| self.store.adopted(job.record).record.number);
        let error = self.settling.error.map_or(String::from("null"), |errno| {
            format!("{:?}", std::io::Error::from_raw_os_error(errno).to_string())
        });
        let _ = write!(text, ",\"settling_inode\":{settling},\"settle_error\":{error},\"faults\":");
        let faults = self.faults_from(0, FAULTS_MAX).0;
        text.push_str(&faults);
        text.push('}');
        text
    }

    /// What is not served, from a record on, as an object: `orphans`, and `next` to go on with or `null`.
    pub(crate) fn orphans_from(&self, first: u32) -> String {
        let (faults, next) = self.faults_from(first, LISTED_MAX);
        let next = next.map_or(String::from("null"), |next| next.to_string());
        format!("{{\"orphans\":{faults},\"next\":{next}}}")
    }

    /// At most `count_max` records with a fault as a list, and where the next one is.
    fn faults_from(&self, first: u32, count_max: usize) -> (String, Option<u32>) {
        let mut text = String::from("[");
        let mut count = 0;
        for number in self.store.lists().faults().range(first..).copied() {
            let adopted = self.store.adopted(number);
            let Some(why) = adopted.fault else { continue };
            if count == count_max {
                return (text + "]", Some(number));
            }
            let comma = if count > 0 { "," } else { "" };
            count += 1;
            let record = &adopted.record;
            // A fault is a fixed text without quotes.
            let _ = write!(
                text,
                "{comma}{{\"record\":{number},\"inode\":{},\"bytes\":{},\"size\":{},\
                 \"modified_seconds\":{},\"modified_nanoseconds\":{},\"lower_size\":{},\
                 \"lower_modified_seconds\":{},\"lower_modified_nanoseconds\":{},\
                 \"is_gone\":{},\"why\":\"{why}\"}}",
                record.number,
                adopted.mapped * BLOCK,
                record.size,
                record.modified.seconds,
                record.modified.nanoseconds,
                record.lower.size,
                record.lower.modified.seconds,
                record.lower.modified.nanoseconds,
                self.orphans.contains(&number),
            );
        }
        (text + "]", None)
    }
}
