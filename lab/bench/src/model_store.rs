//! A store on the stand-in device, of a given number of blocks and exactly a given spare space.

use crate::error::BenchError;
use crate::sequentiality::Sequentiality;
use crate::standin::{HostBlocks, Rig, StandinDevice};
use coulter_engine::Config;
use coulter_engine::create::{CreateOptions, create, map_size_min};
use coulter_format::StoreId;

/// Requests in the engine at once unless something else is asked for: records are full.
pub(crate) const DEPTH_DEFAULT: u32 = 1024;

/// Room in a log on top of volume and spare space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Segments.
    Segments(u32),
    /// Blocks. The volume is then as much smaller as makes the log a whole number of segments.
    Blocks(u64),
}

/// What a store should be like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Minimum number of blocks of the volume. It gets as many more as fill the last segment.
    pub blocks: u64,
    /// Blocks of a segment; `None` for the power of two nearest to a hundredth of the volume.
    pub segment_blocks: Option<u32>,
    /// Blocks of the log that the volume does not have, per block that it has. Everything that is
    /// no host data, such as map pages, has to find room in it.
    pub spare: f64,
    /// What the log has on top of that.
    pub reserve: Reserve,
    /// Bytes of map memory; `None` for the whole map.
    pub map_memory: Option<u64>,
    /// Requests in the engine at once.
    pub queue_depth: u32,
}

/// An empty store that has just been opened.
pub(crate) struct ModelStore {
    pub(crate) rig: Rig,
    pub(crate) blocks: u64,
    pub(crate) segment_blocks: u32,
}

/// The power of two nearest to a hundredth of the volume, of those that a segment may have.
fn segment_blocks_default(blocks: u64) -> u32 {
    let wanted = (blocks / 100).clamp(256, 1 << 18);
    let below = 1 << wanted.ilog2();
    let above = (2 * below).min(1 << 18);
    (if wanted - below <= above - wanted { below } else { above }) as u32
}

impl ModelStore {
    /// Lays a store out and opens it.
    ///
    /// # Errors
    /// When there is no such store.
    pub(crate) fn open(shape: &Shape, config: Config) -> Result<ModelStore, BenchError> {
        if !(shape.spare > 0.0 && shape.spare <= 100.0) {
            return Err(BenchError::option("spare space is above 0 % and at most 10000 %"));
        }
        if shape.blocks == 0 || shape.blocks > 1 << 31 {
            return Err(BenchError::option("a volume has from 1 to 2^31 blocks"));
        }
        if !(1..=1 << 16).contains(&shape.queue_depth) {
            return Err(BenchError::option("from 1 to 65536 requests can be under way at once"));
        }
        let segment_blocks =
            shape.segment_blocks.unwrap_or_else(|| segment_blocks_default(shape.blocks));
        let segment = u64::from(segment_blocks);
        if !segment.is_power_of_two() || !(256..=1 << 18).contains(&segment) {
            let reason = "a segment has a power of two of blocks, from 256 to 262144";
            return Err(BenchError::option(reason));
        }
        let reserve = match shape.reserve {
            Reserve::Segments(segments) => u64::from(segments) * segment,
            Reserve::Blocks(blocks) => blocks,
        };
        let filled = (shape.blocks as f64 * (1.0 + shape.spare)).ceil() as u64 + reserve;
        let filled = filled.next_multiple_of(segment);
        let blocks = ((filled - reserve) as f64 / (1.0 + shape.spare)) as u64;
        let blocks = blocks.max(shape.blocks);
        let full = map_size_min(blocks) + blocks * 13;
        let create_options = CreateOptions {
            // A segment's room for superblocks A and B before the log, a block for C behind it.
            device_size: filled + segment + 1,
            sparse: None,
            volume_size: Some(blocks),
            segment_blocks,
            spare_percent: 0,
            store: StoreId { uuid: *b"bench model stor", salt: 1 },
            label: [0; 64],
            map_size: shape.map_memory,
            journal_size: None,
            run_count_limit: None,
            page_blocks: None,
        };
        let (_, first) = create(&create_options).map_err(|error| {
            BenchError::option(format!("no store of this size can be laid out: {error}"))
        })?;
        let mut device = StandinDevice::with_store(create_options.device_size, &first);
        device.writes = Some(Sequentiality::default());
        let config = Config {
            map_size: Some(shape.map_memory.unwrap_or(full)),
            request_count: shape.queue_depth,
            trim: true,
            ..config
        };
        let mut rig = Rig::open(config, device, shape.queue_depth)?;
        rig.device.host_blocks = Some(HostBlocks::new(rig.engine.geometry()));
        Ok(ModelStore { rig, blocks, segment_blocks })
    }

    /// Writes every block once, in order.
    pub(crate) fn fill(&mut self, mut progress: impl FnMut(f64)) -> Result<(), BenchError> {
        // A record, header included, lies inside one segment.
        let step = u64::from(self.segment_blocks - 1).min(256);
        let mut next = 0;
        while next < self.blocks {
            progress(next as f64 / self.blocks as f64);
            let count = step.min(self.blocks - next);
            self.rig.write(next, count as u32)?;
            next += count;
        }
        self.rig.drain()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        blocks: 20_000,
        segment_blocks: Some(256),
        spare: 0.3,
        reserve: Reserve::Segments(0),
        map_memory: None,
        queue_depth: 64,
    };

    #[test]
    fn the_spare_space_is_exact_and_the_volume_a_little_larger() {
        let store = ModelStore::open(&SHAPE, Config::default()).expect("such a store");
        let geometry = *store.rig.engine.geometry();
        let log = u64::from(geometry.segment_count) * u64::from(geometry.segment_blocks);
        assert_eq!(geometry.volume_size, store.blocks);
        assert!((20_000..20_256).contains(&store.blocks), "{}", store.blocks);
        assert!((log as f64 / store.blocks as f64 - 1.3).abs() < 1e-4);
    }

    #[test]
    fn a_reserve_is_exact_in_blocks() {
        let store = |reserve| {
            let store = ModelStore::open(&Shape { reserve, ..SHAPE }, Config::default());
            let store = store.expect("such a store");
            let geometry = *store.rig.engine.geometry();
            let log = u64::from(geometry.segment_count) * u64::from(geometry.segment_blocks);
            log as f64 - 1.3 * store.blocks as f64
        };
        for blocks in [0, 100, 256, 1000] {
            let left = store(Reserve::Blocks(blocks));
            assert!((left - blocks as f64).abs() < 2.0, "{left} instead of {blocks}");
        }
        assert!((store(Reserve::Segments(4)) - 1024.0).abs() < 2.0);
    }

    #[test]
    fn a_segment_is_about_a_hundredth_of_the_volume() {
        let sizes = [1, 1 << 20, 1_200_000, 1_300_000, 1 << 31].map(segment_blocks_default);
        assert_eq!(sizes, [256, 8192, 8192, 16_384, 1 << 18]);
    }

    #[test]
    fn what_makes_no_store_is_refused_in_words() {
        for shape in [
            Shape { blocks: 0, ..SHAPE },
            Shape { spare: 0.0, ..SHAPE },
            Shape { spare: f64::NAN, ..SHAPE },
            Shape { spare: 0.001, ..SHAPE },
            Shape { segment_blocks: Some(300), ..SHAPE },
            Shape { segment_blocks: Some(128), ..SHAPE },
            Shape { map_memory: Some(1), ..SHAPE },
            Shape { queue_depth: 0, ..SHAPE },
        ] {
            let refused = ModelStore::open(&shape, Config::default());
            assert!(matches!(refused, Err(BenchError::Option { .. })), "{shape:?}");
        }
    }
}
