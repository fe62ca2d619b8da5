//! Goal: no signature in the table is misplaced. Method: every row against an image that holds
//! only its magic, and the real tools that write the formats wherever they are installed.

use super::*;
use std::io::Write;
use std::process::{Command, Stdio};
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;
const EXT: &str = "an ext2, ext3 or ext4 file system";

fn image(size: u64) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file can be made");
    file.as_file().set_len(size).expect("a sparse file can be extended");
    file
}

fn kinds(file: &NamedTempFile) -> Vec<&'static str> {
    let size = file.as_file().metadata().expect("the file is there").len();
    let found = detect(file.as_file(), size).expect("the file can be read");
    found.into_iter().map(|signature| signature.what).collect()
}

#[test]
fn every_row_is_found_where_the_table_puts_it_and_is_gone_once_erased() {
    for row in ROWS {
        let file = image(5 * MIB + 512);
        let offset = row.place.offset(5 * MIB + 512).expect("the image is large enough");
        file.as_file().write_all_at(row.magic, offset).expect("the magic can be written");
        if row.plausible.is_some() {
            continue;
        }
        let found = detect(file.as_file(), 5 * MIB + 512).expect("the image can be read");
        assert!(found.iter().any(|s| s.what == row.what), "{} is not found", row.what);
        erase(file.as_file(), &found).expect("the image can be written");
        assert_eq!(kinds(&file), Vec::<&str>::new(), "{} survives erasure", row.what);
    }
}

#[test]
fn zeros_and_random_bytes_carry_no_signature() {
    let file = image(4 * MIB);
    assert_eq!(kinds(&file), Vec::<&str>::new());
    let mut noise = vec![0; 4 * MIB as usize];
    coulter_workload::Random::new(1).fill(&mut noise);
    file.as_file().write_all_at(&noise, 0).expect("the noise can be written");
    assert_eq!(kinds(&file), Vec::<&str>::new());
}

#[test]
fn any_byte_within_a_mebibyte_of_an_end_is_seen() {
    let size = 5 * MIB + 77;
    let first = |file: &NamedTempFile| detect_anything(file.as_file(), size).expect("readable").1;
    assert_eq!(first(&image(size)), None);
    for at in [0, 1, MIB - 1, size - MIB, size - 1] {
        let file = image(size);
        file.as_file().write_all_at(b"x", at).expect("it is writable");
        assert_eq!(first(&file), Some(at));
    }
    // Further inside is not looked at: what people keep begins or ends with something.
    let file = image(size);
    file.as_file().write_all_at(b"x", MIB).expect("it is writable");
    assert_eq!(first(&file), None);
}

#[test]
fn targets_too_short_for_a_signature_are_not_read_out_of_range() {
    for size in [0, 1, 7, 8, 511, 512, 4095, 4096, 65_535, 65_536, MIB - 1, MIB + 1] {
        assert_eq!(kinds(&image(size)), Vec::<&str>::new(), "{size} bytes");
    }
}

/// A tool that writes a format; `{}` stands for the image, or for a source where it needs one.
struct Maker {
    command: &'static [&'static str],
    size: u64,
    expected: &'static str,
}

const fn maker(command: &'static [&'static str], size: u64, expected: &'static str) -> Maker {
    Maker { command, size, expected }
}

