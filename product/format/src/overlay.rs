//! The structures of an overlay's store: which files of a directory have blocks here, and where.
//!
//! None of them has a checksum of its own: each is a block of a volume, and the volume checks what it
//! reads. `docs/overlay.md` describes the same bytes in words.
//!
//! ```text
//! host block 0             superblock
//! from 16 on               records, 16 to a block
//! from `table_start` on    owners of windows, 256 to a block
//! from `windows_start` on  windows of 512 blocks, at a multiple of 512
//! ```

use crate::bytes::{at, put, u32_at, u64_at};
use crate::files::Time;
use crate::{BLOCK_SIZE, Block, Corrupt, Reason, Structure};

/// The version of these structures.
pub const OVERLAY_VERSION: u32 = 1;
/// The first host block with records.
pub const RECORDS_START: u64 = 16;
/// Records of a block.
pub const RECORDS_PER_BLOCK: usize = BLOCK_SIZE / RECORD_SIZE;
/// Bytes of a record.
pub const RECORD_SIZE: usize = 256;
/// Owners of windows in a block.
pub const OWNERS_PER_BLOCK: usize = BLOCK_SIZE / OWNER_SIZE;
/// Blocks of a window.
pub const WINDOW_BLOCKS: u64 = 512;
/// Bytes of a file handle at most.
pub const HANDLE_SIZE_MAX: usize = 40;
/// Records of a store at most.
pub const RECORD_LIMIT: u32 = 1 << 20;

const OWNER_SIZE: usize = 16;
/// The first bytes of the superblock of an overlay.
pub const MAGIC: [u8; 8] = *b"COULTROV";

const _: () = assert!(RECORDS_PER_BLOCK == 16 && OWNERS_PER_BLOCK == 256);

/// What names a file of the lower directory for as long as it exists, whatever its paths.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    kind: i32,
    size: u8,
    bytes: [u8; HANDLE_SIZE_MAX],
}

impl Handle {
    /// The handle of this kind and these bytes; `None` if they are too many.
    pub fn new(kind: i32, bytes: &[u8]) -> Option<Handle> {
        let mut handle = Handle { kind, size: 0, bytes: [0; HANDLE_SIZE_MAX] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        handle.size = u8::try_from(bytes.len()).ok()?;
        Some(handle)
    }

    /// Its kind, which the file system chose.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.size.into()).unwrap_or(&[])
    }

    /// A number that differs, as a rule, for files that had the same inode one after the other.
    pub fn generation(&self) -> u32 {
        let hash = self
            .bytes()
            .iter()
            .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        hash & 0x7fff_ffff
    }
}

impl core::fmt::Debug for Handle {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:", self.kind)?;
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is true of the store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity, which the directory's state file repeats.
    pub identity: [u8; 16],
    /// The directory that it belongs to.
    pub directory: Handle,
    /// It was closed in order: what is noted of the lower files is exact.
    pub is_clean: bool,
    /// The next identity of a file.
    pub serial: u64,
    /// Blocks that may be mapped at once.
    pub capacity: u64,
    /// Windows that there are.
    pub window_count: u32,
}

impl Superblock {
    /// The first block with owners of windows.
    pub fn table_start(&self) -> u64 {
        RECORDS_START + u64::from(RECORD_LIMIT) / RECORDS_PER_BLOCK as u64
    }

    /// The first block of the first window.
    pub fn windows_start(&self) -> u64 {
        let table_blocks = u64::from(self.window_count).div_ceil(OWNERS_PER_BLOCK as u64);
        (self.table_start() + table_blocks).next_multiple_of(WINDOW_BLOCKS)
    }

    /// Host blocks that it needs.
    pub fn block_count(&self) -> u64 {
        self.windows_start() + u64::from(self.window_count) * WINDOW_BLOCKS
    }

