//! The sequences of operations that found bugs in file systems of the kernel.
//!
//! They are those that ACE (Mohan et al., OSDI '18) is held to reach, under the names that it gives
//! them: most are tests of xfstests. A sync of one file or directory is a sync of all here. Direct
//! writes and writes through a mapping arrive as writes.

use super::ace::Op;
use coulter_files::AllocateMode;

/// A sequence: its name, what is there before, and what is done.
pub type Sequence = (&'static str, &'static [Op], &'static [Op]);

const KEEP: AllocateMode = AllocateMode::Allocate { keep_size: true };
const ZERO_KEEP: AllocateMode = AllocateMode::Zero { keep_size: true };
const PUNCH: AllocateMode = AllocateMode::Punch;
const KIB: u64 = 1024;

use Op::*;

pub const ALL: [Sequence; 28] = [
    (
        "btrfs_link_unlink",
        &[Create("foo")],
        &[Link("foo", "bar"), Sync, Unlink("bar"), Create("bar"), Sync],
    ),
    (
        "btrfs_rename_special_file",
        &[],
        &[Mknod("foo"), Sync, Rename("foo", "bar"), Link("bar", "foo"), Sync],
    ),
    (
        "new_bug1_btrfs",
        &[Create("foo")],
        &[Write("foo", 0, 16 * KIB), Sync, Falloc("foo", ZERO_KEEP, 16 * KIB, 4 * KIB), Sync],
    ),
    (
        "new_bug2_f2fs",
        &[Create("foo")],
        &[
            Write("foo", 0, 16 * KIB),
            Sync,
            Falloc("foo", ZERO_KEEP, 16 * KIB, 4 * KIB),
            Submit,
            Sync,
        ],
    ),
    ("generic_034", &[Mkdir("A")], &[Create("A/foo"), Sync, Create("A/bar"), Sync]),
    ("generic_039", &[Create("foo")], &[Link("foo", "bar"), Sync, Unlink("bar"), Sync]),
    (
        "generic_059",
        &[Create("foo")],
        &[Write("foo", 0, 16 * KIB), Sync, Falloc("foo", PUNCH, 8000, 4096), Sync],
    ),
    ("generic_066", &[Create("foo")], &[SetXattr("foo"), Sync, RemoveXattr("foo"), Sync]),
    ("generic_341", &[Mkdir("A")], &[Create("A/foo"), Sync, Rename("A", "B"), Mkdir("A"), Sync]),
    ("generic_348", &[Mkdir("A")], &[Symlink("A/bar"), Sync]),
    ("generic_376", &[Create("foo")], &[Rename("foo", "bar"), Create("foo"), Sync]),
    (
        "generic_468",
        &[Create("foo")],
        &[Write("foo", 0, 16 * KIB), Sync, Falloc("foo", KEEP, 16 * KIB, 4 * KIB), Submit, Sync],
    ),
    (
        "ext4_direct_write",
        &[Create("foo"), Create("bar")],
        &[Write("foo", 0, 16 * KIB), Write("foo", 8 * KIB, 4 * KIB), Sync],
    ),
    (
        "btrfs_inode_eexist",
        &[],
        &[Create("foo"), Sync, Write("foo", 0, 4 * KIB), Sync, Create("bar")],
    ),
    (
        "generic_041",
        &[Create("foo"), Links("foo", 3000)],
        &[Unlink("foo_0"), Link("foo", "foo_3001"), Link("foo", "foo_0"), Sync],
    ),
    (
        "generic_056",
        &[Create("foo"), Create("bar")],
        &[Write("foo", 0, 4 * KIB), Sync, Link("foo", "other"), Sync],
    ),
    (
        "generic_090",
        &[Create("foo")],
        &[
            Write("foo", 0, 4 * KIB),
            Sync,
            Link("foo", "bar"),
            Sync,
            Write("foo", 4 * KIB, 4 * KIB),
            Sync,
        ],
    ),
    (
        "generic_104",
        &[Create("foo"), Create("bar")],
        &[Link("foo", "foo1"), Link("bar", "bar1"), Sync],
    ),
    (
        "generic_106",
        &[Create("foo")],
        &[Link("foo", "bar"), Sync, Unlink("bar"), Submit, Sync, Unlink("foo"), Sync],
    ),
    (
        "generic_107",
        &[Mkdir("A"), Create("foo")],
        &[Link("foo", "A/foo"), Link("foo", "A/bar"), Sync, Unlink("A/bar"), Sync],
    ),
    (
        "generic_177",
        &[Create("foo")],
        &[
            Write("foo", 0, 32 * KIB),
            Sync,
            Falloc("foo", PUNCH, 24 * KIB, 8 * KIB),
            Falloc("foo", PUNCH, 4 * KIB, 60 * KIB),
            Sync,
        ],
    ),
    ("generic_321", &[Mkdir("A"), Create("foo")], &[Rename("foo", "A/foo"), Sync, Sync]),
    ("generic_322", &[Mkdir("A"), Create("A/foo")], &[Rename("A/foo", "A/bar"), Sync]),
    ("generic_335", &[Mkdir("A"), Create("A/foo")], &[Rename("A/foo", "foo"), Create("bar"), Sync]),
    (
        "generic_336",
        &[Mkdir("A"), Mkdir("B"), Mkdir("C"), Create("A/foo")],
        &[
            Link("A/foo", "B/foo"),
            Create("B/bar"),
            Sync,
            Unlink("B/foo"),
            Rename("B/bar", "C/bar"),
            Sync,
        ],
    ),
    (
        "generic_342",
        &[Create("foo")],
        &[
            Write("foo", 0, 4 * KIB),
            Sync,
            Rename("foo", "bar"),
            Create("foo"),
            Write("foo", 0, 4 * KIB),
            Sync,
        ],
    ),
    (
        "generic_343",
        &[Mkdir("A"), Mkdir("B"), Create("A/foo"), Create("B/foo_new")],
        &[Link("A/foo", "A/bar"), Rename("B/foo_new", "A/foo_new"), Sync],
    ),
    (
        "generic_325",
        &[Create("foo")],
        &[
            Write("foo", 0, 256 * KIB),
            Write("foo", 0, 4 * KIB),
            Write("foo", 252 * KIB, 4 * KIB),
            Sync,
            Sync,
        ],
    ),
];
