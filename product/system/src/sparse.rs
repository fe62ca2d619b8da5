//! Which parts of a file hold anything. Holes cost nothing: the file system knows of them, and what
//! it does not tell is read.
//!
//! Does not know what the bytes mean; `signatures` does.

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes read at once.
const PIECE_SIZE: u64 = 1 << 20;

/// Bytes looked at together. All are looked at, which is faster than to stop at the first.
const STRIDE: usize = 4096;

/// What a file was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing but zeros.
    Zeros,
    /// Something; the first byte of it.
    From(u64),
    /// Zeros as far as was read, which is as far as was allowed.
    ZerosSoFar,
}

/// What the first `size` bytes of `file` hold. Of what may be data, `read_max` bytes are read at
/// most.
///
/// # Errors
/// When it cannot be read.
pub fn content(file: &File, size: u64, read_max: u64) -> io::Result<Content> {
    let mut piece = vec![0; PIECE_SIZE as usize];
    let (mut at, mut left) = (0, read_max);
    while let Some(run) = next_data(file, at, size)? {
        at = run.start;
        while at < run.end {
            if left == 0 {
                return Ok(Content::ZerosSoFar);
            }
            let length = PIECE_SIZE.min(run.end - at).min(left);
            let bytes = &mut piece[..length as usize];
            file.read_exact_at(bytes, at)?;
            if let Some(index) = first_not_zero(bytes) {
                return Ok(Content::From(at + index as u64));
            }
            (at, left) = (at + length, left - length);
        }
    }
    Ok(Content::Zeros)
}

/// The first run of bytes from `from` on that may hold data, among the first `size`.
///
/// # Errors
/// When the file system cannot say for another reason than that it never does.
pub fn next_data(file: &File, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if from >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(from..size)),
        Err(errno) => return Err(errno.into()),
    };
    if start >= size {
        return Ok(None);
    }
    let end = seek(file, SeekFrom::Hole(start))?;
    // A hole where there was data a moment ago: somebody is punching.
    let end = if end > start { end.min(size) } else { size };
    Ok(Some(start..end))
}

/// Gives back the room that is reserved in the first `size` bytes of `file` and holds nothing.
///
/// # Errors
/// When the file system cannot do that.
pub fn punch_holes(file: &File, size: u64) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let data = next_data(file, at, size)?.unwrap_or(size..size);
        if data.start > at {
            punch(file, &(at..data.start))?;
        }
        at = data.end;
    }
    Ok(())
}

/// Makes `range` read as zeros, by a hole if the file system can.
///
/// # Errors
/// Errors of the file system.
pub fn clear(file: &File, range: Range<u64>) -> io::Result<()> {
    let mut at = range.start;
    while let Some(data) = next_data(file, at, range.end)? {
        at = data.end;
        match punch(file, &data) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; PIECE_SIZE as usize];
                for from in data.clone().step_by(PIECE_SIZE as usize) {
                    let length = PIECE_SIZE.min(data.end - from) as usize;
                    file.write_all_at(&zeros[..length], from)?;
                }
            }
            punched => punched?,
        }
    }
    Ok(())
}

fn punch(file: &File, range: &Range<u64>) -> rustix::io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, mode, range.start, range.end - range.start)
}

fn first_not_zero(bytes: &[u8]) -> Option<usize> {
    let is_zero = |stride: &[u8]| stride.iter().fold(0, |all, byte| all | byte) == 0;
    let stride = bytes.chunks(STRIDE).position(|stride| !is_zero(stride))?;
    let start = stride * STRIDE;
    bytes[start..].iter().position(|byte| *byte != 0).map(|index| start + index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const MIB: u64 = 1 << 20;

    fn file_of(size: u64) -> File {
        let file = tempfile::tempfile_in("/var/tmp").expect("a temporary file can be made");
        file.set_len(size).expect("it can be extended");
        file
    }

    #[test]
    fn a_byte_is_found_wherever_it_is() {
        for at in [0, 4095, 4096, 5 * MIB + 7, 1 << 39, (1 << 40) - 1] {
            let file = file_of(1 << 40);
            assert_eq!(content(&file, 1 << 40, 16 * MIB).expect("readable"), Content::Zeros);
            file.write_all_at(b"x", at).expect("it is writable");
            assert_eq!(content(&file, 1 << 40, 16 * MIB).expect("readable"), Content::From(at));
            assert_eq!(content(&file, at, 16 * MIB).expect("readable"), Content::Zeros);
        }
    }

    #[test]
    fn zeros_that_were_written_are_read_as_far_as_is_allowed() {
        let file = file_of(8 * MIB);
        file.write_all_at(&vec![0; 4 * MIB as usize], MIB).expect("it is writable");
        file.write_all_at(b"x", 6 * MIB).expect("it is writable");
        let of = |read_max| content(&file, 8 * MIB, read_max).expect("it is readable");
        assert_eq!(of(MIB), Content::ZerosSoFar);
        assert_eq!(of(8 * MIB), Content::From(6 * MIB));
    }

    #[test]
    fn only_room_without_data_is_given_back() {
        let file = file_of(8 * MIB);
        file.write_all_at(b"x", 3 * MIB).expect("it is writable");
        let reserved = fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB);
        reserved.expect("there is room");
        let room = || file.metadata().expect("it is there").blocks() * 512;
        assert!(room() >= 8 * MIB);
        punch_holes(&file, 8 * MIB).expect("the file system can");
        assert!(room() < MIB, "{}", room());
        assert_eq!(content(&file, 8 * MIB, MIB).expect("readable"), Content::From(3 * MIB));
    }
}
