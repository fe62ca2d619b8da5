//! What the map takes of memory where a volume is touched here and there, and where it is touched densely.
//!
//! A store on the stand-in device, which keeps no host data, is written to once: either blocks that lie
//! equally far apart over all of its addresses, or everything from address 0 on. Then it is killed and opened
//! again, for the memory that recovery takes counts too, and every block is read and verified. If roots
//! are in a list, everything is written twice first, so that most map pages are on the device.

use crate::error::BenchError;
use crate::figures::{Figures, bytes};
use crate::progress::Progress;
use crate::standin::{Rig, StandinDevice};
use coulter_engine::create::{CreateOptions, Sparse, create, segment_blocks_default};
use coulter_engine::{Config, Statistics};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::ATOMIC_BLOCKS_MAX;
use coulter_format::superblock::ROOT_LIMIT_MAX;
use coulter_format::{BLOCK_SIZE, StoreId};
use serde::Serialize;
use std::time::Instant;

/// Blocks of a stretch of addresses that has a root.
const ROOT_BLOCKS: u64 = (ENTRIES_PER_PAGE * ENTRIES_PER_PAGE) as u64;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of addresses.
    pub addresses: u64,
    /// Bytes that are written.
    pub touched: u64,
    /// Whether they are written from address 0 on, and not block by block all over the addresses.
    pub dense: bool,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            addresses: 1 << 40,
            touched: 1 << 30,
            dense: false,
            progress: Progress::default(),
        }
    }
}

/// Memory of the map at one time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Bytes that it took then.
    pub bytes: u64,
    /// Bytes that it took at the most.
    pub peak_bytes: u64,
    /// The same for each mapped block.
    pub bytes_per_block: f64,
}

