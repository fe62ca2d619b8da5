//! Opening an overlay: the directory below, and the store on the volume.

use super::message::SETTLE_IOCTL;
use super::mount::MountError;
use coulter::buffer::Buffer;
use coulter::service::{BLOCK_SIZE, BlockService, Completion, Operation, Request, Session};
use coulter_format::Block;
use coulter_overlay::{Blocks, Directory, Options, Overlay};
use coulter_overlay::{REMAP_ATTRIBUTE, Remap, STATUS_ATTRIBUTE};
use coulter_system::mounts;
use rustix::fs::{Mode, OFlags, XattrFlags};
use std::io;
use std::path::Path;

/// Bytes of what an overlay tells of itself at most.
const REPORT_SIZE_MAX: usize = 64 << 10;

/// The overlay over `directory`, ready to be served.
pub(super) fn open(
    service: &dyn BlockService,
    directory: &Path,
    options: Options,
) -> Result<Overlay<Directory>, MountError> {
    let mount_point = directory.to_owned();
    if let Some(below) = mounts::first_below(directory).ok().flatten() {
        return Err(MountError::MountBelow(below));
    }
    let lower = Directory::open(directory);
    let lower = lower.map_err(|error| MountError::Unfit(mount_point, error))?;
    let mut blocks = SessionBlocks { session: service.connect() };
    let block_count = service.size() / BLOCK_SIZE;
    Overlay::open(lower, &mut blocks, block_count, options).map_err(MountError::Store)
}

/// A volume's blocks, one request at a time.
struct SessionBlocks {
    session: Box<dyn Session + Send>,
}

impl SessionBlocks {
    fn call(&mut self, operation: Operation, block: u64, count: u64) -> Result<Completion, i32> {
        let (offset, length) = (block * BLOCK_SIZE, count * BLOCK_SIZE);
        let buffer = match operation {
            Operation::Read => Buffer::zeroed(length as usize),
            _ => Buffer::empty(),
        };
        let request = Request { tag: 0, operation, offset, length, buffer };
        self.session.submit_exact(request).map_err(|_| libc::EOPNOTSUPP)?;
        let mut completions = Vec::with_capacity(1);
        self.session.complete(&mut completions, None);
        let completion = completions.pop().ok_or(libc::ESHUTDOWN)?;
        completion.result.map_err(|error| error.errno())?;
        Ok(completion)
    }
}

impl Blocks for SessionBlocks {
    fn read(&mut self, block: u64, into: &mut Block) -> Result<(), i32> {
        let completion = self.call(Operation::Read, block, 1)?;
        into.copy_from_slice(&completion.buffer);
        Ok(())
    }

    fn mapped(&mut self, block: u64, count: u64) -> Result<Vec<(u64, bool)>, i32> {
        let completion = self.call(Operation::Extents, block, count)?;
        let runs = completion.extents.iter();
        Ok(runs.map(|extent| (extent.length / BLOCK_SIZE, extent.mapped)).collect())
    }
}

/// Has the overlay over `directory` bring home all that it keeps apart, and waits for that.
///
/// # Errors
/// What kept it from doing so; `ENOTTY` where there is no overlay.
pub fn settle(directory: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    // SAFETY: the request has no argument, and touches no memory of this process.
    unsafe {
        let request = rustix::ioctl::NoArg::<{ SETTLE_IOCTL as rustix::ioctl::Opcode }>::new();
        rustix::ioctl::ioctl(&root, request)?;
    }
    Ok(())
}

/// What the overlay over `directory` tells of itself, as JSON.
///
/// # Errors
/// What the system says: `ENOTCONN` where the daemon was killed, another where there is no overlay.
pub fn report(directory: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; REPORT_SIZE_MAX];
    let size = rustix::fs::getxattr(directory, STATUS_ATTRIBUTE, &mut bytes[..])?;
    bytes.truncate(size);
    Ok(bytes)
}

/// Changes what the overlay over `directory` remaps.
///
/// # Errors
/// What the system says.
pub fn set_remap(directory: &Path, remap: Remap) -> io::Result<()> {
    let (word, flags) = (remap.word(), XattrFlags::empty());
    Ok(rustix::fs::setxattr(directory, REMAP_ATTRIBUTE, word.as_bytes(), flags)?)
}
