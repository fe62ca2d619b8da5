//! Letting a store take in more of its device.

use crate::close_error::CloseError;
use crate::geometry::Geometry;
use crate::local::LocalVolume;
use crate::open_error::OpenError;
use crate::open_options::OpenOptions;
use coulter_device::Device;
use coulter_engine::grow::Growth;
use coulter_format::BLOCK_SIZE;

/// What a store should be like afterwards.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrowOptions {
    /// Bytes that the volume offers, rounded down to 4096; `None` for as many as the spare leaves.
    pub volume_size: Option<u64>,
    /// Space kept free for cleaning in percent of the volume, when `volume_size` is `None`; `None` for the
    /// share that it has now.
    pub spare_percent: Option<u32>,
}

/// Why a store did not grow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// It cannot be opened, or not grow as it should; it is as it was.
    #[error("{}", .0.kind)]
    Open(#[source] OpenError),
    /// It could not be closed in order. Whether it has grown shows when it is opened.
    #[error("{0}")]
    Close(#[source] CloseError),
}

/// Lets the store on `device` take in all of it. What is stored stays, and stays where it is. A power
/// cut leaves the store as it was or as it should be.
///
/// # Errors
/// [`GrowError`], for one when the device or the volume would be smaller than before.
pub fn grow(device: Box<dyn Device>, options: &GrowOptions) -> Result<Geometry, GrowError> {
    let growth = Growth {
        volume_size: options.volume_size.map(|size| size / BLOCK_SIZE as u64),
        spare_percent: options.spare_percent,
    };
    let volume = LocalVolume::open_growing(device, OpenOptions::default(), growth);
    let volume = volume.map_err(GrowError::Open)?;
    let geometry = volume.geometry().clone();
    volume.close().map_err(GrowError::Close)?;
    Ok(geometry)
}
