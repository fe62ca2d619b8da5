//! What a volume has done and what it holds, at one moment. Totals run from the opening.

use crate::counters::{Counters, DeviceCounts, RequestCounts};
use crate::create::STRETCH_SIZE;
use crate::governor::GovernorCounts;
use crate::histogram::Histogram;
use coulter_format::BLOCK_SIZE;

/// The facts of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Statistics {
    /// What hosts asked for.
    pub requests: RequestCounts,
    /// What the device was told.
    pub device: DeviceCounts,
    /// What was written to the device, by cause.
    pub written: WrittenBytes,
    /// Where the room is.
    pub space: Space,
    /// What cleaning did, and what held it back.
    pub cleaning: Cleaning,
    /// What the map takes.
    pub map: MapUse,
    /// Reads that the threads of clients carried out, or tried to.
    pub read_cache: ReadCacheUse,
    /// What the log did.
    pub log: LogCounts,
    /// Times from handing a read over to its completion.
    pub read_latency: Latency,
    /// The same of writes, discards and write-zeroes.
    pub write_latency: Latency,
    /// The same of flushes.
    pub flush_latency: Latency,
    /// What was asked for and not answered yet.
    pub waiting: Waiting,
    /// What the loop's thread did.
    pub event_loop: LoopCounts,
}

impl Statistics {
    /// Bytes written to the device for each byte that hosts wrote, in thousandths; 1000 before the
    /// first write.
    pub fn write_amplification_thousandths(&self) -> u64 {
        match self.written.host_bytes {
            0 => 1000,
            host => (u128::from(self.written.total_bytes()) * 1000 / u128::from(host)) as u64,
        }
    }
}

/// Bytes written to the device, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WrittenBytes {
    /// What hosts wrote.
    pub host_bytes: u64,
    /// Host data that cleaning wrote again.
    pub relocated_bytes: u64,
    /// Metadata that cleaning wrote again.
    pub relocated_metadata_bytes: u64,
    /// What was written again at its place, so that flash pages with holes were written as a whole.
    pub padded_bytes: u64,
    /// Headers of records.
    pub header_bytes: u64,
    /// Pages of the map.
    pub map_bytes: u64,
    /// Runs of map updates.
    pub run_bytes: u64,
    /// Segment tables, checkpoint bodies and superblocks.
    pub checkpoint_bytes: u64,
}

impl WrittenBytes {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.host_bytes + self.relocated_bytes + self.padded_bytes + self.metadata_bytes()
    }

    /// All that is not data of hosts.
    pub fn metadata_bytes(&self) -> u64 {
        self.relocated_metadata_bytes
            + self.header_bytes
            + self.map_bytes
            + self.run_bytes
            + self.checkpoint_bytes
    }
}

/// Segments and what is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Space {
    /// Bytes of a segment.
    pub segment_size_bytes: u64,
    /// Segments in all.
    pub segments_total: u64,
    /// Segments with nothing in them.
    pub segments_empty: u64,
    /// Bytes in segments that are still needed.
    pub valid_bytes: u64,
    /// Of a sparse volume: bytes that its data and map pages are charged; 0 of any other.
    pub charged_bytes: u64,
    /// How many that may be; 0 of a volume that is not sparse.
    pub charged_limit_bytes: u64,
    /// Bytes of the 1 GiB stretches of addresses in which a sparse volume holds anything. One that was emptied counts
    /// until the next checkpoint. Zero for any other volume.
    pub touched_bytes: u64,
    /// How many that may be ([`CreateOptions::stretch_limit`](crate::CreateOptions::stretch_limit)); 0 of a volume
    /// that is not sparse.
    pub touched_limit_bytes: u64,
    /// Segments that the cleaner has gone through.
    pub segments_cleaned: u64,
    /// Relocated blocks that had been overwritten in the meantime.
    pub relocations_dropped: u64,
    /// Bytes that were allocated, or written with zeros, before the log came to them. Only a store in a
    /// file needs that.
    pub prepared_bytes: u64,
}

