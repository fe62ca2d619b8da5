//! How a store is opened.

pub use crate::acknowledge::Acknowledge;
use crate::copy::replication::Replication;
use crate::setting::{self, Setting};
use coulter::Degraded;
use coulter::tuning::Retuning;
use std::net::SocketAddr;

/// How to open a store. None of it changes what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Name of the volume; `None` for one made from the file name.
    pub name: Option<String>,
    /// Most bytes of memory that the map may take; `None` for what was decided at creation.
    pub map_memory: Option<u64>,
    /// Bytes of memory with which the threads of clients read by themselves; `None` for the
    /// default.
    pub read_cache: Option<u64>,
    /// How commands get to the drive.
    pub device: DeviceChoice,
    /// Whether to discard segments that were freed.
    pub trim: Trim,
    /// When to answer writes that ask for nothing more.
    pub acknowledge: Acknowledge,
    /// Whether to refuse writes, and leave the store as it is.
    pub read_only: bool,
    /// What to do if something is damaged beyond repair.
    pub degraded: Degraded,
    /// Whether to fill partly dead flash pages, where the device allows that.
    pub pad_pages: bool,
    /// Settings to begin with.
    pub tune: Vec<Setting>,
    /// Where to offer metrics, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Where to keep a copy, if anywhere.
    pub replicate: Option<Replication>,
}

/// How commands get to the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Through the kernel's block layer.
    #[default]
    Auto,
    /// As NVMe commands of our own, where kernel and drive allow that; else as `Auto`, and the
    /// reason is told.
    NvmePassthrough,
}

impl DeviceChoice {
    /// Each by its name.
    pub const NAMED: [(&str, DeviceChoice); 2] =
        [("auto", DeviceChoice::Auto), ("nvme-passthrough", DeviceChoice::NvmePassthrough)];
}

/// When to discard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trim {
    /// On disks, not in files.
    #[default]
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

impl Trim {
    /// Each by its name.
    pub const NAMED: [(&str, Trim); 3] =
        [("auto", Trim::Auto), ("yes", Trim::Yes), ("no", Trim::No)];
}

impl Opening {
    /// From now on the store goes on where it was: what was asked for the first opening alone is
    /// done.
    pub fn has_begun(&mut self) {
        if let Some(replication) = &mut self.replicate {
            replication.reseed = false;
            if let Some(caching) = &mut replication.cache {
                caching.take_over = false;
            }
        }
    }

    /// What is changed from the beginning.
    pub fn tuning(&self) -> Retuning {
        setting::retuning(&self.tune).expect("settings are checked when they are read")
    }
}