const MAKERS: &[Maker] = &[
    maker(&["mkfs.ext2", "-q", "-F", "{}"], 16 * MIB, EXT),
    maker(&["mkfs.ext3", "-q", "-F", "{}"], 16 * MIB, EXT),
    maker(&["mkfs.ext4", "-q", "-F", "{}"], 16 * MIB, EXT),
    maker(&["mkfs.xfs", "-q", "-f", "{}"], 320 * MIB, "an XFS file system"),
    maker(&["mkfs.btrfs", "-q", "-f", "{}"], 128 * MIB, "a Btrfs file system"),
    maker(&["mkfs.f2fs", "-q", "-f", "{}"], 128 * MIB, "an F2FS file system"),
    maker(&["mkfs.nilfs2", "-q", "{}"], 160 * MIB, "a NILFS2 file system"),
    maker(&["mkfs.jfs", "-q", "{}"], 32 * MIB, "a JFS file system"),
    maker(&["mkfs.reiserfs", "-q", "-ff", "{}"], 64 * MIB, "a ReiserFS file system"),
    maker(&["mkntfs", "-q", "-F", "{}"], 16 * MIB, "an NTFS file system"),
    maker(&["mkfs.exfat", "{}"], 16 * MIB, "an exFAT file system"),
    maker(&["mkfs.vfat", "-F", "12", "{}"], 2 * MIB, "a FAT file system"),
    maker(&["mkfs.vfat", "-F", "16", "{}"], 32 * MIB, "a FAT file system"),
    maker(&["mkfs.vfat", "-F", "32", "{}"], 64 * MIB, "a FAT file system"),
    maker(&["mkfs.minix", "-1", "{}"], 16 * MIB, "a Minix file system"),
    maker(&["mkfs.minix", "-1", "-n", "14", "{}"], 16 * MIB, "a Minix file system"),
    maker(&["mkfs.minix", "-2", "{}"], 16 * MIB, "a Minix file system"),
    maker(&["mkfs.minix", "-2", "-n", "14", "{}"], 16 * MIB, "a Minix file system"),
    maker(&["mkfs.minix", "-3", "{}"], 16 * MIB, "a Minix file system"),
    maker(&["mkfs.bfs", "{}"], 16 * MIB, "a BFS file system"),
    maker(&["mkudffs", "{}"], 16 * MIB, "a UDF file system"),
    maker(&["mkswap", "{}"], 16 * MIB, "swap space"),
    maker(&["mkswap", "-p", "16384", "{}"], 16 * MIB, "swap space"),
    maker(&["sh", "-c", "echo label: gpt | sfdisk -q $0", "{}"], 16 * MIB, "a GPT partition table"),
    maker(
        &["sh", "-c", "echo label: dos | sfdisk -q $0", "{}"],
        16 * MIB,
        "an MBR partition table",
    ),
    maker(&["sgdisk", "-o", "{}"], 16 * MIB, "a GPT partition table"),
    maker(&["make-bcache", "-B", "{}"], 16 * MIB, "a bcache device"),
    maker(&["qemu-img", "create", "-q", "-f", "qcow2", "{}", "16M"], MIB, "a qcow2 disk image"),
    maker(&["mksquashfs", "/etc/apt", "{}", "-noappend", "-quiet"], MIB, "a SquashFS file system"),
    maker(&["mkfs.erofs", "-d0", "{}", "/etc/apt"], MIB, "an EROFS file system"),
    maker(&["genisoimage", "-quiet", "-o", "{}", "/etc/apt"], MIB, "an ISO 9660 file system"),
];

#[test]
fn images_made_by_the_real_tools_are_recognised() {
    let mut recognised = 0;
    for maker in MAKERS {
        let file = image(maker.size);
        if !run(maker.command, &file) {
            let _ = writeln!(
                io::stderr(),
                "\nSKIPPED: {} is not installed or refused",
                maker.command[0]
            );
            continue;
        }
        let found = kinds(&file);
        assert!(found.contains(&maker.expected), "{:?} gave {found:?}", maker.command);
        recognised += 1;
    }
    eprintln!("{recognised} of {} formats were made and recognised", MAKERS.len());
}

#[test]
fn luks_headers_are_recognised() {
    for (version, copies) in [("luks1", 1), ("luks2", 2)] {
        let file = image(32 * MIB);
        let key = image(64);
        let path = key.path().to_str().expect("a temporary path is text");
        let command = ["cryptsetup", "-q", "luksFormat", "--type", version, "--pbkdf", "pbkdf2"]
            .map(str::to_owned);
        let rest = ["--pbkdf-force-iterations", "1000", "{}", path].map(str::to_owned);
        let all: Vec<String> = command.into_iter().chain(rest).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if !run(&all, &file) {
            let _ = writeln!(
                io::stderr(),
                "\nSKIPPED: cryptsetup is not installed or refused {version}"
            );
            continue;
        }
        assert_eq!(kinds(&file), vec!["LUKS encrypted data"; copies], "{version}");
    }
}

#[test]
fn raid_members_are_recognised_in_every_metadata_version() {
    // mdadm writes only to block devices, so the superblocks are put where its versions put them.
    const SIZE: u64 = 64 * MIB + 12 * 512;
    let sectors = SIZE / 512;
    let places = [
        ("1.1", 0, &b"\xfc\x4e\x2b\xa9\x01\0\0\0"[..]),
        ("1.2", 4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
        ("1.0", ((sectors - 16) & !7) * 512, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
        ("0.90", (SIZE & !0xffff) - 0x1_0000, b"\xfc\x4e\x2b\xa9\0\0\0\0"),
    ];
    for (version, offset, magic) in places {
        let file = image(SIZE);
        file.as_file().write_all_at(magic, offset).expect("the magic can be written");
        assert_eq!(kinds(&file), ["a member of a Linux RAID (md) array"], "metadata {version}");
    }
}

fn run(command: &[&str], file: &NamedTempFile) -> bool {
    let path = file.path().to_str().expect("a temporary path is text");
    let arguments = command[1..].iter().map(|part| if *part == "{}" { path } else { part });
    let sbin = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let status = Command::new(command[0])
        .args(arguments)
        .env("PATH", sbin)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
