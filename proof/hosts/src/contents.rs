//! The content of a copy, as cells.

use crate::oracle::Cells;
use crate::plan::CELL_COUNT;
use crate::service::{Once, Persistent, Truth};
use coulter_object::ReplicaError;
use coulter_object::bucket::Bucket;
use coulter_object::history::restore::restore;
use coulter_object::history::takeover::Claim;
use coulter_object::layout::VolumeId;
use coulter_object::pieces::PieceMap;
use coulter_object::publish;
use std::sync::{Mutex, PoisonError};

/// Bytes of a cell.
pub(crate) const CELL_SIZE: u64 = 8;
/// Bytes of the device.
pub(crate) const DEVICE_SIZE: u64 = CELL_SIZE * CELL_COUNT as u64;

/// Writes what pieces hold into cells.
pub(crate) fn fill(
    bucket: &dyn Bucket,
    claim: &Claim,
    pieces: &PieceMap,
    cells: &mut Cells,
    patience: &Persistent,
) -> Result<(), ReplicaError> {
    let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_le_bytes()).collect();
    let memory = Mutex::new(bytes);
    read_objects(bucket, claim.record.volume, pieces, &memory, patience)?;
    *cells = cells_of(&memory.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(())
}

/// Restores on this very thread, for it is this one's turn.
fn read_objects(
    bucket: &dyn Bucket,
    volume: VolumeId,
    pieces: &PieceMap,
    memory: &Mutex<Vec<u8>>,
    patience: &(dyn publish::Patience + Sync),
) -> Result<(), ReplicaError> {
    restore(bucket, volume, pieces, memory, 1, patience, &|_| {})
}

fn cells_of(bytes: &[u8]) -> Cells {
    let mut cells = Cells::default();
    for (cell, bytes) in cells.iter_mut().zip(bytes.chunks_exact(CELL_SIZE as usize)) {
        *cell = u64::from_le_bytes(bytes.try_into().expect("a cell has eight bytes"));
    }
    cells
}

pub(crate) fn contents(
    truth: &Truth,
    volume: VolumeId,
    pieces: &PieceMap,
) -> Result<Cells, ReplicaError> {
    let memory = Mutex::new(vec![0; DEVICE_SIZE as usize]);
    read_objects(truth, volume, pieces, &memory, &Once)?;
    Ok(cells_of(&memory.into_inner().unwrap_or_else(PoisonError::into_inner)))
}