    /// The block's bytes.
    pub fn encode(&self, block: &mut Block) {
        *block = [0; BLOCK_SIZE];
        put::<0, 8>(block, MAGIC);
        put::<8, 4>(block, OVERLAY_VERSION.to_le_bytes());
        put::<16, 16>(block, self.identity);
        put::<32, 4>(block, u32::from(self.is_clean).to_le_bytes());
        put::<36, 4>(block, self.window_count.to_le_bytes());
        put::<40, 8>(block, self.serial.to_le_bytes());
        put::<48, 8>(block, self.capacity.to_le_bytes());
        put::<56, 4>(block, self.directory.kind.to_le_bytes());
        put::<60, 4>(block, u32::from(self.directory.size).to_le_bytes());
        put::<64, HANDLE_SIZE_MAX>(block, self.directory.bytes);
    }

    /// The values in a block.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(block: &Block) -> Result<Superblock, Corrupt> {
        let corrupt = |reason| Corrupt { structure: Structure::OverlaySuperblock, reason };
        if at::<0, 8>(block) != MAGIC {
            return Err(corrupt(Reason::Magic));
        }
        let version = u32_at::<8>(block);
        if version != OVERLAY_VERSION {
            return Err(corrupt(Reason::Version(version)));
        }
        let features = u32_at::<12>(block);
        if features != 0 {
            return Err(corrupt(Reason::Features(features)));
        }
        let bytes = at::<64, HANDLE_SIZE_MAX>(block);
        let size = u32_at::<60>(block) as usize;
        let bytes = bytes.get(..size).ok_or(corrupt(Reason::Field("handle")))?;
        let kind = i32::from_le_bytes(at::<56, 4>(block));
        let directory = Handle::new(kind, bytes).ok_or(corrupt(Reason::Field("handle")))?;
        Ok(Superblock {
            identity: at::<16, 16>(block),
            directory,
            is_clean: u32_at::<32>(block) == 1,
            serial: u64_at::<40>(block),
            capacity: u64_at::<48>(block),
            window_count: u32_at::<36>(block),
        })
    }
}

/// What becomes of a file with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Blocks of it are here, and its size and time of modification.
    Live,
    /// They are being brought home; the lower file is not as it was noted any more.
    Settling,
    /// They are home; only the mark on the lower file is left to be taken away.
    Settled,
    /// It has no name and no user any more.
    Dying,
}

/// A lower file of which blocks may be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What becomes of it.
    pub state: RecordState,
    /// Whether its last name is being taken away, or it has none: then it may be missing after a crash.
    pub is_nameless: bool,
    /// Whether space may be being taken below, which changes the lower file's time of modification for a moment.
    pub is_taking_space: bool,
    /// Its mark, which the lower file has too.
    pub id: [u8; 16],
    /// The lower file.
    pub handle: Handle,
    /// Its inode's number.
    pub number: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes from here on are not those of the lower file: what is not mapped reads as zeros.
    pub lower_valid: u64,
    /// Last change of the content.
    pub modified: Time,
    /// What the lower file was like: if it is not now, somebody else has changed it.
    pub lower: Fingerprint,
}

/// What tells that a lower file was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Bytes.
    pub size: u64,
    /// Last change of its content.
    pub modified: Time,
    /// Last change of anything.
    pub changed: Time,
}

