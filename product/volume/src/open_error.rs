//! Why a store cannot be opened. Every message says what, where and what to do.

use crate::bytes::Bytes;
use coulter_engine as engine;
use coulter_engine::create::LayoutError;
use coulter_engine::grow::GrowthError;
use coulter_format::{BLOCK_SIZE, Corrupt, Reason, Structure};
use std::fmt;
use std::io;

/// Why a store cannot be opened, and which.
#[derive(Debug)]
pub struct OpenError {
    /// What and where the device is.
    pub device: String,
    /// What is wrong.
    pub kind: OpenErrorKind,
}

/// Kinds of [`OpenError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// There is no superblock.
    #[error(
        "there is no store here, or its superblocks were overwritten: check that the path is \
         right, and do not format it with `coulter create` if it may have been a store"
    )]
    NotAStore,
    /// The store is of another format version.
    #[error(
        "the store has format version {found}, this program reads version {supported}: use the \
         program that fits"
    )]
    Version {
        /// Its version.
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// The store uses features that this program does not know.
    #[error(
        "the store uses features ({unknown:#x}) that this program does not know: a newer one has \
         opened it; use that one"
    )]
    Features {
        /// Their bits.
        unknown: u32,
    },
    /// The device ends before the store does.
    #[error(
        "the device has {} but the store has {}: it was truncated, or copied in part",
        Bytes(*.found), Bytes(*.needed)
    )]
    Truncated {
        /// Bytes that the store has.
        needed: u64,
        /// Bytes that the device has.
        found: u64,
    },
    /// Its checkpoint is of a version that this program does not read.
    #[error(
        "its checkpoint is of version {version}, which this coulter does not read; use the coulter \
         that wrote it"
    )]
    CheckpointVersion {
        /// The version that was found.
        version: u32,
    },
    /// Metadata without which nothing can be found is damaged.
    #[error(
        "{what}, at byte {offset}: the store is damaged there and cannot be opened without losing \
         data; `coulter check` says what else is, and `coulter salvage` takes out what is left"
    )]
    Damaged {
        /// What is wrong with what.
        what: String,
        /// Byte on the device.
        offset: u64,
    },
    /// Writes that were durable cannot be found any more.
    #[error(
        "record {sequence} is gone although all up to {durable} were durable: the device has lost \
         what it had confirmed, and opening would lose it for good; `coulter check` says more, and \
         `coulter salvage` takes out what is left"
    )]
    DurableRecordMissing {
        /// The sequence of the first that is missing.
        sequence: u64,
        /// The sequence up to which all were durable.
        durable: u64,
    },
    /// The newest superblock was lost, and the older one leads to a state that is long over.
    #[error(
        "its newest superblock is gone: records were written after generation {generation}, and \
         the copy that is left is older and leads to a state that is long over; restore the store \
         from a backup, or take out what is left with `coulter salvage`"
    )]
    SuperblockLost {
        /// The generation that the superblock in use should at least have.
        generation: u64,
    },
    /// Both superblocks at the start of the device are gone, and a third one is there: it opens read-only.
    #[error(
        "both superblocks at the start of the device are gone: something else was written there, \
         perhaps by mkfs. A third copy at the end is whole: attach the store read-only, or take \
         the data out with `coulter salvage`"
    )]
    FirstSuperblocksLost,
    /// The map memory allowed is less than opening needs.
    #[error("opening may need {} of map memory: allow at least so much", Bytes(*.needed))]
    MapMemory {
        /// Bytes needed.
        needed: u64,
    },
    /// The device cannot be written to, and the store was not to be opened read-only.
    #[error("the device is read-only: open the store read-only too")]
    ReadOnlyDevice,
    /// An option is below its bounds; its name and the least value.
    #[error("`{name}` must be at least {min}")]
    Option {
        /// Which.
        name: &'static str,
        /// The least value that it may have.
        min: u64,
    },
    /// An option is above its bounds; its name and the greatest value.
    #[error("`{name}` must be at most {max}")]
    OptionTooLarge {
        /// Which.
        name: &'static str,
        /// The greatest value that it may have.
        max: u64,
    },
    /// The store cannot grow as it should.
    #[error("{reason}")]
    Growth {
        /// Why, and what would be possible.
        reason: String,
    },
    /// Partly dead flash pages were to be padded, where that is not safe or means nothing.
    #[error("{}", not_padded(*.page_size, *.atomic_size))]
    Padding {
        /// Page size of the flash that the store knows of.
        page_size: Option<u64>,
        /// Bytes of the pages that the device says it writes whole or not at all.
        atomic_size: Option<u64>,
    },
    /// The device failed.
    #[error("the device failed: {}", io::Error::from_raw_os_error(*.errno))]
    Device {
        /// The operating system's error number.
        errno: i32,
    },
    /// The operating system gave no thread, memory or descriptor.
    #[error("the system gave no thread, memory or descriptor: {0}")]
    Resources(io::Error),
    /// The program has a bug that showed while opening; its message.
    #[error("this is a bug in coulter; nothing was written: {0}")]
    Bug(String),
}

