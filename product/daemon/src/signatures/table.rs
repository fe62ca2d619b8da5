//! The table of signatures: one row per magic, in the order in which they are reported.
//!
//! Sources: the on-disk format documentation of each format and the offsets that `wipefs` reports
//! for it. Rows whose magic is short carry a check of their surroundings, so that random data is
//! not taken for a file system once in 65,536 times.

use super::{COULTER_FILES, COULTER_OVERLAY, Ends, Signature};

/// Where a magic lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Bytes from the start.
    Start(u64),
    /// Bytes before the end.
    End(u64),
    /// `back` bytes before the end, both ends of that distance rounded down to `alignment`.
    EndAligned {
        /// Bytes.
        back: u64,
        /// Bytes.
        alignment: u64,
    },
}

/// One row of the table.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) mount_type: Option<&'static str>,
    pub(crate) place: Place,
    pub(crate) magic: &'static [u8],
    pub(crate) plausible: Option<fn(&Ends) -> bool>,
}

impl Row {
    const fn checked(mut self, plausible: fn(&Ends) -> bool) -> Row {
        self.plausible = Some(plausible);
        self
    }
}

/// A file system that the kernel may mount from the volume.
const fn mountable(
    what: &'static str,
    mount_type: &'static str,
    offset: u64,
    magic: &'static [u8],
) -> Row {
    let place = Place::Start(offset);
    Row { what, mount_type: Some(mount_type), place, magic, plausible: None }
}

const fn start(what: &'static str, offset: u64, magic: &'static [u8]) -> Row {
    Row { what, mount_type: None, place: Place::Start(offset), magic, plausible: None }
}

const fn end(what: &'static str, place: Place, magic: &'static [u8]) -> Row {
    Row { what, mount_type: None, place, magic, plausible: None }
}

const GPT: &str = "a GPT partition table";
const LVM: &str = "an LVM2 physical volume";
const SWAP: &str = "swap space";
const HIBERNATION: &str = "a hibernation image";
const MD: &str = "a member of a Linux RAID (md) array";
const LUKS: &str = "LUKS encrypted data";
const EXT: &str = "an ext2, ext3 or ext4 file system";
const FAT: &str = "a FAT file system";
const REISER: &str = "a ReiserFS file system";
const UFS: &str = "a UFS file system";
const MINIX: &str = "a Minix file system";

