//! What a daemon is to do.

use crate::backing::Source;
use crate::opening::Opening;
use crate::state::Via;
use coulter_attach::nbd::Address;

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
    /// An NBD server on a socket that whoever started this process has opened.
    NbdInherited,
    /// An NBD server at an address of the user's.
    NbdAt {
        /// Where.
        address: Address,
        /// Whether other machines may reach it.
        allow_remote: bool,
    },
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
        }
    }

    /// Where a block device of this kind is to come from.
    pub fn of(via: Via) -> Point {
        match via {
            Via::Ublk => Point::Ublk,
            Via::Nbd => Point::Nbd,
            Via::Loop => Point::Loop,
            Via::NbdServer => Point::NbdInState,
        }
    }
}
