//! Hosts: a disk through our own NBD client, and a disk through a path.

use super::Host;
use crate::nbd_client::Client;
use coulter::buffer::Buffer;
use coulter::service::{Completion, Operation, Request, Session};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom, fallocate, fstat, seek};
use rustix::io::ReadWriteFlags;
use rustix::ioctl::{Opcode, Setter, ioctl};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;

const BLKDISCARD: Opcode = 0x1277;
const BLKZEROOUT: Opcode = 0x127f;

/// A disk behind an NBD client.
pub struct NbdHost(pub Client);

impl NbdHost {
    fn run(
        &mut self,
        operation: Operation,
        offset: u64,
        length: u64,
        buffer: Buffer,
    ) -> io::Result<Buffer> {
        self.0.submit(Request { tag: 7, operation, offset, length, buffer });
        self.0.kick();
        let mut completions: Vec<Completion> = Vec::new();
        self.0.complete(&mut completions, None);
        assert_eq!(completions.len(), 1, "one request has one completion");
        let completion = completions.remove(0);
        assert_eq!(completion.tag, 7, "it is the completion of this request");
        match completion.result {
            Ok(()) => Ok(completion.buffer),
            Err(error) => Err(io::Error::from_raw_os_error(error.errno())),
        }
    }
}

impl Host for NbdHost {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let length = out.len();
        let buffer = self.run(Operation::Read, offset, length as u64, Buffer::zeroed(length))?;
        out.copy_from_slice(&buffer);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let operation = Operation::Write { fua: durable };
        self.run(operation, offset, bytes.len() as u64, Buffer::copied_from(bytes)).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.run(Operation::Flush, 0, 0, Buffer::empty()).map(drop)
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.run(Operation::Discard, offset, length, Buffer::empty()).map(drop)
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.run(Operation::WriteZeroes { fua: false }, offset, length, Buffer::empty()).map(drop)
    }
}

/// A file or block device, past the page cache.
pub struct PathHost {
    file: OwnedFd,
    size: u64,
    is_block_device: bool,
}

impl PathHost {
    /// Opens what lies at `path`, to be written if that is allowed.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(path: &Path) -> io::Result<PathHost> {
        let open = |access| {
            rustix::fs::open(path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())
        };
        let file = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY))?;
        let is_block_device =
            FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::BlockDevice;
        let size = seek(&file, SeekFrom::End(0))?;
        Ok(PathHost { file, size, is_block_device })
    }

    fn range_call<const OPCODE: Opcode>(&self, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: BLKDISCARD and BLKZEROOUT, the only opcodes used, read two 64-bit numbers.
        unsafe { ioctl(&self.file, Setter::<OPCODE, [u64; 2]>::new([offset, length])) }?;
        Ok(())
    }
}

impl Host for PathHost {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, mut offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            let mut buffer = Buffer::zeroed(out.len() - filled);
            let slices = &mut [IoSliceMut::new(&mut buffer)];
            let count = rustix::io::preadv(&self.file, slices, offset)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out[filled..filled + count].copy_from_slice(&buffer[..count]);
            filled += count;
            offset += count as u64;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let mut written = 0;
        while written < bytes.len() {
            let buffer = Buffer::copied_from(&bytes[written..]);
            let slices = &[IoSlice::new(&buffer)];
            written += rustix::io::pwritev2(&self.file, slices, offset + written as u64, flags)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.file)?)
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        if self.is_block_device {
            return self.range_call::<BLKDISCARD>(offset, length);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, length)?)
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> io::Result<()> {
        if self.is_block_device {
            return self.range_call::<BLKZEROOUT>(offset, length);
        }
        Ok(fallocate(&self.file, FallocateFlags::ZERO_RANGE, offset, length)?)
    }
}
