//! What a trace changes, in 16 bytes a request: in memory while it is short, else in a temporary
//! file without a name. So a trace is parsed once, however often it is replayed, and may come
//! through a pipe.

use super::footprint::Place;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use tempfile::SpooledTempFile;

/// Bytes kept in memory.
const MEMORY_MAX: usize = 64 << 20;

const BUFFER_SIZE: usize = 1 << 18;

/// Bytes of a change.
const CHANGE_SIZE: u64 = 16;

/// Changes in a window.
pub(super) const WINDOW: u64 = 64;

/// The highest bit of the count tells a discard from a write.
const DISCARD: u64 = 1 << 63;

/// Blocks that are written or discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) place: Place,
    pub(super) count: u64,
    pub(super) discard: bool,
}

/// Takes changes.
pub(super) struct Spooling {
    file: BufWriter<SpooledTempFile>,
    count: u64,
}

impl Spooling {
    pub(super) fn new() -> Spooling {
        let file = tempfile::spooled_tempfile(MEMORY_MAX);
        Spooling { file: BufWriter::with_capacity(BUFFER_SIZE, file), count: 0 }
    }

    pub(super) fn push(&mut self, change: Change) -> io::Result<()> {
        assert!(change.count < DISCARD, "the highest bit is taken");
        let count = change.count | if change.discard { DISCARD } else { 0 };
        self.count += 1;
        self.file.write_all(&change.place.bits().to_le_bytes())?;
        self.file.write_all(&count.to_le_bytes())
    }

    pub(super) fn finish(self) -> io::Result<Spool> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Spool { file, count: self.count })
    }
}

/// Gives changes out, as often as is wanted, a window of neighbours at a time.
pub(super) struct Spool {
    file: SpooledTempFile,
    count: u64,
}

impl Spool {
    /// How many windows there are.
    pub(super) fn windows(&self) -> u64 {
        self.count.div_ceil(WINDOW)
    }

    /// Reads the changes of a window.
    pub(super) fn read(&mut self, window: u64, changes: &mut Vec<Change>) -> io::Result<()> {
        let first = window * WINDOW;
        let count = WINDOW.min(self.count - first) as usize;
        let mut bytes = [[0; 8]; 2 * WINDOW as usize];
        self.file.seek(SeekFrom::Start(first * CHANGE_SIZE))?;
        self.file.read_exact(bytes[..2 * count].as_flattened_mut())?;
        changes.clear();
        changes.extend(bytes[..2 * count].chunks_exact(2).map(|pair| {
            let [place, count] = [pair[0], pair[1]].map(u64::from_le_bytes);
            let place = Place::from_bits(place);
            Change { place, count: count & !DISCARD, discard: count & DISCARD != 0 }
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_as_often_as_they_are_asked_for() {
        let changes: Vec<_> = (0..10_007u64)
            .map(|n| Change {
                place: Place::new((n % 7) as u16, n * 31),
                count: 1 + n % 300,
                discard: n % 5 == 0,
            })
            .collect();
        let mut spooling = Spooling::new();
        changes.iter().for_each(|change| spooling.push(*change).expect("memory takes it"));
        let mut spool = spooling.finish().expect("memory takes it");
        for _ in 0..2 {
            let (mut seen, mut window) = (Vec::new(), Vec::new());
            for number in 0..spool.windows() {
                spool.read(number, &mut window).expect("memory can be read");
                seen.extend_from_slice(&window);
            }
            assert!(seen == changes);
        }
        let mut window = Vec::new();
        spool.read(100, &mut window).expect("memory can be read");
        assert_eq!(window, changes[100 * WINDOW as usize..][..WINDOW as usize]);
    }
}
