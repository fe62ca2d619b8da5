//! What random writes do to sequential readers, and what `defrag` gives back.
//!
//! A volume on a file is written in order, overwritten at random, and put in order again on demand.
//! Each time all of it is read in order, a mebibyte at a time. How many reads of the device that took
//! says in how long pieces the blocks lie; the rate says what that costs on this device.

use crate::backing::{ScratchFile, place};
use crate::error::BenchError;
use crate::figures::{Figures, bytes};
use crate::least_size::too_small;
use crate::progress::Progress;
use crate::side::{
    self, Access, Data, LARGE_SLOTS, Limit, Load, REQUEST_SIZE_MAX, Versions, VolumeSide,
};
use coulter::tuning::Retuning;
use coulter::{CreateOptions, OpenOptions, Volume, check_create, create};
use coulter_engine::create::segment_blocks_default;
use coulter_workload::{Addresses, BLOCK_SIZE, Content, Pattern};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Random writes at once: enough for full records.
const DEPTH: usize = 256;

/// How often the position of `defrag` is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for the file, or its name; `None` for the directory for temporary files. It is
    /// gone afterwards.
    pub backing: Option<PathBuf>,
    /// Bytes of the volume.
    pub size: u64,
    /// Spare space of the store, in percent of the volume.
    pub spare_percent: u32,
    /// How often the volume is overwritten.
    pub passes: u64,
    /// Which blocks are overwritten.
    pub pattern: Pattern,
    /// Told how far it is.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            backing: None,
            size: 1 << 30,
            spare_percent: 20,
            passes: 2,
            pattern: Pattern::Uniform,
            progress: Progress::default(),
        }
    }
}

/// All of the volume read in order.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Reading {
    /// Blocks in a row, of the host's and of the device's: blocks for each read of the device.
    pub run_blocks_mean: f64,
    /// MiB per second.
    pub mib_per_second: f64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Spare space of the store, in percent of the volume.
    pub spare_percent: u32,
    /// Which blocks were overwritten.
    pub pattern: String,
    /// How often the volume was overwritten.
    pub passes: u64,
    /// As it was written in order.
    pub written_in_order: Reading,
    /// After overwriting.
    pub overwritten: Reading,
    /// After `defrag`.
    pub defragmented: Reading,
    /// Seconds that it took.
    pub defrag_seconds: f64,
    /// Bytes that it moved.
    pub defragmented_bytes: u64,
    /// All bytes written to the device meanwhile.
    pub defrag_written_bytes: u64,
    /// Blocks compared with what was written last.
    pub verified_blocks: u64,
    /// Blocks that differed.
    pub mismatches: u64,
}

impl Report {
    /// The figures as text.
    pub fn table(&self) -> String {
        let mut table = Figures::default();
        let readings = [
            ("written in order", self.written_in_order),
            ("overwritten at random", self.overwritten),
            ("defragmented", self.defragmented),
        ];
        for (name, reading) in readings {
            table.row(name, format!("{:.0} MiB/s", reading.mib_per_second), {
                format!("read in order, in pieces of {:.1} blocks", reading.run_blocks_mean)
            });
        }
        table
            .row("defrag", format!("{:.1} s", self.defrag_seconds), {
                let (moved, written) = (self.defragmented_bytes, self.defrag_written_bytes);
                format!("{} moved, {} written", bytes(moved), bytes(written))
            })
            .row("blocks verified", self.verified_blocks.to_string(), {
                format!("{} mismatches", self.mismatches)
            });
        table.text()
    }
}

/// Measures.
///
/// # Errors
/// When the file or the store cannot be made, or a request fails.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    // Requests are drawn at random, so that there must be far more of them than are out at once.
    if options.size < 16 * MIB || !options.size.is_multiple_of(MIB) {
        return Err(BenchError::option("the size must be whole MiB, 16 at least"));
    }
    let progress = &options.progress;
    let (_file, mut volume) = open(options)?;
    let mut versions = Versions::new(options.size / BLOCK_SIZE as u64);
    let content = Content::new(1);
    let told = |share| progress.report("filling", share);
    side::write_all(&mut volume, &mut versions, &content, told)?;
    let written_in_order = read_all(&mut volume, &mut versions, &content)?;
    let mut addresses = options.pattern.over(versions.count(), 1);
    for pass in 0..options.passes {
        progress.report("overwriting", pass as f64 / options.passes as f64);
        let limit = Limit::Requests(versions.count());
        let load =
            Load { access: Access::Write, count: 1, depth: DEPTH, limit, data: Data::Filled };
        side::run(&mut volume, &load, &mut addresses, &mut versions, &content)?;
    }
    let overwritten = read_all(&mut volume, &mut versions, &content)?;
    let before = volume.statistics();
    let defrag_seconds = defragment(&volume, options)?;
    let after = volume.statistics();
    let defragmented = read_all(&mut volume, &mut versions, &content)?;
    let told = |share| progress.report("verifying", share);
    let mismatches = side::verify_all(&mut volume, &versions, &content, told)?;
    volume.close()?;
    Ok(Report {
        size_bytes: options.size,
        spare_percent: options.spare_percent,
        pattern: options.pattern.to_string(),
        passes: options.passes,
        written_in_order,
        overwritten,
        defragmented,
        defrag_seconds,
        defragmented_bytes: after.cleaning.defragmented_bytes - before.cleaning.defragmented_bytes,
        defrag_written_bytes: after.device.write_bytes - before.device.write_bytes,
        verified_blocks: versions.count(),
        mismatches,
    })
}

