//! Where blocks come from: a file, a disk, bytes in memory, or a closure.

use coulter_format::{BLOCK_SIZE, Block, Pba};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Why blocks could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The device ends before the last of them.
    PastEnd,
    /// The device said no.
    Io(io::Error),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReadError::PastEnd => f.write_str("the device ends before it"),
            ReadError::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::PastEnd => None,
            ReadError::Io(error) => Some(error),
        }
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ReadError::PastEnd,
            _ => ReadError::Io(error),
        }
    }
}

/// Something that holds blocks, as much of a device as reading needs.
pub trait ReadBlocks {
    /// Whole blocks on the device.
    fn size_blocks(&self) -> u64;

    /// Fills `blocks` with the content from `pba` on.
    ///
    /// # Errors
    /// [`ReadError`] if any of them cannot be read; `blocks` then holds unspecified bytes.
    fn read(&mut self, pba: Pba, blocks: &mut [Block]) -> Result<(), ReadError>;
}

impl<R: ReadBlocks + ?Sized> ReadBlocks for &mut R {
    fn size_blocks(&self) -> u64 {
        (**self).size_blocks()
    }

    fn read(&mut self, pba: Pba, blocks: &mut [Block]) -> Result<(), ReadError> {
        (**self).read(pba, blocks)
    }
}

/// A store in a regular file or on a block device.
#[derive(Debug)]
pub struct FileBlocks {
    file: File,
    size_blocks: u64,
}

impl FileBlocks {
    /// Opens a path for reading only.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(path: &Path) -> io::Result<FileBlocks> {
        FileBlocks::new(File::open(path)?)
    }

    /// Takes a file that is open for reading.
    ///
    /// # Errors
    /// When its size cannot be found out.
    pub fn new(mut file: File) -> io::Result<FileBlocks> {
        // A block device has no length in its metadata; its end can be sought.
        let size = file.seek(SeekFrom::End(0))?;
        Ok(FileBlocks { file, size_blocks: size / BLOCK_SIZE as u64 })
    }
}

impl ReadBlocks for FileBlocks {
    fn size_blocks(&self) -> u64 {
        self.size_blocks
    }

    fn read(&mut self, pba: Pba, blocks: &mut [Block]) -> Result<(), ReadError> {
        Ok(self.file.read_exact_at(blocks.as_flattened_mut(), pba.byte_offset())?)
    }
}

/// A store in memory.
#[derive(Clone, Copy, Debug)]
pub struct SliceBlocks<'a>(pub &'a [u8]);

impl ReadBlocks for SliceBlocks<'_> {
    fn size_blocks(&self) -> u64 {
        (self.0.len() / BLOCK_SIZE) as u64
    }

    fn read(&mut self, pba: Pba, blocks: &mut [Block]) -> Result<(), ReadError> {
        let bytes = blocks.as_flattened_mut();
        let start = usize::try_from(pba.byte_offset()).map_err(|_| ReadError::PastEnd)?;
        let end = start.checked_add(bytes.len()).ok_or(ReadError::PastEnd)?;
        bytes.copy_from_slice(self.0.get(start..end).ok_or(ReadError::PastEnd)?);
        Ok(())
    }
}

/// A store that a closure reads block by block, such as a simulator's sparse image. Only the blocks
/// that are asked for are copied.
#[derive(Clone, Copy, Debug)]
pub struct BlockFn<F> {
    /// Blocks on the device.
    pub size_blocks: u64,
    /// Fills a block with the content of an address below `size_blocks`.
    pub read: F,
}

impl<F: FnMut(Pba, &mut Block) -> Result<(), ReadError>> ReadBlocks for BlockFn<F> {
    fn size_blocks(&self) -> u64 {
        self.size_blocks
    }

    fn read(&mut self, pba: Pba, blocks: &mut [Block]) -> Result<(), ReadError> {
        for (offset, block) in (0u32..).zip(blocks) {
            let pba = pba.plus(offset);
            if u64::from(pba.0) >= self.size_blocks {
                return Err(ReadError::PastEnd);
            }
            (self.read)(pba, block)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_and_a_closure_end_where_the_device_ends() {
        let bytes = vec![7u8; 3 * BLOCK_SIZE + 100];
        let mut slice = SliceBlocks(&bytes);
        let mut closure = BlockFn {
            size_blocks: 3,
            read: |_, block: &mut Block| {
                block.fill(7);
                Ok(())
            },
        };
        let mut blocks = [[0; BLOCK_SIZE]; 2];
        for source in [&mut slice as &mut dyn ReadBlocks, &mut closure] {
            assert_eq!(source.size_blocks(), 3);
            assert!(source.read(Pba(1), &mut blocks).is_ok());
            assert_eq!(blocks[1], [7; BLOCK_SIZE]);
            assert!(matches!(source.read(Pba(2), &mut blocks), Err(ReadError::PastEnd)));
            assert!(matches!(source.read(Pba(u32::MAX), &mut blocks), Err(ReadError::PastEnd)));
        }
    }

    #[test]
    fn a_file_is_read_at_its_offsets_and_a_short_one_is_past_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = vec![1u8; BLOCK_SIZE];
        bytes.extend([2u8; BLOCK_SIZE]);
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let mut source = FileBlocks::new(file).unwrap();
        let mut blocks = [[0; BLOCK_SIZE]; 1];
        assert_eq!(source.size_blocks(), 2);
        source.read(Pba(1), &mut blocks).unwrap();
        assert_eq!(blocks[0], [2; BLOCK_SIZE]);
        assert!(matches!(source.read(Pba(2), &mut blocks), Err(ReadError::PastEnd)));
    }
}
