//! What an overlay tells of itself, as JSON.

use crate::lower::Lower;
use crate::overlay::Overlay;
use coulter_format::BLOCK_SIZE;
use coulter_format::overlay::RecordState;
use std::fmt::Write;

/// Faults that are told one by one.
const FAULTS_MAX: usize = 64;

impl<L: Lower> Overlay<L> {
    /// The object that `coulter overlay status` shows.
    pub(crate) fn report(&self) -> String {
        let (mut files, mut settled) = (0u64, 0u64);
        let mut faults = String::new();
        let mut fault_count = 0;
        for adopted in self.store.records.iter().flatten() {
            match adopted.record.state {
                RecordState::Settled => settled += 1,
                _ => files += 1,
            }
            if let Some(why) = adopted.fault {
                fault_count += 1;
                if fault_count <= FAULTS_MAX {
                    let comma = if fault_count > 1 { "," } else { "" };
                    let (number, bytes) =
                        (adopted.record.number, adopted.mapped * BLOCK_SIZE as u64);
                    // A fault is a fixed text without quotes.
                    let _ = write!(
                        faults,
                        "{comma}{{\"inode\":{number},\"bytes\":{bytes},\"why\":\"{why}\"}}"
                    );
                }
            }
        }
        let counters = &self.counters;
        let windows = self.store.windows.len() - self.store.free_windows.len();
        let settling =
            self.settling.job.map_or(0, |(record, _)| self.store.adopted(record).record.number);
        let error = self.settling.error.map_or(String::from("null"), |errno| {
            format!("{:?}", std::io::Error::from_raw_os_error(errno).to_string())
        });
        format!(
            "{{\"remap\":\"{}\",\"files\":{files},\"settled_files\":{settled},\"orphans\":{},\
             \"stored_bytes\":{},\"capacity_bytes\":{},\"windows\":{windows},\"windows_total\":{},\
             \"requests\":{},\"in_place_writes\":{},\"remapped_writes\":{},\"adoptions\":{},\
             \"flushes\":{},\"files_brought_home\":{},\"bytes_brought_home\":{},\
             \"settling_inode\":{settling},\"settle_error\":{error},\"faults_total\":{fault_count},\
             \"faults\":[{faults}]}}",
            self.options.remap.word(),
            self.orphans.len(),
            self.store.mapped * BLOCK_SIZE as u64,
            self.store.superblock.capacity * BLOCK_SIZE as u64,
            self.store.windows.len(),
            counters.requests,
            counters.in_place_writes,
            counters.remapped_writes,
            counters.adoptions,
            counters.flushes,
            counters.settled_files,
            counters.settled_bytes,
        )
    }
}
