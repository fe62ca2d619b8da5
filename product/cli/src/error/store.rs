//! About making, growing and looking into stores.

use coulter_daemon::signatures::Signature;
use coulter_terminal::Size;
use coulter_terminal::{Report, fault, usage};
use std::path::PathBuf;

/// When the device below refuses.
const DISK_BELOW: &str = "look at the disk below: free space if it is full, and try again";

/// When a volume cannot be of a size.
const ANOTHER_SIZE: &str = "name another --size, or none: then it is as large as the store allows";

/// About making, growing and looking into stores.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum StoreError {
    /// Something is on the target already.
    HoldsData { path: PathBuf, signatures: Vec<Signature> },
    /// A file that is not empty, though nobody knows what it is.
    HoldsSomething { path: PathBuf, offset: u64 },
    /// A file has to be made, but how large?
    SizeNeeded { path: PathBuf },
    /// `--size` with a disk.
    SizeOfDisk { path: PathBuf },
    /// `dump --segment` of none that there is.
    NoSuchSegment { path: PathBuf, segment: u32, count: u32 },
    /// `dump` with an option for another structure.
    NoSuchPart { option: &'static str, of: &'static str, structure: &'static str },
    /// `--size` smaller than the file that is there.
    SizeShrinks { path: PathBuf, size: u64, present: u64 },
    /// `grow` to less than there is.
    Shrinks { path: PathBuf, size: u64, present: u64 },
    /// `grow` of a file that has lost its end.
    CutShort { path: PathBuf, needed: u64, present: u64 },
    /// The library refused to let a store grow.
    Grow { path: PathBuf, reason: String, is_usage: bool },
    /// Neither a regular file nor a block device.
    NotAStorePath { path: PathBuf },
    /// A path that is no text, for output that can only name text.
    PathNotInJson { path: PathBuf },
    /// The library refused to format a store.
    Create { path: PathBuf, reason: String, is_usage: bool },
    /// A check or a dump came upon something that is wrong.
    Faulty { path: PathBuf, faults: u64, warnings: u64, complete: bool },
    /// `probe` of what is no store.
    NoStore { path: PathBuf },
    /// `create --from` what no volume can be made of.
    OriginUnfit { path: PathBuf, reason: &'static str },
    /// `salvage` to where something is.
    ImageExists { path: PathBuf, is_disk: bool },
    /// `salvage` of a store to itself.
    ImageIsStore { path: PathBuf },
    /// `salvage` to neither a file nor a disk.
    NoImage { path: PathBuf },
    /// `salvage` to a disk that is smaller than the volume.
    ImageTooSmall { path: PathBuf, size: u64, present: u64 },
    /// `salvage` of what is no store any more.
    NothingToSalvage { path: PathBuf, findings: Vec<String> },
    /// What `salvage` took out is not all, or may not be the newest.
    NotAllSalvaged {
        path: PathBuf,
        in_doubt: u64,
        unknown: u64,
        lost: u64,
        records_missing: u64,
        stale_max: u64,
    },
}

impl StoreError {
    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            StoreError::HoldsData { path, signatures } => {
                let found: Vec<String> = signatures
                    .iter()
                    .take(3)
                    .map(|found| format!("{} (at byte {})", found.what, found.offset))
                    .collect();
                fault(format!("will not format {}", path.display()))
                    .why(format!("it holds {}", found.join(", ")))
                    .help("if that may be destroyed, add --force")
            }
            StoreError::HoldsSomething { path, offset } => fault(format!(
                "will not format {}",
                path.display()
            ))
            .why(format!("it holds data of an unknown kind (at byte {offset})"))
            .help("name a file that does not exist; or, if that may be destroyed, add --force"),
            StoreError::SizeNeeded { path } => usage(format!("cannot make {}", path.display()))
                .why("it is empty or does not exist, and no size is given")
                .help("add the size of the volume, for instance --size 10G"),
            StoreError::SizeOfDisk { path } => usage(format!("cannot resize {}", path.display()))
                .why("--store-size is for files; a disk is used whole")
                .help("leave --store-size away; --size makes the volume smaller"),
            StoreError::NoSuchSegment { path, segment, count } => {
                usage(format!("cannot show segment {segment} of {}", path.display()))
                    .why(format!("its segments are 0 to {}", count.saturating_sub(1)))
            }
            StoreError::NoSuchPart { option, of, structure } => {
                usage(format!("cannot dump a part of the {structure} by {option}"))
                    .why(format!("{option} is for the {of}"))
                    .help(format!("leave {option} away, or dump the {of}"))
            }
            StoreError::SizeShrinks { path, size, present } => {
                usage(format!("will not shrink {} to {}", path.display(), Size(*size)))
                    .why(format!("it is {} long", Size(*present)))
                    .help("leave --store-size away, or remove the file first")
            }
            StoreError::Shrinks { path, size, present } => {
                usage(format!("will not shrink {} to {}", path.display(), Size(*size)))
                    .why(format!("it is {} long; a store never shrinks", Size(*present)))
                    .help("name a larger size, or make a smaller store and copy what is in it")
            }
            StoreError::CutShort { path, needed, present } => fault(format!(
                "cannot grow {}",
                path.display()
            ))
            .why(format!(
                "it has {} but the store has {}: it was truncated, or copied in part",
                Size(*present),
                Size(*needed)
            ))
            .help(
                "copy it once more from where it is whole; if that is nowhere, `coulter salvage` \
                         takes out what is left",
            ),
            StoreError::Grow { path, reason, is_usage } => {
                let what = format!("cannot grow {}", path.display());
                let report = if *is_usage { usage(what).help(ANOTHER_SIZE) } else { fault(what) };
                report.why(reason.as_str())
            }
            StoreError::NotAStorePath { path } => {
                usage(format!("cannot keep a store in {}", path.display()))
                    .why("it is neither a regular file nor a block device")
                    .help("name a file or a disk")
            }
            StoreError::PathNotInJson { path } => {
                usage(format!("cannot print as JSON what is made of {}", path.display()))
                    .why("its path is not UTF-8")
                    .help("do without --json, or choose another name")
            }
            StoreError::Create { path, reason, is_usage } => {
                let what = format!("cannot format {}", path.display());
                let report = if *is_usage { usage(what) } else { fault(what).help(DISK_BELOW) };
                report.why(reason.as_str())
            }
            StoreError::Faulty { path, faults, warnings, complete } => {
                let report = fault(format!("{} is not sound", path.display())).why(format!(
                    "{}, {}",
                    counted(*faults, "fault"),
                    counted(*warnings, "warning")
                ));
                if *complete {
                    return report;
                }
                report.help(
                    "not everything could be followed to its end: there may be more; if it cannot be \
                     attached, `coulter salvage` takes out what is left",
                )
            }
            StoreError::NoStore { path } => usage(format!("{} is no store", path.display())),
            StoreError::OriginUnfit { path, reason } => {
                usage(format!("cannot bring in {}", path.display()))
                    .why(*reason)
                    .help("name an image, or a disk that nobody uses; --size may be left away")
            }
            StoreError::ImageExists { path, is_disk } => {
                let what = if *is_disk { "it is a disk" } else { "there is something already" };
                fault(format!("will not write to {}", path.display()))
                    .why(what)
                    .help("name a file that does not exist; or, if what is there may be destroyed, add --force")
            }
            StoreError::ImageIsStore { path } => {
                usage(format!("cannot take anything out to {}", path.display()))
                    .why("that is the store itself")
                    .help("name another file or disk")
            }
            StoreError::NoImage { path } => usage(format!("cannot write to {}", path.display()))
                .why("it is neither a regular file nor a block device")
                .help("name a file that does not exist"),
            StoreError::ImageTooSmall { path, size, present } => {
                fault(format!("cannot write to {}", path.display()))
                    .why(format!("it has {}, and the volume {}", Size(*present), Size(*size)))
                    .help("name a larger disk, or a file")
            }
            StoreError::NothingToSalvage { path, findings } => {
                fault(format!("cannot take anything out of {}", path.display()))
                    .why(findings.join("; "))
                    .help("without a superblock nothing can be told from the other blocks")
            }
            StoreError::NotAllSalvaged {
                path,
                in_doubt,
                unknown,
                lost,
                records_missing,
                stale_max,
            } => {
                let mut why = Vec::new();
                if *lost > 0 {
                    why.push(format!("{} are lost and read as zeros", Size(*lost)));
                }
                if *in_doubt > 0 {
                    let size = Size(*in_doubt);
                    why.push(format!("{size} may be outdated, or had been discarded"));
                }
                if *unknown > 0 {
                    let size = Size(*unknown);
                    why.push(format!("of {size} nothing tells what was there: they read as zeros"));
                }
                if *records_missing > 0 {
                    why.push(format!(
                        "{records_missing} records are missing, which wrote up to {}",
                        Size(*stale_max)
                    ));
                }
                fault(format!("not all of {} is as it was", path.display()))
                    .why(why.join("; "))
                    .help(
                        "check what is in the image before it is used, for instance with `fsck -n`; --map \
                         says where each of these is",
                    )
            }
        }
    }
}

/// `1 fault`, `2 faults`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
