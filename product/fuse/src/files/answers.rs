//! Replies to the kernel: values to bytes, in one buffer that is reused.

use super::message::init_flag;
use super::writers::{BLOCK_SIZE, VALID_SECONDS, Writers};
use coulter_files::{Attributes, Inode, Listing, Time, Usage};

/// The version of the protocol that this module implements.
const MINOR: u32 = 45;
/// The first version of which every kernel has what [`Agreed::opens_direct`] needs.
const DIRECT_MINOR_MIN: u32 = 45;
/// Versions below lack messages that are needed (Linux 5.4).
pub(super) const MINOR_MIN: u32 = 31;
/// Asynchronous requests in flight at a time.
const BACKGROUND_MAX: u16 = 512;
/// Pages stay when a file is opened.
const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// Reads and writes pass the page cache by, and writes within the file run side by side. Without it the
/// kernel lets one direct write at a time into a file.
const OPEN_DIRECT: u32 = 1 << 0 | 1 << 6;
/// Bits of `statx` that are known: the basic ones, and the time of birth.
const STATX_MASK: u32 = 0x7ff | 0x800;

/// What the kernel and the mount agree on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) minor: u32,
    pub(super) flags: u64,
}

impl Agreed {
    /// Whether requests to set an attribute have their longer form.
    pub(super) fn has_long_set_xattr(self) -> bool {
        self.flags & init_flag::SETXATTR_EXT != 0
    }

    /// Whether files can be opened past the page cache: the kernel maps them nevertheless, and drops the
    /// pages that a reader fetched while a direct write was under way (Linux 6.18).
    pub(super) fn opens_direct(self) -> bool {
        self.minor >= DIRECT_MINOR_MIN && self.flags & init_flag::DIRECT_IO_ALLOW_MMAP != 0
    }
}

/// Bytes of an answer.
#[derive(Default)]
pub(super) struct Body(pub(super) Vec<u8>);

impl Body {
    pub(super) fn clear(&mut self) -> &mut Body {
        self.0.clear();
        self
    }