impl Record {
    /// Writes record `index` (below [`RECORDS_PER_BLOCK`]) of a block.
    pub fn encode(&self, block: &mut Block, index: usize) {
        let mut bytes = [0; BLOCK_SIZE];
        let state: u8 = match self.state {
            RecordState::Live => 1,
            RecordState::Settling => 2,
            RecordState::Settled => 3,
            RecordState::Dying => 4,
        };
        put::<0, 1>(&mut bytes, [state]);
        let flags = u8::from(self.is_nameless) | u8::from(self.is_taking_space) << 1;
        put::<1, 1>(&mut bytes, [flags]);
        put::<2, 2>(&mut bytes, u16::from(self.handle.size).to_le_bytes());
        put::<4, 4>(&mut bytes, self.handle.kind.to_le_bytes());
        put::<8, 16>(&mut bytes, self.id);
        put::<24, 8>(&mut bytes, self.size.to_le_bytes());
        put::<32, 8>(&mut bytes, self.lower_valid.to_le_bytes());
        put::<40, 8>(&mut bytes, self.number.to_le_bytes());
        put::<48, 8>(&mut bytes, self.lower.size.to_le_bytes());
        put::<56, 8>(&mut bytes, self.modified.seconds.to_le_bytes());
        put::<64, 8>(&mut bytes, self.lower.modified.seconds.to_le_bytes());
        put::<72, 8>(&mut bytes, self.lower.changed.seconds.to_le_bytes());
        put::<80, 4>(&mut bytes, self.modified.nanoseconds.to_le_bytes());
        put::<84, 4>(&mut bytes, self.lower.modified.nanoseconds.to_le_bytes());
        put::<88, 4>(&mut bytes, self.lower.changed.nanoseconds.to_le_bytes());
        put::<96, HANDLE_SIZE_MAX>(&mut bytes, self.handle.bytes);
        let place =
            block.get_mut(index * RECORD_SIZE..).and_then(|rest| rest.get_mut(..RECORD_SIZE));
        if let (Some(place), Some(bytes)) = (place, bytes.get(..RECORD_SIZE)) {
            place.copy_from_slice(bytes);
        }
    }

    /// Record `index` of a block, if there is one.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(block: &Block, index: usize) -> Result<Option<Record>, Corrupt> {
        let corrupt =
            |what| Corrupt { structure: Structure::OverlayRecord, reason: Reason::Field(what) };
        let mut bytes = [0; BLOCK_SIZE];
        let place = block.get(index * RECORD_SIZE..).and_then(|rest| rest.get(..RECORD_SIZE));
        if let (Some(place), Some(bytes)) = (place, bytes.get_mut(..RECORD_SIZE)) {
            bytes.copy_from_slice(place);
        }
        let state = match at::<0, 1>(&bytes)[0] {
            0 => return Ok(None),
            1 => RecordState::Live,
            2 => RecordState::Settling,
            3 => RecordState::Settled,
            4 => RecordState::Dying,
            _ => return Err(corrupt("state")),
        };
        let flags = at::<1, 1>(&bytes)[0];
        if flags > 3 {
            return Err(corrupt("flags"));
        }
        let size = u16::from_le_bytes(at::<2, 2>(&bytes)).into();
        let handle = at::<96, HANDLE_SIZE_MAX>(&bytes);
        let handle = handle.get(..size).ok_or(corrupt("handle"))?;
        let kind = i32::from_le_bytes(at::<4, 4>(&bytes));
        let handle = Handle::new(kind, handle).ok_or(corrupt("handle"))?;
        let seconds = |value: u64| value as i64;
        let record = Record {
            state,
            is_nameless: flags & 1 != 0,
            is_taking_space: flags & 2 != 0,
            id: at::<8, 16>(&bytes),
            handle,
            number: u64_at::<40>(&bytes),
            size: u64_at::<24>(&bytes),
            lower_valid: u64_at::<32>(&bytes),
            modified: Time {
                seconds: seconds(u64_at::<56>(&bytes)),
                nanoseconds: u32_at::<80>(&bytes),
            },
            lower: Fingerprint {
                size: u64_at::<48>(&bytes),
                modified: Time {
                    seconds: seconds(u64_at::<64>(&bytes)),
                    nanoseconds: u32_at::<84>(&bytes),
                },
                changed: Time {
                    seconds: seconds(u64_at::<72>(&bytes)),
                    nanoseconds: u32_at::<88>(&bytes),
                },
            },
        };
        if record.size > i64::MAX as u64 || record.lower_valid > record.size {
            return Err(corrupt("size"));
        }
        Ok(Some(record))
    }
}

