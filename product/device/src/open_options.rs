//! How to open a file or a disk.

/// The largest [`OpenOptions::queue_depth`].
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// The largest [`OpenOptions::threads`].
pub const THREADS_MAX: usize = 256;

/// What carries the commands to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or threads where the system refuses that or [`NO_IO_URING_VARIABLE`](crate::open::NO_IO_URING_VARIABLE) is set.
    #[default]
    Automatic,
    /// NVMe commands of our own, through io_uring, to a drive that is an NVMe namespace; where kernel or
    /// drive do not allow that, as [`Engine::Automatic`], with the reason in the device's note.
    NvmePassthrough,
    /// io_uring or nothing.
    Uring,
    /// A pool of threads that call pread and pwrite.
    Threads,
}

/// How to open a file or a disk.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse writes, and share a file (not a disk) with others that read.
    pub read_only: bool,
    /// Go past the page cache (`O_DIRECT`) where the file system can. Without it, data is copied
    /// once more and the page cache grows.
    pub direct: bool,
    /// What carries the commands.
    pub engine: Engine,
    /// Commands executed at once, from 1 to [`QUEUE_DEPTH_MAX`].
    pub queue_depth: usize,
    /// Threads of [`Engine::Threads`], from 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Bytes that it must have.
    pub size_min: u64,
    /// If there is nothing at the path, make a file of so many bytes, readable by its owner only,
    /// without reserving room for it.
    pub create_size: Option<u64>,
    /// The caller has locked the file as a [`LockedFile`](crate::LockedFile), and keeps that for as
    /// long as the device is open: it is not locked once more. Of no meaning for a disk.
    pub locked: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            direct: true,
            engine: Engine::Automatic,
            queue_depth: 256,
            threads: 16,
            size_min: 0,
            create_size: None,
            locked: false,
        }
    }
}
