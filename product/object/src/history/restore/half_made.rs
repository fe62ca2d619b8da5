//! The file that a restore is making, with notes of what is there, so that the next restore
//! goes on from it.
//!
//! The notes stand in a file of their own: a line with the volume, then a line for each object
//! whose pieces were all written, with a checksum over the pieces.
//!
//! # Invariants
//! - A note alone proves nothing: the pieces are read back and compared. So the notes need no
//!   order on the disk, and a line that was cut off does no harm.
//! - What no piece of the state covers is a hole, whatever an earlier attempt has written there.
//! - The notes are locked, so one process at a time makes the file.

use super::Sink;
use crate::layout::{VolumeId, checksum};
use crate::names::Source;
use crate::pieces::{Piece, PieceMap};
use coulter_system::{private, sparse};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file that is being restored.
#[derive(Debug)]
pub struct HalfMade {
    file: File,
    path: PathBuf,
    notes: File,
    notes_path: PathBuf,
    /// Objects whose pieces were written, by name, with the checksum over them.
    noted: Mutex<BTreeMap<String, u32>>,
}

impl HalfMade {
    /// Makes the file at `path` for a state of `volume`, or goes on with the one that an
    /// earlier attempt has left.
    ///
    /// # Errors
    /// `AlreadyExists` if it is another file, or another process is making it; and errors of
    /// the system.
    pub fn open(path: &Path, volume: VolumeId) -> io::Result<HalfMade> {
        let taken = || io::Error::from(io::ErrorKind::AlreadyExists);
        let mut notes_path = path.as_os_str().to_owned();
        notes_path.push(".notes");
        let notes_path = PathBuf::from(notes_path);
        let mut notes = private::open(&notes_path)?;
        notes.try_lock().map_err(|_| taken())?;
        let mut text = Vec::new();
        notes.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut lines = text.lines();
        let is_of_volume = lines.next() == Some(&volume.to_string());
        let noted = lines.filter_map(parse).collect();
        let (file, noted) = match (path.symlink_metadata().is_ok(), is_of_volume) {
            (true, true) => {
                if !text.ends_with('\n') {
                    writeln!(notes)?;
                }
                (private::open(path)?, noted)
            }
            (true, false) => {
                if text.is_empty() {
                    fs::remove_file(&notes_path)?;
                }
                return Err(taken());
            }
            (false, _) => {
                fs::remove_file(&notes_path)?;
                notes = private::create_new(&notes_path)?;
                notes.try_lock().map_err(|_| taken())?;
                writeln!(notes, "{volume}")?;
                (private::create_new(path)?, BTreeMap::new())
            }
        };
        let path = path.to_owned();
        Ok(HalfMade { file, path, notes, notes_path, noted: Mutex::new(noted) })
    }

    /// Prepares the file for a state of `size` bytes. Returns how many bytes of it are noted as
    /// there.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn prepare(&self, pieces: &PieceMap, size: u64) -> io::Result<u64> {
        let is_new = self.file.metadata()?.len() == 0;
        self.file.set_len(size)?;
        let ends = pieces.iter().map(|(start, piece)| start + u64::from(piece.length));
        let starts = pieces.iter().map(|(start, _)| start).chain([size]);
        for (end, start) in [0].into_iter().chain(ends).zip(starts).filter(|_| !is_new) {
            sparse::clear(&self.file, end..start)?;
        }
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_noted = |piece: &Piece| noted.contains_key(&piece.source.name());
        let pieces = pieces.iter().map(|(_, piece)| piece);
        Ok(pieces.filter(is_noted).map(|piece| u64::from(piece.length)).sum())
    }

    /// True if no object is noted as there.
    pub fn is_empty(&self) -> bool {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Removes the notes: the file is whole.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn finish(self) -> io::Result<()> {
        fs::remove_file(&self.notes_path)
    }

    /// Removes the file and the notes. What cannot be removed stays.
    pub fn discard(self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.notes_path);
    }
}

impl Sink for HalfMade {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn holds(&self, source: Source, parts: &[(u64, Piece)]) -> io::Result<bool> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(noted) = noted.get(&source.name()).copied() else { return Ok(false) };
        let mut sums = Vec::with_capacity(parts.len());
        for (start, piece) in parts {
            let mut bytes = vec![0; piece.length as usize];
            self.file.read_exact_at(&mut bytes, *start)?;
            sums.push(checksum(&bytes));
        }
        Ok(digest(parts, &sums) == noted)
    }

    fn note(&self, source: Source, parts: &[(u64, Piece)], payload: &[u8]) -> io::Result<()> {
        let part = |piece: &Piece| piece.part_of(payload).expect("it was written");
        let sums: Vec<u32> = parts.iter().map(|(_, piece)| checksum(part(piece))).collect();
        let (name, digest) = (source.name(), digest(parts, &sums));
        (&self.notes).write_all(format!("{name} {digest:08x}\n").as_bytes())?;
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).insert(name, digest);
        Ok(())
    }
}

/// A checksum over pieces, their checksums, and where they are.
fn digest(parts: &[(u64, Piece)], sums: &[u32]) -> u32 {
    let mut bytes = Vec::new();
    for ((start, piece), sum) in parts.iter().zip(sums) {
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend([piece.offset, piece.length, *sum].into_iter().flat_map(u32::to_le_bytes));
    }
    checksum(&bytes)
}

fn parse(line: &str) -> Option<(String, u32)> {
    let (name, digest) = line.split_once(' ')?;
    Some((name.to_owned(), u32::from_str_radix(digest, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId([7; 16]);

    fn piece(number: u64, length: u32) -> Piece {
        Piece { length, source: Source::Data { epoch: 1, number }, offset: 0 }
    }

    #[test]
    fn what_is_noted_counts_if_it_is_there_and_what_no_piece_covers_is_zeros() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.img.part");
        let (one, two) = ([(0, piece(1, 8192))], [(8192, piece(2, 8192))]);
        let open = || HalfMade::open(&path, VOLUME).expect("it is ours");
        let source = |parts: &[(u64, Piece)]| parts[0].1.source;
        let first = open();
        assert!(HalfMade::open(&path, VOLUME).is_err(), "one process at a time");
        for parts in [&one, &two] {
            first.write_at(parts[0].0, &[5; 8192]).expect("there is room");
            first.note(source(parts), parts, &[5; 8192]).expect("there is room");
        }
        drop(first);

        let other = VolumeId([8; 16]);
        assert!(HalfMade::open(&path, other).is_err(), "another volume's");
        let second = open();
        assert!(second.holds(source(&one), &one).expect("it is readable"));
        // Its bytes did not reach the disk.
        second.write_at(9000, &[0]).expect("there is room");
        assert!(!second.holds(source(&two), &two).expect("it is readable"));
        // Another state has its piece elsewhere.
        assert!(!second.holds(source(&one), &[(4096, one[0].1)]).expect("it is readable"));
        let mut pieces = PieceMap::new();
        pieces.place(0, one[0].1);
        assert_eq!(second.prepare(&pieces, 1 << 20).expect("there is room"), 8192);
        let bytes = fs::read(&path).expect("it is there");
        assert_eq!(bytes.len(), 1 << 20);
        assert!(bytes[..8192].iter().all(|byte| *byte == 5), "a piece stays");
        assert!(bytes[8192..].iter().all(|byte| *byte == 0), "and nothing else");

        second.discard();
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        fs::write(&path, "a stranger's").expect("there is room");
        assert!(HalfMade::open(&path, VOLUME).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