/// Which stretch of which file a window holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The record of the file.
    pub record: u32,
    /// Which 2 MiB of it, counted from its start.
    pub stretch: u64,
}

impl Owner {
    /// Writes the owner of window `index` (below [`OWNERS_PER_BLOCK`]) of a block; none frees it.
    pub fn encode(owner: Option<Owner>, block: &mut Block, index: usize) {
        let mut bytes = [0; OWNER_SIZE];
        if let Some(Owner { record, stretch }) = owner {
            let (head, tail) = bytes.split_at_mut(8);
            head.copy_from_slice(&u64::from(record).wrapping_add(1).to_le_bytes());
            tail.copy_from_slice(&stretch.to_le_bytes());
        }
        let place = block.get_mut(index * OWNER_SIZE..).and_then(|rest| rest.get_mut(..OWNER_SIZE));
        if let Some(place) = place {
            place.copy_from_slice(&bytes);
        }
    }

    /// The owner of window `index` of a block, if it has one.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(block: &Block, index: usize) -> Result<Option<Owner>, Corrupt> {
        let corrupt =
            || Corrupt { structure: Structure::OverlayOwner, reason: Reason::Field("record") };
        let place = block.get(index * OWNER_SIZE..).unwrap_or(&[]);
        let Some((head, rest)) = place.split_first_chunk::<8>() else { return Err(corrupt()) };
        let Some((tail, _)) = rest.split_first_chunk::<8>() else { return Err(corrupt()) };
        let Some(record) = u64::from_le_bytes(*head).checked_sub(1) else { return Ok(None) };
        let stretch = u64::from_le_bytes(*tail);
        let record = u32::try_from(record).ok().filter(|record| *record < RECORD_LIMIT);
        let record = record.ok_or_else(corrupt)?;
        Ok(Some(Owner { record, stretch }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let time = |seconds| Time { seconds, nanoseconds: 999_999_999 };
        Record {
            state: RecordState::Settling,
            is_nameless: true,
            is_taking_space: true,
            id: *b"0123456789abcdef",
            handle: Handle::new(1, b"\x01\0\0\0\xff\xff\xff\xff").unwrap(),
            number: u64::MAX,
            size: 1 << 40,
            lower_valid: 4097,
            modified: time(-1),
            lower: Fingerprint { size: 12, modified: time(7), changed: time(i64::MAX) },
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut block = [0; BLOCK_SIZE];
        let record = record();
        record.encode(&mut block, 15);
        assert_eq!(Record::decode(&block, 15), Ok(Some(record)));
        assert_eq!(Record::decode(&block, 14), Ok(None));
        let owner = Owner { record: RECORD_LIMIT - 1, stretch: u64::MAX };
        Owner::encode(Some(owner), &mut block, 255);
        assert_eq!(Owner::decode(&block, 255), Ok(Some(owner)));
        Owner::encode(None, &mut block, 255);
        assert_eq!(Owner::decode(&block, 255), Ok(None));
        let superblock = Superblock {
            identity: [7; 16],
            directory: record.handle,
            is_clean: true,
            serial: 1 << 33,
            capacity: 4096,
            window_count: 70_000,
        };
        superblock.encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(superblock));
        assert!(superblock.windows_start().is_multiple_of(WINDOW_BLOCKS));
    }

    #[test]
    fn no_bytes_make_it_panic_and_wrong_ones_are_told() {
        let block = [0xa5; BLOCK_SIZE];
        assert!(Superblock::decode(&block).is_err());
        assert!(Record::decode(&block, 3).is_err());
        assert!(Owner::decode(&block, 3).is_err());
        assert!(Handle::new(1, &[0; HANDLE_SIZE_MAX + 1]).is_none());
        let mut short = [0; BLOCK_SIZE];
        let record = Record { lower_valid: 9, size: 8, ..record() };
        record.encode(&mut short, 0);
        assert!(Record::decode(&short, 0).is_err(), "more is valid below than there is");
    }
}