    fn u16(&mut self, value: u16) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn zeros(&mut self, count: usize) -> &mut Body {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// The reply to the first message: the agreed values, or an error number.
    pub(super) fn init(
        &mut self,
        (major, minor): (u32, u32),
        readahead_max: u32,
        offered: u64,
        writes_back: bool,
        write_max: u32,
    ) -> Result<Agreed, i32> {
        if major != 7 || minor < MINOR_MIN {
            return Err(libc::EPROTO);
        }
        use init_flag::*;
        let mut wanted = ASYNC_READ
            | EXPORT_SUPPORT
            | BIG_WRITES
            | HAS_IOCTL_DIR
            | DO_READDIRPLUS
            | READDIRPLUS_AUTO
            | ASYNC_DIO
            | NO_OPEN_SUPPORT
            | PARALLEL_DIROPS
            | DONT_MASK
            | POSIX_ACL
            | SETXATTR_EXT
            | MAX_PAGES
            | CACHE_SYMLINKS
            | NO_OPENDIR_SUPPORT
            | EXPLICIT_INVAL_DATA
            | HANDLE_KILLPRIV_V2
            | DIRECT_IO_ALLOW_MMAP
            | INIT_EXT;
        if writes_back {
            wanted |= WRITEBACK_CACHE;
        }
        let agreed = Agreed { minor: minor.min(MINOR), flags: offered & wanted };
        self.clear();
        self.u32(7).u32(agreed.minor).u32(readahead_max.max(1 << 20)).u32(agreed.flags as u32);
        self.u16(BACKGROUND_MAX).u16(BACKGROUND_MAX / 4 * 3).u32(write_max);
        // Times are exact to the nanosecond.
        self.u32(1).u16((write_max / BLOCK_SIZE) as u16).u16(0);
        self.u32((agreed.flags >> 32) as u32).zeros(28);
        assert_eq!(self.0.len(), 64, "an answer to INIT has one size");
        Ok(agreed)
    }

    fn attributes_of(&mut self, number: u64, inode: &Inode, writers: &Writers) -> &mut Body {
        let start = self.0.len();
        self.u64(number).u64(inode.size).u64(writers.sectors(number, inode));
        for time in [inode.accessed, inode.modified, inode.changed] {
            self.u64(time.seconds as u64);
        }
        for time in [inode.accessed, inode.modified, inode.changed] {
            self.u32(time.nanoseconds);
        }
        self.u32(inode.mode).u32(inode.links).u32(inode.uid).u32(inode.gid);
        self.u32(inode.device).u32(BLOCK_SIZE).u32(0);
        assert_eq!(self.0.len() - start, 88, "attributes have one size");
        self
    }

    pub(super) fn attributes(&mut self, found: &Attributes, writers: &Writers) {
        let valid = writers.valid_seconds(found.number, &found.inode);
        self.clear().u64(valid).zeros(8).attributes_of(found.number, &found.inode, writers);
    }

    fn entry_of(&mut self, number: u64, inode: &Inode, writers: &Writers) -> &mut Body {
        let valid = writers.valid_seconds(number, inode);
        self.u64(number).u64(inode.generation.into());
        self.u64(VALID_SECONDS).u64(valid).zeros(8).attributes_of(number, inode, writers)
    }

    /// A name that was found; `opens` if it is opened with that.
    pub(super) fn entry(&mut self, found: &Attributes, opens: bool, writers: &Writers) {
        self.clear().entry_of(found.number, &found.inode, writers);
        if opens {
            self.u64(0).u32(OPEN_KEEP_CACHE).u32(0);
        }
    }

    /// How the kernel treats a file that is opened.
    pub(super) fn open(&mut self, is_direct: bool) {
        let flags = if is_direct { OPEN_DIRECT } else { OPEN_KEEP_CACHE };
        self.clear().u64(0).u32(flags).u32(0);
    }

    /// That there is no such name, to be remembered too.
    pub(super) fn no_entry(&mut self) {
        self.clear().u64(0).u64(0).u64(VALID_SECONDS).zeros(8 + 8 + 88);
        assert_eq!(self.0.len(), 128, "an entry has one size");
    }

    pub(super) fn statx(&mut self, found: &Attributes, writers: &Writers) {
        let inode = &found.inode;
        let valid = writers.valid_seconds(found.number, inode);
        self.clear().u64(valid).zeros(4 + 4 + 16);
        self.u32(STATX_MASK).u32(BLOCK_SIZE).u64(0).u32(inode.links);
        self.u32(inode.uid).u32(inode.gid).u16(inode.mode as u16).u16(0);
        let sectors = writers.sectors(found.number, inode);
        self.u64(found.number).u64(inode.size).u64(sectors).u64(0);
        for Time { seconds, nanoseconds } in
            [inode.accessed, inode.born, inode.changed, inode.modified]
        {
            self.u64(seconds as u64).u32(nanoseconds).u32(0);
        }
        let device = libc::dev_t::from(inode.device);
        self.u32(libc::major(device)).u32(libc::minor(device)).zeros(8 + 112);
        assert_eq!(self.0.len(), 288, "an answer to STATX has one size");
    }

    pub(super) fn usage(&mut self, usage: &Usage) {
        self.clear().u64(usage.blocks).u64(usage.free).u64(usage.available);
        // An inode takes no room of its own: there may be one for each free block, and more.
        let free_inodes = usage.free.saturating_mul(8);
        self.u64(usage.inodes + free_inodes).u64(free_inodes);
        self.u32(BLOCK_SIZE).u32(255).u32(BLOCK_SIZE).zeros(28);
        assert_eq!(self.0.len(), 80, "an answer to STATFS has one size");
    }

    /// Names of a directory, with or without attributes.
    pub(super) fn listing(&mut self, listing: &Listing, plus: bool, writers: &Writers) {
        self.clear();
        for entry in &listing.entries {
            let name = listing.name(entry);
            if plus {
                let is_counted = name != b"." && name != b"..";
                match entry.attributes.as_ref().filter(|_| is_counted) {
                    Some(inode) => self.entry_of(entry.inode, inode, writers),
                    // No lookup is counted for it.
                    None => self.zeros(128),
                };
            }
            self.u64(entry.inode).u64(entry.cookie).u32(name.len() as u32).u32(entry.kind.into());
            self.0.extend_from_slice(name);
            self.0.resize(self.0.len().next_multiple_of(8), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_refused_and_flags_are_only_those_offered() {
        let mut body = Body::default();
        assert!(body.init((7, MINOR_MIN - 1), 0, 0, false, 1 << 20).is_err());
        assert!(body.init((8, 45), 0, 0, false, 1 << 20).is_err());
        let agreed = body.init((7, 60), 0, u64::MAX, false, 1 << 20).unwrap();
        assert_eq!(agreed.minor, MINOR);
        assert_eq!(agreed.flags & init_flag::WRITEBACK_CACHE, 0, "nobody asked for it");
        // Locks are the kernel's: POSIX_LOCKS, FLOCK_LOCKS.
        assert_eq!(agreed.flags & (1 << 1 | 1 << 10), 0);
        assert!(agreed.opens_direct());
        assert!(!body.init((7, 44), 0, u64::MAX, false, 1 << 20).unwrap().opens_direct());
        let agreed = body.init((7, 31), 0, init_flag::ASYNC_READ, true, 1 << 20).unwrap();
        assert_eq!((agreed.minor, agreed.flags), (31, init_flag::ASYNC_READ));
    }
}
