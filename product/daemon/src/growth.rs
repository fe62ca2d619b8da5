//! A volume that grows while hosts use it: their requests wait while its store is closed, grown and
//! opened again.
//!
//! ```text
//! point.hand_over()   what hosts had asked for is done; from here on their requests wait
//! store closed        durable, unlocked
//! grown               as `coulter grow` does with a store that is not attached
//! opened, resumed     the attach point tells hosts the new size; the command is answered
//! ```
//! If it cannot grow, it is opened as it was, and the command is told why.

use crate::copy::replication;
use crate::error::{Error, OpenError};
use coulter::{GrowError, GrowOptions, OpenErrorKind};
use coulter_device::Device;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What it is to be like, as a command asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Bytes of the volume; `None` for what the spare leaves.
    pub volume_size: Option<u64>,
    /// Spare space in percent of the volume; `None` for its share now.
    pub spare_percent: Option<u32>,
}

/// What it is then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grown {
    /// Bytes of the store.
    pub store_size_bytes: u64,
    /// Bytes of the volume.
    pub volume_size_bytes: u64,
    /// Segments of the store.
    pub segments_total: u64,
    /// Bytes of map memory that opening may need.
    pub map_memory_bytes: u64,
}

/// Lets the store on `device`, which is the one at `path`, grow over all of its file or disk.
///
/// # Errors
/// [`OpenError::NotGrown`]; the store is as it was, or as it should be.
pub(crate) fn grow(path: &Path, device: Box<dyn Device>, growth: Growth) -> Result<Grown, Error> {
    let Growth { volume_size, spare_percent } = growth;
    // What it writes is shipped when the store is opened again.
    let device = replication::marking(path, device)?;
    let device_size = device.properties().size;
    let grown = coulter::grow(device, &GrowOptions { volume_size, spare_percent });
    let geometry = grown.map_err(|error| {
        let is_usage = matches!(&error, GrowError::Open(error)
            if matches!(error.kind, OpenErrorKind::Growth { .. }));
        OpenError::NotGrown { path: path.to_owned(), reason: error.to_string(), is_usage }
    })?;
    assert!(geometry.store_size_bytes <= device_size, "a store larger than what it lies on");
    Ok(Grown {
        store_size_bytes: geometry.store_size_bytes,
        volume_size_bytes: geometry.volume_size_bytes,
        segments_total: geometry.segment_count,
        map_memory_bytes: geometry.map_memory_min_bytes,
    })
}