impl Memory {
    fn of(statistics: &Statistics, mapped: u64) -> Memory {
        Memory {
            bytes: statistics.map_bytes,
            peak_bytes: statistics.map_bytes_peak,
            bytes_per_block: statistics.map_bytes as f64 / mapped as f64,
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of addresses.
    pub address_bytes: u64,
    /// Blocks that are mapped.
    pub mapped_blocks: u64,
    /// Bytes that the map may take.
    pub limit_bytes: u64,
    /// After the writes.
    pub written: Memory,
    /// After a kill, the recovery from it, and a read of every block.
    pub recovered: Memory,
    /// Stretches of 1 GiB with anything in them.
    pub roots: u64,
    /// Those of which the last checkpoint before the kill lists a page; of the others runs and records tell.
    pub root_pages: u64,
    /// Bytes of the map's memory for each of them, after all was read.
    pub bytes_per_root: f64,
    /// Bytes of the checkpoint's body.
    pub body_bytes: u64,
    /// Seconds that the opening took, on a device that takes no time.
    pub open_seconds: f64,
    /// Blocks that it read.
    pub open_blocks: u64,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let note = |memory: &Memory| {
            format!(
                "{:.1} B for each block; {} at most",
                memory.bytes_per_block,
                bytes(memory.peak_bytes)
            )
        };
        let mapped = self.mapped_blocks * BLOCK_SIZE as u64;
        table
            .row("mapped", bytes(mapped), format!("of {} of addresses", bytes(self.address_bytes)))
            .row("map memory", bytes(self.written.bytes), note(&self.written))
            .row("  after recovery", bytes(self.recovered.bytes), note(&self.recovered))
            .row("  limit", bytes(self.limit_bytes), "")
            .row(
                "roots",
                self.roots.to_string(),
                format!(
                    "{:.0} B of map memory each; {} with a page when it was killed",
                    self.bytes_per_root, self.root_pages
                ),
            )
            .row(
                "checkpoint body",
                bytes(self.body_bytes),
                format!("{:.2} B for each root", self.body_bytes as f64 / self.roots.max(1) as f64),
            )
            .row(
                "opening",
                format!("{:.2} s", self.open_seconds),
                format!("{} blocks read", self.open_blocks),
            );
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When there is no such store, or the engine misbehaves.
///
/// # Panics
/// If the map took more than its limit.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let block = BLOCK_SIZE as u64;
    let (addresses, touched) = (options.addresses / block, options.touched / block);
    if touched == 0 || touched > addresses {
        return Err(BenchError::option("at least a block is touched, and at most all addresses"));
    }
    let roots = addresses.div_ceil(ROOT_BLOCKS).min(touched);
    // A leaf page and a root are charged like blocks, where there are more of them than of a dense volume.
    let leaves = addresses.div_ceil(ENTRIES_PER_PAGE as u64).min(touched);
    let root_limit = u32::try_from(roots).unwrap_or(u32::MAX).max(256);
    // Where these are in a list of their own, their second copies are, too.
    let copies = if root_limit > ROOT_LIMIT_MAX { roots } else { 0 };
    let capacity = if options.dense { touched } else { touched + leaves + roots + copies };
    let device_size = capacity + capacity / 4 + (1 << 18);
    let create_options = CreateOptions {
        device_size,
        volume_size: Some(capacity),
        sparse: Some(Sparse {
            address_limit: addresses,
            root_limit: Some(root_limit),
            root_lists: false,
        }),
        segment_blocks: segment_blocks_default(device_size, device_size / 11),
        page_blocks: None,
        spare_percent: 10,
        store: StoreId { uuid: *b"bench sparse sto", salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: None,
        run_count_limit: None,
    };
    let (_, blocks) = create(&create_options).map_err(|error| {
        BenchError::option(format!("no store of this size can be laid out: {error}"))
    })?;
    let mut device = StandinDevice::with_store(device_size, &blocks);
    device.pack();
    let mut rig = Rig::open(Config::default(), device, 256)?;
    let piece = if options.dense { ATOMIC_BLOCKS_MAX as u64 } else { 1 };
    let distance = if options.dense { 1 } else { addresses / touched };
    let rounds = if root_limit > ROOT_LIMIT_MAX { 2 } else { 1 };
    let count = touched.div_ceil(piece);
    for number in 0..rounds * count {
        let first = number % count * piece;
        rig.write(first * distance, piece.min(touched - first) as u32)?;
        if number % (1 << 14) == 0 {
            options.progress.report("writing", number as f64 / (rounds * count) as f64);
        }
    }
    rig.drain()?;
    let before = rig.engine.statistics();
    let written = Memory::of(&before, touched);
    let device = rig.kill();
    let (started, read_before) = (Instant::now(), device.counts.blocks_read);
    let mut rig = Rig::open(Config::default(), device, 256)?;
    let open_seconds = started.elapsed().as_secs_f64();
    let open_blocks = rig.device.counts.blocks_read - read_before;
    for number in 0..touched {
        rig.read(number * distance, 1)?;
        if number % (1 << 14) == 0 {
            options.progress.report("reading", number as f64 / touched as f64);
        }
    }
    rig.drain()?;
    let after = rig.engine.statistics();
    let recovered = Memory::of(&after, touched);
    for memory in [&written, &recovered] {
        assert!(memory.peak_bytes <= after.map_bytes_limit, "the map keeps to its limit");
    }
    Ok(Report {
        address_bytes: options.addresses,
        mapped_blocks: touched,
        limit_bytes: after.map_bytes_limit,
        written,
        recovered,
        roots,
        bytes_per_root: after.map_bytes as f64 / roots as f64,
        root_pages: before.roots_in_use,
        body_bytes: u64::from(rig.engine.superblock().checkpoint.size),
        open_seconds,
        open_blocks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_far_apart_take_more_than_neighbours_and_both_keep_to_the_limit() {
        let options = Options { addresses: 1 << 36, touched: 1 << 26, ..Options::default() };
        let apart = run(&options).expect("the store works");
        let dense = run(&Options { dense: true, ..options }).expect("the store works");
        for report in [&apart, &dense] {
            assert_eq!(report.mapped_blocks, 1 << 14);
            assert!(report.written.peak_bytes <= report.limit_bytes, "{report:?}");
        }
        assert!(
            apart.written.bytes_per_block > dense.written.bytes_per_block,
            "{apart:?} {dense:?}"
        );
    }

    #[test]
    fn roots_in_a_list_of_their_own_take_little_of_the_body_and_are_all_read() {
        let options =
            Options { addresses: 40_000 << 30, touched: 40_000 << 12, ..Options::default() };
        let report = run(&options).expect("the store works");
        assert_eq!((report.mapped_blocks, report.roots), (40_000, 40_000));
        assert!(report.body_bytes < 16 * report.roots, "{report:?}");
        assert!(report.bytes_per_root < 16_384.0, "{report:?}");
    }

    #[test]
    fn more_than_all_addresses_is_refused() {
        let options = Options { addresses: 1 << 20, touched: 1 << 21, ..Options::default() };
        assert!(run(&options).is_err());
    }
}