pub(super) const ROWS: &[Row] = &[
    start(super::COULTER, 0, b"COULTER\0"),
    // File systems of Linux.
    mountable(EXT, "ext4", 0x438, b"\x53\xef").checked(ext_is_plausible),
    mountable("an XFS file system", "xfs", 0, b"XFSB"),
    mountable("a Btrfs file system", "btrfs", 0x1_0040, b"_BHRfS_M"),
    mountable("an F2FS file system", "f2fs", 0x400, b"\x10\x20\xf5\xf2"),
    mountable(
        "a bcachefs file system",
        "bcachefs",
        0x1018,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    mountable("a NILFS2 file system", "nilfs2", 0x406, b"\x34\x34").checked(nilfs_is_plausible),
    mountable("an EROFS file system", "erofs", 0x400, b"\xe2\xe1\xf5\xe0"),
    mountable("a SquashFS file system", "squashfs", 0, b"hsqs"),
    mountable("a JFS file system", "jfs", 0x8000, b"JFS1"),
    start(REISER, 0x1_0034, b"ReIsErFs"),
    start(REISER, 0x1_0034, b"ReIsEr2Fs"),
    start(REISER, 0x1_0034, b"ReIsEr3Fs"),
    start("an OCFS2 file system", 0x400, b"OCFSV2"),
    start("an OCFS2 file system", 0x800, b"OCFSV2"),
    start("an OCFS2 file system", 0x1000, b"OCFSV2"),
    start("an OCFS2 file system", 0x2000, b"OCFSV2"),
    start("a GFS2 file system", 0x1_0000, b"\x01\x16\x19\x70\x00\x00\x00\x01"),
    start("a cramfs file system", 0, b"\x45\x3d\xcd\x28"),
    start("a romfs file system", 0, b"-rom1fs-"),
    // Versions 1 and 2, each with names of 14 or of 30 bytes, and version 3.
    mountable(MINIX, "minix", 0x410, b"\x7f\x13").checked(minix_is_plausible),
    mountable(MINIX, "minix", 0x410, b"\x8f\x13").checked(minix_is_plausible),
    mountable(MINIX, "minix", 0x410, b"\x68\x24").checked(minix_is_plausible),
    mountable(MINIX, "minix", 0x410, b"\x78\x24").checked(minix_is_plausible),
    mountable(MINIX, "minix", 0x418, b"\x5a\x4d").checked(minix_3_is_plausible),
    mountable("a BFS file system", "bfs", 0, b"\xce\xfa\xad\x1b"),
    // File systems of other systems.
    mountable("an NTFS file system", "ntfs3", 3, b"NTFS    "),
    mountable("an exFAT file system", "exfat", 3, b"EXFAT   "),
    mountable(FAT, "vfat", 0x52, b"FAT32   "),
    mountable(FAT, "vfat", 0x36, b"FAT16   "),
    mountable(FAT, "vfat", 0x36, b"FAT12   "),
    start("a BitLocker volume", 3, b"-FVE-FS-"),
    start("an APFS container", 0x20, b"NXSB"),
    start("an HFS+ file system", 0x400, b"H+\x00\x04"),
    start("an HFS+ file system", 0x400, b"HX\x00\x05"),
    start(UFS, 0x255c, b"\x54\x19\x01\x00"),
    start(UFS, 0x255c, b"\x19\x01\x54\x19"),
    start(UFS, 0x1_055c, b"\x54\x19\x01\x00"),
    start(UFS, 0x1_055c, b"\x19\x01\x54\x19"),
    start("an ISO 9660 file system", 0x8001, b"CD001"),
    start("a UDF file system", 0x8001, b"BEA01"),
    // Swap: the mark lies at the end of the first page, whatever its size.
    start(SWAP, 0xff6, b"SWAPSPACE2"),
    start(SWAP, 0xff6, b"SWAP-SPACE"),
    start(SWAP, 0x1ff6, b"SWAPSPACE2"),
    start(SWAP, 0x3ff6, b"SWAPSPACE2"),
    start(SWAP, 0x7ff6, b"SWAPSPACE2"),
    start(SWAP, 0xfff6, b"SWAPSPACE2"),
    start(HIBERNATION, 0xff6, b"S1SUSPEND\0"),
    start(HIBERNATION, 0xff6, b"S2SUSPEND\0"),
    start(HIBERNATION, 0xff6, b"ULSUSPEND\0"),
    start(HIBERNATION, 0xff6, b"LINHIB0001"),
    // Layers under file systems.
    start(LUKS, 0, b"LUKS\xba\xbe"),
    start(LUKS, 0x4000, b"SKUL\xba\xbe"),
    start(LVM, 0x018, b"LVM2 001"),
    start(LVM, 0x218, b"LVM2 001"),
    start(LVM, 0x418, b"LVM2 001"),
    start(LVM, 0x618, b"LVM2 001"),
    start(MD, 0, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00"),
    start(MD, 0x1000, b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00"),
    end(
        MD,
        Place::EndAligned { back: 0x2000, alignment: 0x1000 },
        b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00",
    ),
    end(MD, Place::EndAligned { back: 0x1_0000, alignment: 0x1_0000 }, b"\xfc\x4e\x2b\xa9"),
    end("a member of an Intel RAID array", Place::End(0x400), b"Intel Raid ISM Cfg Sig. "),
    end("a member of a DDF RAID array", Place::End(0x200), b"\xde\x11\xde\x11"),
    start(
        "a bcache device",
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    start("a dm-vdo volume", 0, b"dmvdo001"),
    start("a dm-integrity device", 0, b"integrt\0"),
    start("a dm-verity hash device", 0, b"verity\0\0"),
    start("a device-mapper snapshot store", 0, b"SnAp\x01\x00\x00\x00"),
    start("a Stratis pool member", 0x204, b"!Stra0tis\x86\xff\x02^\x41rh"),
    start("a Stratis pool member", 0x1204, b"!Stra0tis\x86\xff\x02^\x41rh"),
    start("a Ceph BlueStore device", 0, b"bluestore block device"),
    // Partition tables come late: a hybrid image has one as well as a file system.
    start(GPT, 0x200, b"EFI PART"),
    start(GPT, 0x1000, b"EFI PART"),
    end(GPT, Place::End(0x200), b"EFI PART"),
    end(GPT, Place::End(0x1000), b"EFI PART"),
    start("an MBR partition table", 0x1fe, b"\x55\xaa").checked(mbr_is_plausible),
    // Files that somebody named by mistake.
    start("a qcow2 disk image", 0, b"QFI\xfb"),
    start("a VMDK disk image", 0, b"KDMV"),
    start("a VHDX disk image", 0, b"vhdxfile"),
    start("a VDI disk image", 0x40, b"\x7f\x10\xda\xbe"),
    start("a SQLite database", 0, b"SQLite format 3\0"),
    start("a ZIP archive", 0, b"PK\x03\x04"),
    start("an xz archive", 0, b"\xfd7zXZ\x00"),
    start("a Zstandard archive", 0, b"\x28\xb5\x2f\xfd"),
    start("a gzip archive", 0, b"\x1f\x8b\x08"),
    start("a tar archive", 0x101, b"ustar"),
    start("a PDF document", 0, b"%PDF-"),
    start("an ELF program", 0, b"\x7fELF"),
    start(COULTER_FILES, 0, &coulter_format::files::superblock::MAGIC),
    start(COULTER_OVERLAY, 0, &coulter_format::overlay::MAGIC),
];

/// Block size up to 64 KiB and a revision that exists.
fn ext_is_plausible(ends: &Ends) -> bool {
    ends.u32_at(0x418) <= 6 && ends.u32_at(0x44c) <= 1
}

/// Revision 2 and a superblock that says its own length, at most 1 KiB.
fn nilfs_is_plausible(ends: &Ends) -> bool {
    ends.u32_at(0x400) == 2 && ends.u32_at(0x408) & 0xffff <= 1024
}

/// Maps of inodes and of zones of some blocks, and zones of at most 1024 blocks.
fn minix_is_plausible(ends: &Ends) -> bool {
    let [inode_map, zone_map, zone_shift] =
        [0x404, 0x406, 0x40a].map(|at| ends.u32_at(at) & 0xffff);
    inode_map > 0 && zone_map > 0 && zone_shift <= 10
}

/// The same of version 3, which has more room for the number of inodes.
fn minix_3_is_plausible(ends: &Ends) -> bool {
    let [inode_map, zone_map, zone_shift] =
        [0x406, 0x408, 0x40c].map(|at| ends.u32_at(at) & 0xffff);
    inode_map > 0 && zone_map > 0 && zone_shift <= 10
}

/// Each of the four entries is either bootable or not, which boot code rarely looks like.
fn mbr_is_plausible(ends: &Ends) -> bool {
    (0..4).all(|index| {
        ends.bytes(0x1be + 16 * index, 1).is_some_and(|flag| matches!(flag[0], 0 | 0x80))
    })
}

/// ZFS keeps a ring of uberblocks from 128 to 256 KiB of each label; any of them will do. The
/// number is in the byte order of the machine that wrote it.
pub(super) fn zfs_uberblocks(ends: &Ends) -> Vec<Signature> {
    const FIRST: u64 = 128 << 10;
    const STEP: u64 = 1 << 10;
    const LITTLE: &[u8] = b"\x0c\xb1\xba\x00\x00\x00\x00\x00";
    const BIG: &[u8] = b"\x00\x00\x00\x00\x00\xba\xb1\x0c";
    let slots = (0..128).map(|index| FIRST + index * STEP);
    slots
        .filter(|offset| matches!(ends.bytes(*offset, 8), Some(LITTLE | BIG)))
        .map(|offset| Signature {
            what: "a ZFS pool member",
            mount_type: None,
            offset,
            length: LITTLE.len() as u64,
        })
        .collect()
}
