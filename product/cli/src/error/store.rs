//! About making, growing and looking into stores.

use coulter_daemon::signatures::Signature;
use coulter_terminal::{self as terminal, Report, Size, fault, usage};
use std::path::{Path, PathBuf};

/// When the device below refuses.
const DISK_BELOW: &str = "look at the disk below: free space if it is full, and try again";

/// When a volume cannot be of a size.
const ANOTHER_SIZE: &str = "name another --size, or none: then it is as large as the store allows";

/// When a check has come to an end too early.
const THERE_MAY_BE_MORE: &str = "not everything could be followed to its end: there may be more; \
    if it cannot be attached, `coulter salvage` takes out what is left";

coulter_terminal::reports! {
    /// About making, growing and looking into stores.
    pub enum StoreError {
        /// Something is on the target already.
        HoldsData { path: PathBuf, signatures: Vec<Signature> } =>
            fault("will not format {}", path.display())
            .why("it holds {}", first_of(signatures))
            .help("if that may be destroyed, add --force");
        /// A file that is not empty, though nobody knows what it is.
        HoldsSomething { path: PathBuf, offset: u64 } =>
            fault("will not format {}", path.display())
            .why("it holds data of an unknown kind (at byte {offset})")
            .help("name a file that does not exist; or, if that may be destroyed, add --force");
        /// A file has to be made, but how large?
        SizeNeeded { path: PathBuf } =>
            usage("cannot make {}", path.display())
            .why("it is empty or does not exist, and no size is given")
            .help("add the size of the volume, for instance --size 10G");
        /// `--size` with a disk.
        SizeOfDisk { path: PathBuf } =>
            usage("cannot resize {}", path.display())
            .why("--store-size is for files; a disk is used whole")
            .help("leave --store-size away; --size makes the volume smaller");
        /// `dump --segment` of none that there is.
        NoSuchSegment { path: PathBuf, segment: u32, count: u32 } =>
            usage("cannot show segment {segment} of {}", path.display())
            .why("its segments are 0 to {}", count.saturating_sub(1))
            .help("name one of these");
        /// `dump` with an option for another structure.
        NoSuchPart { option: &'static str, of: &'static str, structure: &'static str } =>
            usage("cannot dump a part of the {structure} by {option}")
            .why("{option} is for the {of}")
            .help("leave {option} away, or dump the {of}");
        /// `--size` smaller than the file that is there.
        SizeShrinks { path: PathBuf, size: u64, present: u64 } =>
            usage("will not shrink {} to {}", path.display(), Size(*size))
            .why("it is {} long", Size(*present))
            .help("leave --store-size away, or remove the file first");
        /// `grow` to less than there is.
        Shrinks { path: PathBuf, size: u64, present: u64 } =>
            usage("will not shrink {} to {}", path.display(), Size(*size))
            .why("it is {} long; a store never shrinks", Size(*present))
            .help("name a larger size, or make a smaller store and copy what is in it");
        /// `grow` of a file that has lost its end.
        CutShort { path: PathBuf, needed: u64, present: u64 } =>
            fault("cannot grow {}", path.display())
            .why("it has {} but the store has {}: it was truncated, or copied in part",
                Size(*present), Size(*needed))
            .help("copy it once more from where it is whole; if that is nowhere, `coulter salvage` \
                takes out what is left");
        /// The library refused to let a store grow.
        Grow { path: PathBuf, reason: String, is_usage: bool } =>
            by(refused("grow", path, *is_usage))
            .why("{reason}")
            .maybe_help(is_usage.then_some(ANOTHER_SIZE));
        /// Neither a regular file nor a block device.
        NotAStorePath { path: PathBuf } =>
            usage("cannot keep a store in {}", path.display())
            .why("it is neither a regular file nor a block device")
            .help("name a file or a disk");
        /// A path that is no text, for output that can only name text.
        PathNotInJson { path: PathBuf } =>
            usage("cannot print as JSON what is made of {}", path.display())
            .why("its path is not UTF-8")
            .help("do without --json, or choose another name");
        /// The space of a file cannot be reserved.
        NoRoom { path: PathBuf, size: u64, free: u64 } =>
            fault("cannot reserve the space of {}", path.display())
            .why("no space left on device: it takes {}, and {} are free", Size(*size), Size(*free))
            .help("free space on the file system below it, or ask for a smaller size");
        /// The library refused to format a store.
        Create { path: PathBuf, reason: String, is_usage: bool } =>
            by(refused("format", path, *is_usage))
            .why("{reason}")
            .maybe_help((!is_usage).then_some(DISK_BELOW));
        /// A check or a dump came upon something that is wrong.
        Faulty { path: PathBuf, faults: u64, warnings: u64, complete: bool } =>
            fault("{} is not sound", path.display())
            .why("{}, {}", counted(*faults, "fault"), counted(*warnings, "warning"))
            .maybe_help((!complete).then_some(THERE_MAY_BE_MORE));
        /// `probe` of what is no store.
        NoStore { path: PathBuf } =>
            usage("{} is no store", path.display());
        /// `create --from` what no volume can be made of.
        OriginUnfit { path: PathBuf, reason: &'static str } =>
            usage("cannot bring in {}", path.display())
            .why("{reason}")
            .help("name an image, or a disk that nobody uses; --size may be left away");
        /// `create --from` a store, not the data of its volume.
        OriginIsStore { path: PathBuf } =>
            fault("will not bring in {}", path.display())
            .why("it is a Coulter store, and not the data of its volume")
            .help("first run `coulter export {} FILE`, and name that", terminal::word(path));
        /// `salvage` to where something is.
        ImageExists { path: PathBuf, is_disk: bool } =>
            fault("will not write to {}", path.display())
            .why("{}", if *is_disk { "it is a disk" } else { "there is something already" })
            .help("name a file that does not exist; or, if what is there may be destroyed, \
                add --force");
        /// `salvage` of a store to itself.
        ImageIsStore { path: PathBuf } =>
            usage("cannot take anything out to {}", path.display())
            .why("that is the store itself")
            .help("name another file or disk");
        /// `salvage` to neither a file nor a disk.
        NoImage { path: PathBuf } =>
            usage("cannot write to {}", path.display())
            .why("it is neither a regular file nor a block device")
            .help("name a file that does not exist");
        /// `salvage` to a disk that is smaller than the volume.
        ImageTooSmall { path: PathBuf, size: u64, present: u64 } =>
            fault("cannot write to {}", path.display())
            .why("it has {}, and the volume {}", Size(*present), Size(*size))
            .help("name a larger disk, or a file");
        /// `salvage` of what is no store any more.
        NothingToSalvage { path: PathBuf, findings: Vec<String> } =>
            fault("cannot take anything out of {}", path.display())
            .why("{}", findings.join("; "))
            .help("without a superblock nothing can be told from the other blocks");
        /// What `salvage` took out is not all, or may not be the newest.
        NotAllSalvaged {
            path: PathBuf,
            in_doubt: u64,
            unknown: u64,
            lost: u64,
            records_missing: u64,
            stale_max: u64,
        } =>
            fault("not all of {} is as it was", path.display())
            .why("{}", what_is_missing(*lost, *in_doubt, *unknown, (*records_missing, *stale_max)))
            .help("check what is in the image before it is used, for instance with `fsck -n`; \
                --map says where each of these is");
    }
}

fn refused(action: &str, path: &Path, is_usage: bool) -> Report {
    let what = format!("cannot {action} {}", path.display());
    if is_usage { usage(what) } else { fault(what) }
}

fn first_of(signatures: &[Signature]) -> String {
    let told = |found: &Signature| format!("{} (at byte {})", found.what, found.offset);
    signatures.iter().take(3).map(told).collect::<Vec<_>>().join(", ")
}

fn what_is_missing(lost: u64, in_doubt: u64, unknown: u64, records: (u64, u64)) -> String {
    let (lost, in_doubt, unknown) = [lost, in_doubt, unknown].map(Size).into();
    let mut why = Vec::new();
    if lost.0 > 0 {
        why.push(format!("{lost} are lost and read as zeros"));
    }
    if in_doubt.0 > 0 {
        why.push(format!("{in_doubt} may be outdated, or had been discarded"));
    }
    if unknown.0 > 0 {
        why.push(format!("of {unknown} nothing tells what was there: they read as zeros"));
    }
    if let (missing @ 1.., stale_max) = records {
        let stale_max = Size(stale_max);
        why.push(format!("{missing} records are missing, which wrote up to {stale_max}"));
    }
    why.join("; ")
}

/// `1 fault`, `2 faults`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
