//! What a trace would cost on Coulter: the advisor.
//!
//! The trace is read once ([`Summary`]), and what it changes is replayed through the real engine on a
//! device that keeps no payload, once for every behaviour of the engine and every spare space: first
//! until as much has been written as the trace's blocks take several times over, then for measuring.
//! A short trace is repeated for that, in another order each time (`lap.rs`).
//!
//! # What stands in for what
//! - The volume is as large as what the trace writes (`footprint.rs`), and full. A volume that is not
//!   full has that much more spare space.
//! - A trace that writes too little for a store is replayed as several hosts side by side, each with
//!   blocks of its own: `copies`.
//! - Blocks are 4 KiB. Of a write that covers part of one all of it counts.
//!
//! # What it does not do
//! Replay reads, or keep the trace's times.

mod compressed;
mod digest;
mod footprint;
mod lap;
mod plot;
mod report;
mod spool;
#[cfg(test)]
mod tests;
mod worth;

pub use digest::Summary;
pub use plot::plot;
pub use worth::{DEVICE_CLASSES, DeviceClass, Gain, Worth};

use crate::cleaning::{Shape, Written};
use crate::error::BenchError;
use crate::model_store::{DEPTH_DEFAULT, ModelStore, Reserve};
use crate::progress::Progress;
use crate::sequentiality::RunLengths;
use coulter_engine::Config;
use coulter_engine::create::segment_blocks_default;
use coulter_workload::trace::ReaderOptions;
use digest::Digest;
use serde::Serialize;
use std::io::BufRead;
use worth::Load;

/// Blocks that a store has at least: 1 GiB, of which a checkpoint is a small part.
const BLOCKS_MIN: u64 = 1 << 18;

/// Different blocks that a trace writes at most: 4 TiB. Each takes eight bytes of memory.
const FOOTPRINT_MAX: u64 = 1 << 30;

/// A behaviour of the engine, and its name.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// What it is called in the report.
    pub name: String,
    /// What makes it.
    pub config: Config,
}

/// What to replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the trace is read.
    pub reader: ReaderOptions,
    /// Whether a line that cannot be understood ends it all.
    pub strict: bool,
    /// Behaviours to be compared; the first is the one that the advice is about.
    pub behaviours: Vec<Behaviour>,
    /// Spare spaces to be compared, per block of the volume. The advice is about the second, or the
    /// only one.
    pub spares: Vec<f64>,
    /// How often the trace's blocks are written over before measuring, and while measuring.
    pub passes: u32,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reader: ReaderOptions::default(),
            strict: false,
            behaviours: vec![Behaviour { name: "default".into(), config: Config::default() }],
            spares: vec![0.1, 0.2, 0.4],
            passes: 3,
            progress: Progress::default(),
        }
    }
}

/// One replay.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The behaviour.
    pub behaviour: String,
    /// Blocks of the log beyond the volume, per block of the volume.
    pub spare: f64,
    /// Why there are no figures: the store cannot be laid out with so little spare space.
    pub impossible: Option<String>,
    /// The figures.
    pub figures: Option<Figures>,
}

/// The figures of one replay.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Blocks written to the device per block that the host wrote.
    pub write_amplification: f64,
    /// Its parts.
    pub written: Written,
    /// Blocks that the host wrote while it was measured.
    pub host_blocks: u64,
    /// How sequential the device's writes were.
    pub device_writes: RunLengths,
    /// The most memory that the map took, for a host: the copies are divided out.
    pub map_bytes: u64,
    /// How often the trace was gone through, warming up included. More than once means that the order
    /// of its parts was changed.
    pub laps: u64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the trace asks for.
    pub trace: Summary,
    /// Hosts side by side.
    pub copies: u64,
    /// Each replay.
    pub rows: Vec<Row>,
    /// The advice; `None` if no store could be laid out.
    pub advice: Option<Advice>,
}

/// Whether it is worth it.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The replay that it is about.
    pub behaviour: String,
    /// Its spare space.
    pub spare: f64,
    /// What devices gain.
    pub gains: Vec<Gain>,
    /// A device gains if a write that does not continue another costs it more time than writing so
    /// many blocks; `null` if none ever gains.
    pub break_even_blocks: Option<f64>,
    /// The same in words.
    pub sentence: String,
}

/// Reads a trace, which may be compressed by gzip, and replays it.
///
/// # Errors
/// When the trace cannot be read, changes nothing, or has a bad line and `strict` was asked for; when
/// the options make no sense.
pub fn run(trace: impl BufRead, options: &Options) -> Result<Report, BenchError> {
    if options.passes == 0 || options.spares.is_empty() || options.behaviours.is_empty() {
        return Err(BenchError::option("nothing is measured with no passes, spares or policies"));
    }
    let trace = compressed::text(trace).map_err(BenchError::Trace)?;
    let mut digest = digest::read(trace, &options.reader, options.strict, &options.progress)?;
    let footprint = digest.footprint.blocks();
    let copies = BLOCKS_MIN.div_ceil(footprint);
    let mut rows = Vec::new();
    for behaviour in &options.behaviours {
        for spare in &options.spares {
            rows.push(row(&mut digest, behaviour, *spare, copies, options)?);
        }
    }
    let advice = advise(&digest.summary, &rows, options);
    Ok(Report { trace: digest.summary, copies, rows, advice })
}

fn row(
    digest: &mut Digest,
    behaviour: &Behaviour,
    spare: f64,
    copies: u64,
    options: &Options,
) -> Result<Row, BenchError> {
    let blocks = digest.footprint.blocks() * copies;
    let shape = Shape {
        blocks,
        segment_blocks: Some(segment_blocks_default((blocks as f64 * (1.0 + spare)) as u64, 0)),
        spare,
        reserve: Reserve::Segments(0),
        map_memory: None,
        queue_depth: DEPTH_DEFAULT,
    };
    let behaviour_name = behaviour.name.clone();
    let store = match ModelStore::open(&shape, behaviour.config) {
        Ok(store) => store,
        Err(BenchError::Option { reason }) => {
            let impossible = Some(reason);
            return Ok(Row { behaviour: behaviour_name, spare, impossible, figures: None });
        }
        Err(other) => return Err(other),
    };
    let step = format!("{behaviour_name}, {:.0} % spare", spare * 100.0);
    let progress = |share| options.progress.report(&step, share);
    let figures = Some(lap::replay(store, digest, copies, options.passes, progress)?);
    Ok(Row { behaviour: behaviour_name, spare, impossible: None, figures })
}

/// The advice is about the first behaviour, and of its replays with figures the second.
fn advise(trace: &Summary, rows: &[Row], options: &Options) -> Option<Advice> {
    let of_first = rows.iter().filter(|row| row.behaviour == options.behaviours[0].name);
    let possible: Vec<_> = of_first.filter_map(|row| Some((row, row.figures.as_ref()?))).collect();
    let (row, figures) = possible.get(1).or(possible.first())?;
    let before = Load { amplification: 1.0, writes: trace.host_writes };
    let after = Load {
        amplification: figures.write_amplification * trace.rounding(),
        writes: figures.device_writes,
    };
    let gains = worth::gains(&before, &after);
    let break_even_blocks = worth::break_even_blocks(&before, &after);
    Some(Advice {
        behaviour: row.behaviour.clone(),
        spare: row.spare,
        sentence: worth::sentence(&gains, trace.host_writes),
        gains,
        break_even_blocks,
    })
}
