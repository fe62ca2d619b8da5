//! What the map takes of memory where a volume is touched here and there, and where it is touched densely.
//!
//! A store on the stand-in device, which keeps no host data, is written to once: either blocks that lie
//! equally far apart over all of its addresses, or everything from address 0 on. Then it is killed and opened
//! again, for the memory that recovery takes counts too.

use crate::error::BenchError;
use crate::figures::{Figures, bytes};
use crate::progress::Progress;
use crate::standin::{Rig, StandinDevice};
use coulter_engine::create::{CreateOptions, Sparse, create, segment_blocks_default};
use coulter_engine::{Config, Statistics};
use coulter_format::map_page::ENTRIES_PER_PAGE;
use coulter_format::record::ATOMIC_BLOCKS_MAX;
use coulter_format::{BLOCK_SIZE, StoreId};
use serde::Serialize;

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
    /// After a kill and the recovery from it.
    pub recovered: Memory,
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
            .row("  limit", bytes(self.limit_bytes), "");
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
    let capacity = if options.dense { touched } else { touched + leaves + roots };
    let device_size = capacity + capacity / 4 + (1 << 18);
    let create_options = CreateOptions {
        device_size,
        volume_size: Some(capacity),
        sparse: Some(Sparse {
            address_limit: addresses,
            root_limit: Some(roots.try_into().unwrap_or(u32::MAX).max(256)),
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
    let device = StandinDevice::with_store(device_size, &blocks);
    let mut rig = Rig::open(Config::default(), device, 256)?;
    let piece = if options.dense { ATOMIC_BLOCKS_MAX as u64 } else { 1 };
    let distance = if options.dense { 1 } else { addresses / touched };
    for number in 0..touched.div_ceil(piece) {
        let first = number * piece;
        rig.write(first * distance, piece.min(touched - first) as u32)?;
        if number % (1 << 14) == 0 {
            options.progress.report("writing", first as f64 / touched as f64);
        }
    }
    rig.drain()?;
    let before = rig.engine.statistics();
    let written = Memory::of(&before, touched);
    let mut rig = Rig::open(Config::default(), rig.kill(), 256)?;
    rig.read((touched - 1) * distance, 1)?;
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
    fn more_than_all_addresses_is_refused() {
        let options = Options { addresses: 1 << 20, touched: 1 << 21, ..Options::default() };
        assert!(run(&options).is_err());
    }
}