impl OpenErrorKind {
    pub(crate) fn of(error: engine::OpenError) -> OpenErrorKind {
        let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
        match error {
            engine::OpenError::NotAStore => OpenErrorKind::NotAStore,
            engine::OpenError::Version(found) => {
                OpenErrorKind::Version { found, supported: coulter_format::FORMAT_VERSION }
            }
            engine::OpenError::Features(unknown) => OpenErrorKind::Features { unknown },
            engine::OpenError::Truncated { needed, found } => {
                OpenErrorKind::Truncated { needed: bytes(needed), found: bytes(found) }
            }
            engine::OpenError::Damaged {
                corrupt:
                    Corrupt { structure: Structure::Checkpoint, reason: Reason::Version(version) },
                ..
            } => OpenErrorKind::CheckpointVersion { version },
            engine::OpenError::Damaged { corrupt, pba } => {
                OpenErrorKind::Damaged { what: corrupt.to_string(), offset: pba.byte_offset() }
            }
            engine::OpenError::DurableRecordMissing { sequence, durable } => {
                OpenErrorKind::DurableRecordMissing { sequence, durable }
            }
            engine::OpenError::SuperblockLost { generation } => {
                OpenErrorKind::SuperblockLost { generation }
            }
            engine::OpenError::FirstSuperblocksLost => OpenErrorKind::FirstSuperblocksLost,
            engine::OpenError::Device(errno) => OpenErrorKind::Device { errno },
            engine::OpenError::MapMemory { needed } => OpenErrorKind::MapMemory { needed },
            engine::OpenError::Memory { needed } => {
                let refused = format!("{} of memory were asked for, and refused", Bytes(needed));
                OpenErrorKind::Resources(io::Error::new(io::ErrorKind::OutOfMemory, refused))
            }
            engine::OpenError::Padding { page_blocks, atomic_page_blocks } => {
                let bytes = |blocks| u64::from(blocks) * BLOCK_SIZE as u64;
                let page_size = (page_blocks > 1).then(|| bytes(page_blocks));
                let atomic_size = (atomic_page_blocks > 1).then(|| bytes(atomic_page_blocks));
                OpenErrorKind::Padding { page_size, atomic_size }
            }
            engine::OpenError::Growth(error) => {
                OpenErrorKind::Growth { reason: reason_not_to_grow(error) }
            }
            other => OpenErrorKind::Damaged { what: format!("{other:?}"), offset: 0 },
        }
    }
}

fn reason_not_to_grow(error: GrowthError) -> String {
    let bytes = |blocks: u64| Bytes(blocks * BLOCK_SIZE as u64);
    match error {
        GrowthError::StoreShrinks { needed } => {
            format!("the store has {} already; a store never shrinks", bytes(needed))
        }
        GrowthError::VolumeShrinks { present } => {
            format!("the volume has {} already; a volume never shrinks", bytes(present))
        }
        GrowthError::SpareTooLarge { present, limit } => format!(
            "so much spare space would leave less than the {} that the volume has, and a volume never \
             shrinks: at most {limit} % on this device",
            bytes(present)
        ),
        GrowthError::SpareTooSmall { needed } => {
            format!("so little spare space cannot be cleaned: at least {needed} %")
        }
        GrowthError::MapMemory { needed } => {
            format!(
                "so large a volume may need {} of map memory to be opened: allow as much",
                Bytes(needed)
            )
        }
        GrowthError::Layout(LayoutError::VolumeTooLarge { limit }) => format!(
            "so large a volume leaves too little spare space: at most {} on this device",
            bytes(limit)
        ),
        GrowthError::Layout(LayoutError::DeviceTooLarge) => {
            "a store has at most 16 TiB and 262144 segments".to_string()
        }
        GrowthError::Layout(LayoutError::VolumeEmpty) => {
            "the volume size must be at least 4096 bytes".to_string()
        }
        GrowthError::Layout(other) => other.to_string(),
        other => format!("there is no such store: {other:?}"),
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.kind)
    }
}

fn not_padded(page_size: Option<u64>, atomic_size: Option<u64>) -> String {
    let Some(page_size) = page_size.map(Bytes) else {
        return "the store knows no page size of the flash below, so there are no pages to be padded: \
                open it without that; only `coulter create --page-size` gives a store one"
            .to_owned();
    };
    let says = match atomic_size.map(Bytes) {
        None => "does not say that it writes pages whole or not at all".to_owned(),
        Some(size) => format!("says that it writes only {size} whole or not at all"),
    };
    format!(
        "pages of {page_size} cannot be padded here: if the power goes while one is written, what \
         else lies there could be lost. The device {says}: open the store without padding"
    )
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            OpenErrorKind::Resources(source) => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_format::Pba;

    #[test]
    fn a_lost_superblock_is_told_in_words() {
        let kind = OpenErrorKind::of(engine::OpenError::SuperblockLost { generation: 7 });
        let text = kind.to_string();
        assert!(text.contains("after generation 7") && !text.contains("SuperblockLost"), "{text}");
    }

    #[test]
    fn why_pages_are_not_padded_is_told_in_words() {
        let text = |page_blocks, atomic_page_blocks| {
            let error = engine::OpenError::Padding { page_blocks, atomic_page_blocks };
            OpenErrorKind::of(error).to_string()
        };
        assert!(text(1, 4).contains("knows no page size"), "{}", text(1, 4));
        let unsaid = text(4, 1);
        assert!(unsaid.contains("pages of 16 KiB") && unsaid.contains("does not say"), "{unsaid}");
        assert!(text(4, 2).contains("only 8 KiB whole"), "{}", text(4, 2));
    }

    #[test]
    fn a_checkpoint_of_a_version_that_was_given_up_is_refused_by_its_number() {
        let (structure, reason) = (Structure::Checkpoint, Reason::Version(3));
        let corrupt = Corrupt { structure, reason };
        let kind = OpenErrorKind::of(engine::OpenError::Damaged { corrupt, pba: Pba(9) });
        let text = kind.to_string();
        assert!(text.contains("of version 3") && text.contains("that wrote it"), "{text}");
    }
}
