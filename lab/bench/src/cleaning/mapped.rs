//! What metadata costs when much is mapped and little of the map fits into memory.
//!
//! The store of the recovery measurement: every block is written once, alone, in random order, and
//! then overwritten at random with little map memory, in full records.

use crate::error::BenchError;
use crate::figures::{Figures, bytes, percent};
use crate::metadata::{MetadataShares, write_amplification};
use crate::recovery::{self, Bench};
use coulter_format::BLOCK_SIZE;
use serde::Serialize;

pub use crate::recovery::Options;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes mapped, as blocks in random order.
    pub mapped_bytes: u64,
    /// Bytes that the map was allowed.
    pub map_limit_bytes: u64,
    /// Bytes that the whole map would take.
    pub full_map_bytes: u64,
    /// Most bytes that the map held.
    pub peak_map_bytes: u64,
    /// Host blocks over which it was measured.
    pub overwritten_blocks: u64,
    /// Host blocks per record meanwhile; 250 single ones are full where the map is not whole.
    pub blocks_per_record: f64,
    /// Metadata blocks written per block that the host wrote.
    pub metadata_fraction: f64,
    /// The same by cause.
    pub metadata_fractions: MetadataShares,
    /// All blocks written per block that the host wrote.
    pub write_amplification: f64,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        table
            .row("mapped", bytes(self.mapped_bytes), "in random blocks of 4 KiB")
            .row("map memory", bytes(self.map_limit_bytes), {
                format!("the whole map would take {}", bytes(self.full_map_bytes))
            })
            .row("  peak", bytes(self.peak_map_bytes), "")
            .row("write amplification", format!("{:.3}", self.write_amplification), {
                format!("over {} blocks", self.overwritten_blocks)
            })
            .row("metadata written", percent(self.metadata_fraction), {
                format!("of the host's blocks, {:.0} to a record", self.blocks_per_record)
            });
        self.metadata_fractions.add_to(&mut table);
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When the options do not make a store, or the engine misbehaves.
pub fn run(options: &recovery::Options) -> Result<Report, BenchError> {
    let mut bench = Bench::new(options)?;
    bench.build(options)?;
    let overwriting = bench.overwrite(options)?;
    let (before, after) = (&overwriting.before, &overwriting.after);
    let metadata_fractions = MetadataShares::between(before, after);
    let records = after.user_header_blocks - before.user_header_blocks;
    Ok(Report {
        mapped_bytes: bench.volume_size * BLOCK_SIZE as u64,
        map_limit_bytes: bench.map_memory,
        full_map_bytes: bench.volume_size * 8,
        peak_map_bytes: after.map_bytes_peak,
        overwritten_blocks: overwriting.blocks,
        blocks_per_record: overwriting.blocks as f64 / records.max(1) as f64,
        metadata_fraction: metadata_fractions.sum(),
        metadata_fractions,
        write_amplification: write_amplification(before, after),
    })
}
