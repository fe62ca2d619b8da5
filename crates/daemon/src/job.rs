//! What a daemon is to do.

use crate::backing::Source;
use crate::opening::Opening;
use crate::state::Via;
use coulter_attach::nbd::Address;
use coulter_attach::nvme::Keys;
use std::path::PathBuf;

/// What a daemon is to do.
pub struct Job {
    /// What is served.
    pub source: Box<dyn Source>,
    /// What the host shall see.
    pub point: Point,
    /// How to open it.
    pub opening: Opening,
    /// Whether to take over a device that waits for this store's daemon.
    pub recover: bool,
}

/// How a file system is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsOptions {
    /// Gather writes in the page cache.
    pub writes_back: bool,
    /// Memory for names, attributes and places, in bytes; `None` for the default.
    pub cache_size: Option<u64>,
    /// No set-uid programs, devices, programs.
    pub no_suid: bool,
    /// See above.
    pub no_dev: bool,
    /// See above.
    pub no_exec: bool,
    /// It is an overlay over the directory, and how that works.
    pub overlay: Option<coulter_overlay::Options>,
}

/// An attach point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// A ublk device.
    Ublk,
    /// A device of the kernel's NBD client, over a server on a socket in the state directory.
    Nbd,
    /// A loop device over a FUSE file.
    Loop,
    /// An NBD server on a socket in the state directory.
    NbdInState,
    /// The file system on the volume, mounted.
    Fs {
        /// Where.
        directory: PathBuf,
        /// How.
        options: FsOptions,
    },
    /// An NBD server on a socket that whoever started this process has opened.
    NbdInherited,
    /// An NBD server at an address of the user's.
    NbdAt {
        /// Where.
        address: Address,
        /// Whether other machines may reach it.
        allow_remote: bool,
    },
    /// A device of the kernel's NVMe/TCP initiator, over a target on the loopback.
    NvmeDevice,
    /// An NVMe/TCP target.
    Nvme(NvmePlace),
}

/// Where an NVMe/TCP target listens, and what hosts see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmePlace {
    /// Where.
    pub address: Address,
    /// Whether other machines may reach it.
    pub allow_remote: bool,
    /// Hosts that are let in; none for any host.
    pub keys: Option<Keys>,
    /// Whether a discovery service listens on the port that is kept for that, too.
    pub discovery: bool,
    /// Bytes of a block: 512 or 4096.
    pub block_size: u32,
    /// Commands of a queue at a time, and one.
    pub queue_size: u32,
    /// I/O queues of a host.
    pub queues: u16,
}

impl Point {
    /// The same, with a path that holds in any directory.
    pub fn absolute(self) -> Point {
        match self {
            Point::NbdAt { address: Address::Unix(path), allow_remote } => {
                let path = std::path::absolute(&path).unwrap_or(path);
                Point::NbdAt { address: Address::Unix(path), allow_remote }
            }
            other => other,
        }
    }

    /// What the host gets of it.
    pub fn via(&self) -> Via {
        match self {
            Point::Ublk => Via::Ublk,
            Point::Nbd => Via::Nbd,
            Point::Loop => Via::Loop,
            Point::NbdInState | Point::NbdInherited | Point::NbdAt { .. } => Via::NbdServer,
            Point::NvmeDevice => Via::Nvme,
            Point::Nvme(_) => Via::NvmeServer,
            Point::Fs { .. } => Via::Fs,
        }
    }

    /// Where a block device of this kind is to come from; a server is where its user wants it.
    pub fn of(via: Via) -> Option<Point> {
        match via {
            Via::Ublk => Some(Point::Ublk),
            Via::Nbd => Some(Point::Nbd),
            Via::Loop => Some(Point::Loop),
            Via::Nvme => Some(Point::NvmeDevice),
            Via::NbdServer | Via::NvmeServer | Via::Fs => None,
        }
    }
}
