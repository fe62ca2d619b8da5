//! How a store is opened.

use crate::open_error::OpenErrorKind;
use crate::tuning::Retuning;
use coulter_device::Device;
use coulter_engine::{Config, Degraded};

/// Fewest requests that the engine has places for.
const REQUEST_COUNT_MIN: u32 = 16;

/// Most requests that memory is set aside for at open: some megabytes for what no host has under way.
const REQUEST_COUNT_MAX: u32 = 1 << 16;

/// Bytes of the read cache unless another size is asked for: that of 2 GiB of blocks.
const READ_CACHE_SIZE: u64 = 8 << 20;

/// How to open a store. None of it changes what is stored.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Bytes that the map may occupy; `None` for what was decided when the store was made.
    pub map_memory: Option<u64>,
    /// Refuse writes, and leave the device as it is.
    pub read_only: bool,
    /// What to do if something is damaged beyond repair.
    pub degraded: Degraded,
    /// Discard freed segments on the device.
    pub trim: bool,
    /// Writes of records under way up to which requests are not gathered any longer.
    pub batch_depth: u32,
    /// Buffers for records, of 1780 KiB each.
    pub record_count: u16,
    /// Requests that are worked on at once; others wait. From 16 to 65,536.
    pub request_count: u32,
    /// What [`Volume::tune`](crate::Volume::tune) changes, changed from the beginning: before the
    /// first request is served and before anything is cleaned.
    pub tuning: Retuning,
    /// Bytes of the cache in which the threads of clients look up what they then read themselves, 16 for each
    /// block; 0 for none. No more is taken than the volume has blocks. Without a file or a disk behind
    /// io_uring there is none.
    pub read_cache: u64,
    /// When writes are answered.
    pub acknowledge: Acknowledge,
    /// Fill flash pages of which only some blocks are dead, too: they are read, and written as a whole. Only for
    /// a store that knows the page size, on a device that says that it writes each page whole or not at all
    /// ([`Properties::atomic_page`](coulter_device::Properties::atomic_page)): elsewhere it is refused.
    pub pad_pages: bool,
}

/// How a volume is to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// What is changed before anything is done.
    pub(crate) tuning: Retuning,
    pub(crate) acknowledge: Acknowledge,
    /// Bytes of the cache with which clients read by themselves; 0 for none.
    pub(crate) read_cache: u64,
}

/// When a write is answered that does not ask for durability itself. A FLUSH promises the same either way,
/// and a crash leaves a prefix of the writes either way. (Discards are always answered from memory.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// When the device has completed it. What was answered and not flushed is lost if the power is cut,
    /// not if the process ends.
    #[default]
    Written,
    /// When it has its place in the log, in memory: sooner, and in larger records. What was answered and
    /// not flushed is lost if the process is killed, too, as with a write-back cache: whoever goes on
    /// using the volume afterwards must have been told. If the device then fails to write it, reads of
    /// those blocks fail as well as every flush; [`Volume::close`](crate::Volume::close) says so.
    Buffered,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        let config = Config::default();
        OpenOptions {
            map_memory: config.map_size,
            read_only: config.read_only,
            degraded: config.degraded,
            trim: config.trim,
            batch_depth: config.batch_depth,
            record_count: config.record_count,
            request_count: config.request_count,
            tuning: Retuning::default(),
            read_cache: READ_CACHE_SIZE,
            acknowledge: Acknowledge::default(),
            pad_pages: config.pad_pages,
        }
    }
}

impl OpenOptions {
    /// What they mean for a store on `device`.
    ///
    /// # Errors
    /// When they make no sense, or not with this device.
    pub(crate) fn settings_for(&self, device: &dyn Device) -> Result<Settings, OpenErrorKind> {
        if device.properties().read_only && !self.read_only {
            return Err(OpenErrorKind::ReadOnlyDevice);
        }
        let least = [
            ("batch_depth", u64::from(self.batch_depth), 1),
            ("record_count", self.record_count.into(), Config::RECORD_COUNT_MIN.into()),
            ("request_count", self.request_count.into(), REQUEST_COUNT_MIN.into()),
        ];
        for (name, value, min) in least {
            if value < min {
                return Err(OpenErrorKind::Option { name, min });
            }
        }
        if self.request_count > REQUEST_COUNT_MAX {
            let (name, max) = ("request_count", REQUEST_COUNT_MAX.into());
            return Err(OpenErrorKind::OptionTooLarge { name, max });
        }
        let config = Config {
            map_size: self.map_memory,
            record_count: self.record_count,
            request_count: self.request_count,
            batch_depth: self.batch_depth,
            trim: self.trim,
            read_only: self.read_only,
            degraded: self.degraded,
            pad_pages: self.pad_pages,
            ..Config::default()
        };
        let OpenOptions { tuning, acknowledge, read_cache, .. } = *self;
        Ok(Settings { config, tuning, acknowledge, read_cache })
    }
}