/// What cleaning did besides what it wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cleaning {
    /// Bytes of segments that it read.
    pub read_bytes: u64,
    /// Segments that it took ahead of need because the host was idle.
    pub segments_ahead: u64,
    /// How often it began to wait because the host's writes took longer than the target.
    pub back_offs: u64,
    /// How often the host was idle for as long as `idle-after` says.
    pub idle_times: u64,
    /// Bytes that were put in the host's order by `defrag`; they count as relocated too.
    pub defragmented_bytes: u64,
    /// Up to which byte of the volume that has got.
    pub defrag_position_bytes: u64,
    /// How often it has come to the volume's end.
    pub defrag_passes: u64,
}

/// Memory of the map, and how it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MapUse {
    /// Bytes that it takes now.
    pub memory_bytes: u64,
    /// The most that it took.
    pub memory_peak_bytes: u64,
    /// The most that it may take.
    pub memory_limit_bytes: u64,
    /// Lookups answered from memory.
    pub hits: u64,
    /// Lookups for which a page was read.
    pub misses: u64,
    /// Pages given up to make room.
    pub evictions: u64,
}

/// The cache in which clients look up where blocks lie that they then read themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReadCacheUse {
    /// Bytes that it takes; 0 if there is none.
    pub memory_bytes: u64,
    /// Reads that clients carried out. They count among `requests.reads` and `device.reads` too.
    pub hits: u64,
    /// Bytes of these.
    pub hit_bytes: u64,
    /// Reads that it could have answered, and did not: the loop carried them out.
    pub misses: u64,
    /// Of those that were read, the ones that failed or had another checksum: the loop carried them out
    /// again.
    pub mismatches: u64,
}

/// Records, flushes, checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LogCounts {
    /// Records written.
    pub records: u64,
    /// Flushes that one flush of the device answered, or that found all durable.
    pub flushes_answered: u64,
    /// Flushes of the device.
    pub device_flushes: u64,
    /// Checkpoints made durable.
    pub checkpoints: u64,
    /// The sequence of the last record that took effect.
    pub applied_sequence: u64,
    /// The sequence of the last record that is known durable.
    pub durable_sequence: u64,
    /// Runs alive.
    pub runs: u64,
    /// Records that the next checkpoint refers to, instead of repeating in a run what they changed.
    pub references: u64,
    /// Records that opening replayed.
    pub records_replayed: u64,
    /// Records that opening found behind the end of the log, and dropped.
    pub records_dropped: u64,
    /// 1 if opening found the checkpoint's body damaged, and used its second copy.
    pub body_copies_used: u64,
    /// Blocks of metadata found damaged or unreadable, and read from a second copy or rebuilt from parity.
    pub metadata_copies_used: u64,
    /// Blocks found damaged.
    pub corrupt_blocks: u64,
    /// 1 if blocks may be marked lost, by damage of this time or an earlier one: reading them fails. A scrub names them; one
    /// from the first block to the last that meets none makes it 0.
    pub may_have_lost: u64,
    /// Requests that the engine told to come again.
    pub busy: u64,
}

/// A distribution of times in nanoseconds. Quantiles are at most a sixteenth too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// The mean.
    pub mean_ns: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99 % took no longer.
    pub p99_ns: u64,
    /// 99.9 % took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Latency {
        Latency {
            count: histogram.count(),
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.quantile_ns(500_000),
            p99_ns: histogram.quantile_ns(990_000),
            p999_ns: histogram.quantile_ns(999_000),
            max_ns: histogram.max_ns(),
        }
    }
}

/// Turns of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LoopCounts {
    /// Turns.
    pub turns: u64,
    /// Turns that ended asleep, for lack of anything to do.
    pub sleeps: u64,
    /// Batches of requests taken from sessions.
    pub batches: u64,
    /// Batches of completions handed to sessions.
    pub deliveries: u64,
}

/// Requests that were taken and not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiting {
    /// How many.
    pub requests: u64,
    /// How long ago the oldest of them was handed over, in nanoseconds; 0 if there is none.
    pub oldest_ns: u64,
    /// Whether the device had no space beneath it when it was last asked. Writes wait for some, and go
    /// on by themselves.
    pub for_space: bool,
}

