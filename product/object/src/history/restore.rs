//! Brings a volume back: into a file, or wherever bytes go.
//!
//! # Contract
//! - What is written is the state after one commit, whole. What no piece covers is not written: the target
//!   must read as zeros there.
//! - Each object is read once, as a whole, and compared with its checksum; not at all if the
//!   target has its bytes from an earlier attempt ([`HalfMade`]).

mod half_made;

pub use half_made::HalfMade;

use crate::bucket::{Bucket, Object};
use crate::history::ReplicaError;
use crate::layout::{Corrupt, Reason, VolumeId, commit::Commit, data};
use crate::names::Source;
use crate::pieces::{Piece, PieceMap};
use crate::publish::{self, Patience};
use crate::side_by_side;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where restored bytes go. Called from several threads at once.
pub trait Sink: Sync {
    /// Stores `bytes` at `offset`.
    ///
    /// # Errors
    /// What the file met.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// True if these pieces of an object, each with its first byte here, are there from an
    /// earlier attempt.
    ///
    /// # Errors
    /// Errors of the file.
    fn holds(&self, _source: Source, _parts: &[(u64, Piece)]) -> io::Result<bool> {
        Ok(false)
    }

    /// Takes note that all of them were written. `payload` is the object's.
    ///
    /// # Errors
    /// Errors of the file.
    fn note(&self, _source: Source, _parts: &[(u64, Piece)], _payload: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for std::fs::File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }
}

impl Sink for Mutex<Vec<u8>> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut memory = self.lock().unwrap_or_else(PoisonError::into_inner);
        let start = offset as usize;
        memory[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Reads an object's payload: its bytes as pieces count them.
///
/// # Errors
/// [`ReplicaError::Missing`], [`ReplicaError::Damaged`], and what the bucket met.
pub fn payload(
    bucket: &dyn Bucket,
    volume: VolumeId,
    source: Source,
    patience: &dyn Patience,
) -> Result<Vec<u8>, ReplicaError> {
    let name = source.name();
    let object = publish::read(bucket, &name, None, patience)?;
    payload_of(bucket, volume, source, object)
}

/// The payload of what was read under an object's name.
pub(crate) fn payload_of(
    bucket: &dyn Bucket,
    volume: VolumeId,
    source: Source,
    object: Option<Object>,
) -> Result<Vec<u8>, ReplicaError> {
    let name = source.name();
    let bytes = object.ok_or_else(|| ReplicaError::Missing(name.clone()))?.bytes;
    let volume = bucket.volume_of(volume, source.epoch());
    let opened = match source {
        Source::Commit(id) => Commit::decode(&bytes, volume, id).map(|_| bytes),
        Source::Data { .. } => data::open(bytes, volume, &name),
    };
    opened.map_err(|corrupt| ReplicaError::Damaged(name, corrupt))
}

/// An object ends before a piece of it does.
pub(crate) fn too_short(source: Source) -> ReplicaError {
    let corrupt = Corrupt { structure: "data", reason: Reason::Short };
    ReplicaError::Damaged(source.name(), corrupt)
}

/// Writes everything that `pieces` hold to `sink`, with `thread_count` requests at once. `progress` is
/// told the bytes written so far.
///
/// # Errors
/// The first [`ReplicaError`]; the target is then incomplete.
pub fn restore(
    bucket: &dyn Bucket,
    volume: VolumeId,
    pieces: &PieceMap,
    sink: &dyn Sink,
    thread_count: usize,
    patience: &(dyn Patience + Sync),
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), ReplicaError> {
    let mut by_source: BTreeMap<Source, Vec<(u64, Piece)>> = BTreeMap::new();
    for (start, piece) in pieces.iter() {
        by_source.entry(piece.source).or_default().push((start, piece));
    }
    let work: Vec<_> = by_source.into_iter().collect();
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    let has_failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let run = || {
        while !has_failed.load(Ordering::Relaxed) {
            let Some((source, parts)) = work.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            match restore_object(bucket, volume, *source, parts, sink, patience) {
                Ok(bytes) => progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes),
                Err(error) => {
                    has_failed.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        }
    };
    side_by_side::share(thread_count.clamp(1, work.len().max(1)), run);
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn restore_object(
    bucket: &dyn Bucket,
    volume: VolumeId,
    source: Source,
    parts: &[(u64, Piece)],
    sink: &dyn Sink,
    patience: &dyn Patience,
) -> Result<u64, ReplicaError> {
    let total = parts.iter().map(|(_, piece)| u64::from(piece.length)).sum();
    if sink.holds(source, parts).map_err(ReplicaError::File)? {
        return Ok(total);
    }
    let bytes = payload(bucket, volume, source, patience)?;
    for (start, piece) in parts {
        let part = piece.part_of(&bytes).ok_or_else(|| too_short(source))?;
        sink.write_at(*start, part).map_err(ReplicaError::File)?;
    }
    sink.note(source, parts, &bytes).map_err(ReplicaError::File)?;
    Ok(total)
}
