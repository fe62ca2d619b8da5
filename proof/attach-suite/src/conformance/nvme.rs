//! The harness of the NVMe target, and the disk behind our own initiator.

use super::{Harness, Host, Traits};
use crate::initiator::{Initiator, InitiatorOptions};
use coulter::buffer::Buffer;
use coulter::service::{BlockService, Completion, Operation, REQUEST_SIZE_MAX, Request, Session};
use coulter_attach::point::AttachPoint;
use coulter_net::Address;
use coulter_nvme::tcp::Digests;
use coulter_nvme_target::{Disk, Target, TargetOptions, subsystem_name};
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Requests of a user that is about to die.
const DOOMED_REQUESTS: u64 = 16;
/// Blocks of the longest discard and write-zeroes in one command.
const DISCARD_BLOCKS_MAX: u64 = 1 << 21;
const ZEROES_BLOCKS_MAX: u64 = 1 << 16;

/// A disk behind an NVMe initiator.
pub struct NvmeHost(pub Initiator);

impl NvmeHost {
    /// # Errors
    /// As the target says.
    pub fn run(
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
        completion.result?;
        Ok(completion.buffer)
    }

    /// Runs an operation without data in pieces of so many blocks.
    fn run_in_pieces(
        &mut self,
        operation: Operation,
        mut offset: u64,
        length: u64,
        blocks_max: u64,
    ) -> io::Result<()> {
        let (end, step) = (offset + length, blocks_max << self.0.namespace().block_size_log);
        while offset < end {
            let piece = step.min(end - offset);
            self.run(operation, offset, piece, Buffer::empty())?;
            offset += piece;
        }
        Ok(())
    }
}

impl Host for NvmeHost {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&mut self, mut offset: u64, out: &mut [u8]) -> io::Result<()> {
        for piece in out.chunks_mut(self.0.transfer_size_max() as usize) {
            let length = piece.len() as u64;
            let buffer = self.run(Operation::Read, offset, length, Buffer::zeroed(piece.len()))?;
            piece.copy_from_slice(&buffer);
            offset += length;
        }
        Ok(())
    }

    fn write(&mut self, mut offset: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        for piece in bytes.chunks(self.0.transfer_size_max() as usize) {
            let operation = Operation::Write { fua: durable };
            let length = piece.len() as u64;
            self.run(operation, offset, length, Buffer::copied_from(piece))?;
            offset += length;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.run(Operation::Flush, 0, 0, Buffer::empty()).map(drop)
    }

    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.run_in_pieces(Operation::Discard, offset, length, DISCARD_BLOCKS_MAX)
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let operation = Operation::WriteZeroes { fua: false };
        self.run_in_pieces(operation, offset, length, ZEROES_BLOCKS_MAX)
    }
}

/// An NVMe target, reached by our own initiator.
pub struct NvmeHarness {
    block_size: u32,
    digests: Digests,
    own_kernel: bool,
    /// Each user is another host.
    next_host: AtomicU8,
    /// Of the last target.
    served: Mutex<Option<(Address, String)>>,
}

impl NvmeHarness {
    /// With blocks of this size, with or without digests, and with memory from the start or as it is
    /// needed.
    pub fn new(block_size: u32, with_digests: bool, own_kernel: bool) -> NvmeHarness {
        let digests = Digests { header: with_digests, data: with_digests };
        let (next_host, served) = (AtomicU8::new(1), Mutex::default());
        NvmeHarness { block_size, digests, own_kernel, next_host, served }
    }

    fn initiator(&self) -> io::Result<Initiator> {
        let served = self.served.lock().map_err(|_| io::ErrorKind::Other)?.clone();
        let (address, name) = served.ok_or(io::ErrorKind::NotConnected)?;
        let host = self.next_host.fetch_add(1, Ordering::SeqCst);
        let options = InitiatorOptions {
            digests: self.digests,
            flow_control_disabled: host.is_multiple_of(2),
            ..InitiatorOptions::new(name, host)
        };
        Initiator::connect(&address, &options).map_err(io::Error::other)
    }
}

impl Harness for NvmeHarness {
    fn name(&self) -> &'static str {
        match (self.block_size, self.digests.data, self.own_kernel) {
            (512, false, _) => "nvme, 512",
            (512, true, _) => "nvme, 512, digests",
            (_, false, false) => "nvme",
            (_, false, true) => "nvme, memory from the start",
            (_, true, _) => "nvme, digests",
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            granularity: self.block_size.into(),
            request_size_max: REQUEST_SIZE_MAX as usize,
            write_beyond: libc::EINVAL,
            read_beyond: Some(libc::EINVAL),
            read_only: Some(libc::EROFS),
            poisoned: libc::EROFS,
            closed: libc::ESHUTDOWN,
        }
    }

    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        let address = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
        let name = subsystem_name(&service.describe().identity);
        let disk = Disk { service, read_only, block_size: self.block_size };
        let options = TargetOptions { own_kernel: self.own_kernel, ..TargetOptions::default() };
        let target = Target::start(&address, vec![disk], options).expect("the target starts");
        let mut served = self.served.lock().expect("no case has panicked");
        *served = Some((target.address().clone(), name));
        Box::new(target)
    }

    fn connect(&self, _: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        Ok(Box::new(NvmeHost(self.initiator()?)))
    }

    fn die_in_mid_request(&self, _: &dyn AttachPoint) {
        let mut initiator = self.initiator().expect("a user can connect");
        for tag in 0..DOOMED_REQUESTS {
            let offset = tag * 65536;
            let buffer = Buffer::zeroed(65536);
            let fua = tag.is_multiple_of(2);
            let operation = if fua { Operation::Write { fua } } else { Operation::Read };
            initiator.submit(Request { tag, operation, offset, length: 65536, buffer });
        }
        // Writes wait for the target to ask for their data, which nobody sends.
        initiator.kick();
    }

    fn assert_nothing_left(&self) {
        assert!(self.initiator().is_err(), "somebody still listens");
    }
}