/// The size of a store for a volume of `size` bytes, and how it is made.
fn store(size: u64, spare_percent: u32) -> (u64, CreateOptions) {
    let spare = size / 100 * u64::from(spare_percent);
    let suited = segment_blocks_default((size + spare) / BLOCK_SIZE as u64, 0);
    let segment = u64::from(suited) * BLOCK_SIZE as u64;
    let options = CreateOptions {
        volume_size: Some(size),
        segment_size: Some(segment),
        spare_percent,
        ..CreateOptions::default()
    };
    ((size + spare).next_multiple_of(segment) + segment, options)
}

/// The file must live as long as the volume.
fn open(options: &Options) -> Result<(ScratchFile, VolumeSide), BenchError> {
    let (store_size, create_options) = store(options.size, options.spare_percent);
    if let Err(error) = check_create(store_size, &create_options) {
        let fits = |size| {
            let (store_size, create_options) = store(size, options.spare_percent);
            check_create(store_size, &create_options).is_ok()
        };
        let too_small = too_small(options.size, options.spare_percent, fits);
        return Err(too_small.unwrap_or(BenchError::Create(error)));
    }
    let path = place(options.backing.as_deref(), "store")?;
    let told = |share| options.progress.report("writing the store's file", share);
    let file = ScratchFile::new(&path, store_size, told)?;
    create(file.open()?, &create_options).map_err(BenchError::Create)?;
    let volume = Volume::open(file.open()?, OpenOptions::default()).map_err(BenchError::Open)?;
    Ok((file, VolumeSide::new(volume, DEPTH)))
}

fn read_all(
    volume: &mut VolumeSide,
    versions: &mut Versions,
    content: &Content,
) -> Result<Reading, BenchError> {
    let count = (REQUEST_SIZE_MAX / BLOCK_SIZE) as u64;
    let requests = versions.count() / count;
    let mut addresses: Addresses = Pattern::Sequential.over(requests, 1);
    let limit = Limit::Requests(requests);
    let load = Load { access: Access::Read, count, depth: LARGE_SLOTS, limit, data: Data::Filled };
    let before = volume.statistics().device.reads;
    let outcome = side::run(volume, &load, &mut addresses, versions, content)?;
    let reads = volume.statistics().device.reads - before;
    Ok(Reading {
        run_blocks_mean: (requests * count) as f64 / reads.max(1) as f64,
        mib_per_second: outcome.per_second() * REQUEST_SIZE_MAX as f64 / MIB as f64,
    })
}

/// Seconds that it took.
fn defragment(volume: &VolumeSide, options: &Options) -> Result<f64, BenchError> {
    let start = Instant::now();
    let mut retuning = Retuning { defrag: Some(true), ..Retuning::default() };
    while volume.tune(retuning)?.defrag {
        retuning = Retuning::default();
        let done = volume.statistics().cleaning.defrag_position_bytes as f64;
        options.progress.report("defragmenting", done / options.size as f64);
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_writes_scatter_and_defrag_puts_in_order() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options {
            backing: Some(directory.path().to_path_buf()),
            size: 64 * MIB,
            spare_percent: 120,
            passes: 1,
            ..Options::default()
        };
        let report = run(&options).expect("it can be measured");
        assert_eq!((report.mismatches, report.verified_blocks), (0, 16_384));
        assert!(report.written_in_order.run_blocks_mean > 100.0, "{report:?}");
        assert!(report.overwritten.run_blocks_mean < 4.0, "{report:?}");
        assert!(report.defragmented.run_blocks_mean > 64.0, "{report:?}");
        assert!(report.defragmented_bytes > 32 * MIB, "{report:?}");
        assert!(report.table().contains("defragmented"));
    }

    #[test]
    fn a_size_that_makes_no_sense_is_refused_in_words() {
        for size in [0, MIB, 16 * MIB + 1] {
            let refused = run(&Options { size, ..Options::default() });
            assert!(matches!(refused, Err(BenchError::Option { .. })), "{size}");
        }
    }

    #[test]
    fn the_least_size_that_an_error_names_can_be_measured() {
        let options = |size| Options { size, ..Options::default() };
        let error = open(&options(128 * MIB)).err().expect("it is too small").to_string();
        let named = error.split("it must be ").nth(1).and_then(|rest| rest.split(" MiB").next());
        let named: u64 = named.and_then(|text| text.parse().ok()).expect("whole MiB");
        assert!(open(&options((named - 1) * MIB)).is_err(), "{error}");
        open(&options(named * MIB)).expect("it fits");
    }
}
