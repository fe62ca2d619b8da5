//! The two inodes of the mount, the root and the volume, and every message about them that is
//! neither input nor output.

use super::mount::FILE_NAME;
use super::wire::{
    Attributes, InHeader, InitReply, Message, ROOT_NODE, attribute_flag, attributes_body,
    entry_body, init_flag, open_body, open_flag, push_directory_entry, statfs_body,
};
use coulter::service::BLOCK_SIZE;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of one read or write.
pub(super) const WRITE_SIZE_MAX: usize = 1 << 20;

const VOLUME_NODE: u64 = 2;
/// Seconds for which the kernel may cache attributes and names; they never change.
const VALID_SECONDS: u64 = 3600;
/// Above the 128 requests of a loop device, each of which may take two messages.
const BACKGROUND_MAX: u16 = 256;
/// The protocol's version that [`super::wire`] implements.
const MINOR: u32 = 38;
/// Versions of the protocol below this one lack messages that are needed (Linux 4.20).
const MINOR_MIN: u32 = 28;

const DIRECTORY_TYPE: u32 = 4;
const FILE_TYPE: u32 = 8;

/// The attributes of the volume as a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nodes {
    pub(super) size: u64,
    pub(super) read_only: bool,
    time: u64,
}

/// The answer to a message: a body, or an error number.
pub(super) type Answer = Result<Vec<u8>, i32>;

impl Nodes {
    pub(super) fn new(size: u64, read_only: bool) -> Nodes {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Nodes { size, read_only, time: now.map_or(0, |since| since.as_secs()) }
    }

    /// Answers what needs no session; `None` when no answer is due.
    pub(super) fn answer(&self, header: InHeader, message: Message<'_>) -> Option<Answer> {
        Some(match message {
            Message::Init { major, minor, readahead_max, flags } => {
                init(major, minor, readahead_max, flags)
            }
            Message::Lookup { name } => {
                let found = header.node == ROOT_NODE && name == FILE_NAME.as_bytes();
                let attributes = self.attributes(VOLUME_NODE).filter(|_| found);
                attributes.map(|a| entry_body(a, VALID_SECONDS)).ok_or(libc::ENOENT)
            }
            Message::GetAttributes => self.attributes_answer(header.node),
            Message::SetAttributes { changes, size } => self.set_attributes(header, changes, size),
            Message::Open { flags } => self.open(header, flags),
            Message::OpenDirectory if header.node == ROOT_NODE => Ok(open_body(0)),
            Message::OpenDirectory => Err(libc::ENOTDIR),
            Message::ReadDirectory { offset, size } => Ok(self.directory(offset, size)),
            // The loop driver takes its granularity of discards from here.
            Message::StatFs => Ok(statfs_body(self.size / BLOCK_SIZE, BLOCK_SIZE as u32)),
            Message::Release | Message::Destroy => Ok(Vec::new()),
            Message::Silent => return None,
            Message::ChangeDirectory if self.read_only => Err(libc::EROFS),
            Message::ChangeDirectory => Err(libc::EPERM),
            // The kernel remembers this and does not ask again: right for all that is left, but
            // it would be wrong for any mode of FALLOCATE, which is answered elsewhere.
            _ => Err(libc::ENOSYS),
        })
    }

    fn attributes(&self, node: u64) -> Option<Attributes> {
        let time = self.time;
        let write = if self.read_only { 0 } else { 0o200 };
        match node {
            ROOT_NODE => {
                Some(Attributes { node, size: 0, mode: libc::S_IFDIR | 0o500, links: 2, time })
            }
            VOLUME_NODE => {
                let mode = libc::S_IFREG | 0o400 | write;
                Some(Attributes { node, size: self.size, mode, links: 1, time })
            }
            _ => None,
        }
    }

    fn attributes_answer(&self, node: u64) -> Answer {
        let attributes = self.attributes(node).ok_or(libc::ENOENT)?;
        Ok(attributes_body(attributes, VALID_SECONDS))
    }

    fn set_attributes(&self, header: InHeader, changes: u32, size: u64) -> Answer {
        let resizes = changes & attribute_flag::SIZE != 0 && size != self.size;
        let fixed = attribute_flag::MODE | attribute_flag::UID | attribute_flag::GID;
        if resizes || changes & fixed != 0 {
            return Err(libc::EPERM);
        }
        // Times may be set and are not kept.
        self.attributes_answer(header.node)
    }

