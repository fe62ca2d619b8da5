//! A file system on a volume: every node, name, inode and block, compared with every other one that
//! speaks of the same thing.
//!
//! It is written against `docs/files.md` and the codecs of `coulter-format`, and shares no code with the
//! file system.
//!
//! # Invariants
//! - Nothing is written, and no bytes make it panic or loop without end.
//! - A damaged node costs what lies below it: it is named, and the rest is looked at all the same.
//! - Memory: two bits for each block, and about 150 bytes for each inode.

mod data;
mod dump;
mod facts;
mod finding;
mod rescue;
mod walk;

pub use data::check_data;
pub use dump::dump;
pub use facts::Counters;
pub use finding::Finding;
pub use rescue::{Named, Rescue, Rescued, rescue};

use coulter_format::Block;
use coulter_format::files::{Superblock, space};
use facts::Facts;

/// Findings kept; more are counted.
const FINDINGS_MAX: usize = 1000;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The file system as a whole, if there is one.
    pub superblock: Option<Superblock>,
    /// What is wrong, at most a thousand.
    pub findings: Vec<Finding>,
    /// More of it.
    pub findings_omitted: u64,
    /// What there is.
    pub counters: Counters,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_omitted += 1;
        }
    }
}

/// Looks at the file system on a volume of so many blocks. `read` gives a host block; one that it cannot
/// give counts as damaged.
pub fn check<E>(read: &mut dyn FnMut(u64) -> Result<Block, E>, volume_blocks: u64) -> Report {
    let mut report = Report::default();
    let superblock = match read(0).map(|block| Superblock::decode(&block)) {
        Ok(Ok(superblock)) => superblock,
        Ok(Err(corrupt)) => {
            report.add(Finding::Superblock { corrupt });
            return report;
        }
        Err(_) => {
            report.add(Finding::Unreadable { block: 0 });
            return report;
        }
    };
    report.superblock = Some(superblock);
    if superblock.block_count > volume_blocks {
        report.add(Finding::Truncated { blocks: superblock.block_count, volume: volume_blocks });
        return report;
    }
    let mut facts = Facts::new(&superblock);
    let is_whole = walk::walk(read, &superblock, &mut facts, &mut report);
    facts.compare(&superblock, is_whole, &mut report);
    bitmaps(read, &superblock, &facts, is_whole, &mut report);
    report
}

/// Compares what is in use with what the bitmaps say.
fn bitmaps<E>(
    read: &mut dyn FnMut(u64) -> Result<Block, E>,
    superblock: &Superblock,
    facts: &Facts,
    is_whole: bool,
    report: &mut Report,
) {
    let mut free = 0;
    for group in 0..space::group_count(superblock.block_count) {
        let place = space::bitmap_block(group);
        let Ok(bitmap) = read(place) else {
            report.add(Finding::Unreadable { block: place });
            continue;
        };
        let size = space::group_size(group, superblock.block_count);
        let base = group * space::GROUP_BLOCKS;
        free += space::free_count(&bitmap, group, size);
        for bit in space::reserved_blocks(group)..size {
            let block = base + bit;
            match (space::is_used(&bitmap, group, bit), facts.used.contains(block)) {
                (false, true) => report.add(Finding::UsedAndFree { block }),
                // Below a damaged node there may be an owner.
                (true, false) if is_whole => report.add(Finding::Leaked { block }),
                _ => {}
            }
        }
    }
    if free != superblock.free_blocks {
        report.add(Finding::FreeCount { said: superblock.free_blocks, found: free });
    }
    report.counters.free_blocks = free;
}