/// Times of requests by class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    pub(crate) read: Histogram,
    pub(crate) write: Histogram,
    pub(crate) flush: Histogram,
}

/// Puts together what each part counts.
pub(crate) fn gather(
    counters: &Counters,
    engine: &coulter_engine::Statistics,
    latencies: &Latencies,
    event_loop: LoopCounts,
    governor: GovernorCounts,
    waiting: Waiting,
    read_cache: Option<ReadCacheUse>,
) -> Statistics {
    let read_cache = read_cache.unwrap_or_default();
    let (mut requests, mut device) = (counters.requests, counters.device);
    requests.reads += read_cache.hits;
    requests.read_bytes += read_cache.hit_bytes;
    device.reads += read_cache.hits;
    device.read_bytes += read_cache.hit_bytes;
    let headers =
        engine.user_header_blocks + engine.cleaning_header_blocks + engine.metadata_header_blocks;
    Statistics {
        requests,
        waiting,
        device,
        written: WrittenBytes {
            host_bytes: bytes(engine.user_blocks_written),
            relocated_bytes: bytes(engine.relocated_blocks),
            relocated_metadata_bytes: bytes(engine.relocated_metadata_blocks),
            padded_bytes: bytes(engine.padded_blocks),
            header_bytes: bytes(headers),
            map_bytes: bytes(engine.leaf_blocks + engine.root_blocks),
            run_bytes: bytes(engine.run_blocks),
            checkpoint_bytes: bytes(
                engine.table_blocks
                    + engine.checkpoint_blocks
                    + engine.copy_blocks
                    + engine.header_parity_blocks,
            ),
        },
        space: Space {
            segment_size_bytes: bytes(engine.segment_blocks),
            segments_total: engine.segment_count,
            segments_empty: engine.segments_empty,
            valid_bytes: bytes(engine.valid_blocks),
            charged_bytes: bytes(engine.charged_blocks),
            charged_limit_bytes: bytes(engine.charged_blocks_max),
            touched_bytes: engine.roots_touched * STRETCH_SIZE,
            touched_limit_bytes: engine.roots_touched_max * STRETCH_SIZE,
            segments_cleaned: engine.segments_cleaned,
            relocations_dropped: engine.relocations_dropped,
            prepared_bytes: bytes(engine.prepared_blocks),
        },
        cleaning: Cleaning {
            read_bytes: bytes(engine.cleaning_read_blocks),
            segments_ahead: engine.victims_ahead,
            back_offs: governor.back_offs,
            idle_times: governor.idle_times,
            defragmented_bytes: bytes(engine.defragmented_blocks),
            defrag_position_bytes: bytes(engine.defrag_next),
            defrag_passes: engine.defrag_passes,
        },
        map: MapUse {
            memory_bytes: engine.map_bytes,
            memory_peak_bytes: engine.map_bytes_peak,
            memory_limit_bytes: engine.map_bytes_limit,
            hits: engine.map.hits,
            misses: engine.map.misses,
            evictions: engine.map.evictions,
        },
        log: log_counts(engine),
        read_cache,
        read_latency: (&latencies.read).into(),
        write_latency: (&latencies.write).into(),
        flush_latency: (&latencies.flush).into(),
        event_loop,
    }
}

fn log_counts(engine: &coulter_engine::Statistics) -> LogCounts {
    LogCounts {
        records: engine.records,
        flushes_answered: engine.flush_requests,
        device_flushes: engine.device_flushes,
        checkpoints: engine.checkpoints,
        applied_sequence: engine.applied_sequence,
        durable_sequence: engine.durable_sequence,
        runs: engine.run_count,
        references: engine.reference_count,
        records_replayed: engine.records_replayed,
        records_dropped: engine.records_dropped,
        body_copies_used: engine.body_copies_used,
        metadata_copies_used: engine.metadata_copies_used,
        corrupt_blocks: engine.corrupt_blocks,
        may_have_lost: u64::from(engine.may_have_lost),
        busy: engine.busy,
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_SIZE as u64
}