    fn open(&self, header: InHeader, flags: u32) -> Answer {
        if header.node != VOLUME_NODE {
            return Err(libc::EISDIR);
        }
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if writes && self.read_only {
            return Err(libc::EROFS);
        }
        use open_flag::{DIRECT_IO, NO_FLUSH, PARALLEL_DIRECT_WRITES};
        Ok(open_body(DIRECT_IO | NO_FLUSH | PARALLEL_DIRECT_WRITES))
    }

    fn directory(&self, offset: u64, size: u32) -> Vec<u8> {
        let entries = [
            (ROOT_NODE, DIRECTORY_TYPE, "."),
            (ROOT_NODE, DIRECTORY_TYPE, ".."),
            (VOLUME_NODE, FILE_TYPE, FILE_NAME),
        ];
        let mut out = Vec::new();
        for (next, (node, kind, name)) in (1u64..).zip(entries) {
            if next > offset {
                push_directory_entry(&mut out, size as usize, node, next, kind, name);
            }
        }
        out
    }
}

fn init(major: u32, minor: u32, readahead_max: u32, flags: u32) -> Answer {
    if major != 7 || minor < MINOR_MIN {
        return Err(libc::EPROTO);
    }
    let wanted =
        init_flag::ASYNC_READ | init_flag::BIG_WRITES | init_flag::ASYNC_DIO | init_flag::MAX_PAGES;
    let reply = InitReply {
        minor: minor.min(MINOR),
        readahead_max,
        flags: flags & wanted,
        background_max: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX,
        write_max: WRITE_SIZE_MAX as u32,
        pages_max: (WRITE_SIZE_MAX / 4096) as u16,
    };
    Ok(reply.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::opcode;

    fn header(node: u64) -> InHeader {
        InHeader { length: 0, opcode: opcode::GETATTR, unique: 1, node }
    }

    #[test]
    fn only_the_volume_is_found() {
        let nodes = Nodes::new(1 << 20, false);
        let lookup = |node, name: &'static str| {
            nodes.answer(header(node), Message::Lookup { name: name.as_bytes() }).unwrap()
        };
        assert!(lookup(ROOT_NODE, "volume").is_ok());
        assert_eq!(lookup(ROOT_NODE, "other"), Err(libc::ENOENT));
        assert_eq!(lookup(VOLUME_NODE, "volume"), Err(libc::ENOENT));
    }

    #[test]
    fn the_size_is_fixed_and_a_read_only_volume_opens_for_reading_only() {
        let nodes = Nodes::new(1 << 20, true);
        let set = |size| {
            let message = Message::SetAttributes { changes: attribute_flag::SIZE, size };
            nodes.answer(header(VOLUME_NODE), message).unwrap()
        };
        assert!(set(1 << 20).is_ok());
        assert_eq!(set(0), Err(libc::EPERM));
        let open = |flags: i32| {
            nodes.answer(header(VOLUME_NODE), Message::Open { flags: flags as u32 }).unwrap()
        };
        assert!(open(libc::O_RDONLY).is_ok());
        assert_eq!(open(libc::O_RDWR), Err(libc::EROFS));
    }

    #[test]
    fn the_kernel_caches_nothing_of_the_volume_and_flushes_nothing_at_a_close() {
        use open_flag::{DIRECT_IO, NO_FLUSH, PARALLEL_DIRECT_WRITES};
        let nodes = Nodes::new(1 << 20, false);
        let message = Message::Open { flags: libc::O_RDWR as u32 };
        let body = nodes.answer(header(VOLUME_NODE), message).unwrap().unwrap();
        // A handle of 64 bits, then the flags.
        let flags = u32::from_ne_bytes(body[8..12].try_into().unwrap());
        assert_eq!(flags, DIRECT_IO | NO_FLUSH | PARALLEL_DIRECT_WRITES);
        // As the kernel has them (FOPEN_DIRECT_IO, FOPEN_NOFLUSH, FOPEN_PARALLEL_DIRECT_WRITES).
        assert_eq!(flags, 1 << 0 | 1 << 5 | 1 << 6);
    }

    #[test]
    fn an_old_kernel_is_refused() {
        assert_eq!(init(7, MINOR_MIN - 1, 0, 0), Err(libc::EPROTO));
        assert!(init(7, 45, 0, u32::MAX).is_ok());
    }
}
