//! From a device to a driver whose store can be read, in two steps: what is decided between them holds
//! before the engine has done anything.

use super::{Conflicts, Driver, Jobs, Lost, ShortOfSpace};
use crate::bounce::BounceBuffers;
use crate::counters::Counters;
use crate::open_error::OpenErrorKind;
use crate::pool::Pool;
use coulter_device::{Device, Wait};
use coulter_engine::{Config, Engine, Phase, Prepare};
use coulter_format::BLOCK_SIZE;
use coulter_format::record::ATOMIC_BLOCKS_MAX;
use std::collections::VecDeque;

/// Places of the engine that writes leave to reads and flushes, as a part of all.
const PROMPT_SHARE: u32 = 8;

impl Driver {
    /// A driver for the store on `device`, which has yet to be opened by [`Driver::recover`].
    ///
    /// # Errors
    /// [`OpenErrorKind`], when there is no memory for it, or the device refuses that.
    pub(crate) fn new(
        mut device: Box<dyn Device>,
        config: Config,
    ) -> Result<Driver, OpenErrorKind> {
        let pool = Pool::new(config.record_count, config.page_count);
        let pool = pool.map_err(OpenErrorKind::Resources)?;
        let region = pool.region();
        // SAFETY: nothing is outstanding on a device that was just handed over; the pool's memory
        // is freed after the device.
        unsafe { device.register(&[region]) }.map_err(device_error)?;
        let properties = device.properties();
        let prepare = preparation(properties.prepare);
        let atomic_page_blocks = atomic_page_blocks(properties.atomic_page);
        let config = Config { prepare, atomic_page_blocks, ..config };
        let device_size = properties.size / BLOCK_SIZE as u64;
        let alignment = properties.alignment as usize;
        let queue_depth = properties.queue_depth;
        let request_count = config.request_count;
        Ok(Driver {
            engine: Engine::open(config, device_size).map_err(OpenErrorKind::of)?,
            device,
            pool,
            jobs: Jobs::default(),
            conflicts: Conflicts::default(),
            prompt: VecDeque::new(),
            writes: VecDeque::new(),
            blocked: VecDeque::new(),
            answers_early: false,
            lost: Lost::default(),
            write_parts: 0,
            write_parts_max: request_count - request_count.div_ceil(PROMPT_SHARE),
            part_count_max: 1,
            alignment,
            bounces: BounceBuffers::default(),
            completions: Vec::with_capacity(queue_depth),
            arrived: VecDeque::with_capacity(queue_depth),
            freed: Vec::new(),
            commands_out: 0,
            cache: None,
            space: ShortOfSpace::default(),
            is_shutting_down: false,
            ended: None,
            counters: Counters::default(),
            finished: Vec::new(),
        })
    }

    /// Opens the store. Waits until it can be read; the engine goes on by itself to where it can be
    /// written.
    ///
    /// # Errors
    /// [`OpenErrorKind`], when it is no store, cannot be opened, or the device fails.
    pub(crate) fn recover(mut self) -> Result<Driver, OpenErrorKind> {
        while !self.is_readable() {
            self.work();
            if let Phase::Failed(error) = self.engine.phase() {
                return Err(OpenErrorKind::of(error));
            }
            if !self.is_readable() {
                assert!(self.engine.activity() > 0, "opening goes on until it has ended");
                self.poll_device(Wait::Forever).map_err(device_error)?;
            }
        }
        let geometry = self.engine.geometry();
        // A record lies inside one segment, its header too.
        self.part_count_max = u64::from(geometry.segment_blocks - 1).min(ATOMIC_BLOCKS_MAX as u64);
        Ok(self)
    }
}

/// Blocks of the pages that a device says it writes whole or not at all; 1 if it says nothing.
fn atomic_page_blocks(bytes: u64) -> u32 {
    u32::try_from(bytes / BLOCK_SIZE as u64).unwrap_or(1).max(1)
}

fn preparation(by_device: coulter_device::Prepare) -> Prepare {
    match by_device {
        coulter_device::Prepare::Nothing => Prepare::Never,
        coulter_device::Prepare::Blocks => Prepare::Blocks,
        coulter_device::Prepare::Space => Prepare::Space,
    }
}

fn device_error(error: std::io::Error) -> OpenErrorKind {
    OpenErrorKind::Device { errno: error.raw_os_error().unwrap_or(libc::EIO) }
}
