//! Opening an overlay: the directory below, and the store on the volume.

use super::message::SETTLE_IOCTL;
use super::mount::MountError;
use coulter::buffer::Buffer;
use coulter::service::{BLOCK_SIZE, BlockService, Completion, Operation, Request, Session};
use coulter_format::Block;
use coulter_overlay::{
    ADOPT_ATTRIBUTE, ORPHANS_ATTRIBUTE, REMAP_ATTRIBUTE, Remap, SETTLE_ATTRIBUTE, STATUS_ATTRIBUTE,
    SettleWhen,
};
use coulter_overlay::{Blocks, Directory, Options, Overlay};
use coulter_system::mounts;
use rustix::fs::{Mode, OFlags, XattrFlags};
use std::io;
use std::os::fd::AsFd;
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

/// The files whose blocks the overlay over `directory` cannot serve, from record `first` on: an object of
/// `orphans` and of `next`, the record to go on with.
///
/// # Errors
/// What the system says.
pub fn orphans(directory: &Path, first: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; REPORT_SIZE_MAX];
    let name = format!("{ORPHANS_ATTRIBUTE}{first}");
    let size = rustix::fs::getxattr(directory, name, &mut bytes[..])?;
    bytes.truncate(size);
    Ok(bytes)
}

/// How a file fits the record whose blocks it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Its size and time of modification are those of the lower file that is gone.
    Same,
    /// Whatever it holds lies below the blocks of the record.
    Any,
    /// It is new: what is not in the store is zeros.
    New,
}

/// Gives the blocks of a record that is not served to a file of the mount.
///
/// # Errors
/// `ENOENT`: no such record is without a file. `EEXIST`: the file has blocks of its own in the store. `ESTALE`:
/// the file does not fit. `EBUSY`: the record is in use. Others as the lower file system says.
pub fn adopt(file: impl AsFd, record: u32, fit: Fit) -> io::Result<()> {
    let fit = match fit {
        Fit::Same => "same",
        Fit::Any => "any",
        Fit::New => "new",
    };
    let (value, flags) = (format!("{record} {fit}"), XattrFlags::empty());
    Ok(rustix::fs::fsetxattr(file, ADOPT_ATTRIBUTE, value.as_bytes(), flags)?)
}

/// Changes when the overlay over `directory` brings blocks home.
///
/// # Errors
/// What the system says.
pub fn set_settle(directory: &Path, settle: SettleWhen) -> io::Result<()> {
    let (word, flags) = (settle.word(), XattrFlags::empty());
    Ok(rustix::fs::setxattr(directory, SETTLE_ATTRIBUTE, word.as_bytes(), flags)?)
}

/// Changes what the overlay over `directory` remaps.
///
/// # Errors
/// What the system says.
pub fn set_remap(directory: &Path, remap: Remap) -> io::Result<()> {
    let (word, flags) = (remap.word(), XattrFlags::empty());
    Ok(rustix::fs::setxattr(directory, REMAP_ATTRIBUTE, word.as_bytes(), flags)?)
}
