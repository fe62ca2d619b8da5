//! The namespace behind a block device: its character device, and what the drive says of it.

use super::placement::{self, Placement};
use crate::command::ALIGNMENT_MAX;
use crate::medium::Target;
use coulter_nvme::identify::{ControllerView, Namespace as Facts, cns, has_metadata, optional};
use coulter_nvme::opcode::{admin, io};
use coulter_nvme::{IDENTIFY_SIZE, Sqe, passthrough};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::{self, File, OpenOptions};
use std::io as system;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `NVME_IOCTL_ADMIN_CMD`: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN_COMMAND: libc::c_ulong = 0xc048_4e41;
/// `NVME_IOCTL_IO_CMD`: the same structure, for a command of an I/O queue.
const IO_COMMAND: libc::c_ulong = 0xc048_4e43;
/// Bytes of a page, the unit in which the kernel counts segments here.
const PAGE_SIZE: u64 = 4096;

/// What of a namespace its commands depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) nsid: u32,
    pub(super) block_size_log: u8,
    /// Bytes of the longest command that drive and kernel take.
    pub(super) transfer_size_max: u64,
    pub(super) volatile_cache: bool,
    pub(super) discard: bool,
    /// Where streams of writes go.
    pub(super) placement: Placement,
}

impl Shape {
    pub(super) fn block_size(&self) -> u64 {
        1 << self.block_size_log
    }
}

/// A namespace, open.
#[derive(Debug)]
pub(super) struct Namespace {
    file: File,
    shape: Shape,
}

impl Namespace {
    /// The namespace behind an open block device.
    ///
    /// # Errors
    /// Why it cannot be had, for people.
    pub(super) fn open(target: &Target) -> Result<Namespace, String> {
        let metadata = fs::metadata(target.path()).map_err(|error| error.to_string())?;
        if !metadata.file_type().is_block_device() {
            return Err(format!("{} is no block device", target.path().display()));
        }
        let number = metadata.rdev();
        let (major, minor) = (libc::major(number), libc::minor(number));
        let directory = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let name = fs::canonicalize(&directory).map_err(|error| error.to_string())?;
        let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let Some(numbers) = name.strip_prefix("nvme") else {
            return Err(format!("{} is no NVMe namespace", target.path().display()));
        };
        if directory.join("partition").exists() {
            return Err("it is a partition, and commands are for whole namespaces".to_owned());
        }
        if let Some(partition) = partition_of(&directory) {
            // The kernel keeps users of one partition apart from users of the whole; passthrough would not.
            return Err(format!("it has partitions, such as {partition}"));
        }
        let path = Path::new("/dev").join(format!("ng{numbers}"));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| format!("cannot open {}: {error}", path.display()))?;
        let shape = shape(&file, &directory)?;
        probe(&file, &shape)?;
        Ok(Namespace { file, shape })
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A partition that the kernel knows of a disk, by the directory of the disk.
fn partition_of(directory: &Path) -> Option<String> {
    let mut entries = fs::read_dir(directory).ok()?.flatten();
    let partition = entries.find(|entry| entry.path().join("partition").exists())?;
    Some(partition.file_name().to_string_lossy().into_owned())
}

fn shape(file: &File, directory: &Path) -> Result<Shape, String> {
    let attribute = |name: &str| {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let nsid = attribute("nsid").and_then(|nsid| u32::try_from(nsid).ok());
    let nsid = nsid.ok_or("the kernel does not tell its number")?;
    let controller = identify(file, 0, cns::CONTROLLER)?;
    let namespace = identify(file, nsid, cns::NAMESPACE)?;
    let kernel = attribute("queue/max_hw_sectors_kb").map(|kib| kib << 10);
    // Memory of a process lies in pages that need not be neighbours.
    let segments = attribute("queue/max_segments").map(|count| count * PAGE_SIZE);
    let mut shape = shape_of(nsid, &controller, &namespace, [kernel, segments])?;
    if ControllerView(&controller).attributes() & placement::ATTRIBUTE != 0 {
        shape.placement = placement_of(file, nsid);
    }
    Ok(shape)
}

/// What follows from what a drive says, and from the kernel's limits.
fn shape_of(
    nsid: u32,
    controller: &[u8; IDENTIFY_SIZE],
    namespace: &[u8; IDENTIFY_SIZE],
    limits: [Option<u64>; 2],
) -> Result<Shape, String> {
    let controller = ControllerView(controller);
    if has_metadata(namespace) {
        return Err("its blocks carry metadata".to_owned());
    }
    let facts = Facts::decode(namespace).ok_or("its blocks are of a size that is not used")?;
    let block_size = 1u64 << facts.block_size_log;
    if block_size > ALIGNMENT_MAX {
        return Err(format!("its blocks have {block_size} bytes, more than {ALIGNMENT_MAX}"));
    }
    let own = [controller.transfer_size_max(), Some((1 << 16) * block_size)];
    let limit = limits.into_iter().chain(own).flatten().min().unwrap_or(PAGE_SIZE);
    let transfer_size_max = (limit - limit % PAGE_SIZE).max(PAGE_SIZE);
    Ok(Shape {
        nsid,
        block_size_log: facts.block_size_log,
        transfer_size_max,
        volatile_cache: controller.has_write_cache(),
        discard: controller.optional_commands() & optional::DATASET_MANAGEMENT != 0,
        placement: Placement::default(),
    })
}

/// The handles of a namespace; none if the drive does not tell them, as when placement is switched off.
fn placement_of(file: &File, nsid: u32) -> Placement {
    let mut out = Box::new([0; placement::STATUS_SIZE]);
    let sqe = placement::ask(nsid);
    let length = placement::STATUS_SIZE as u32;
    let mut command = passthrough::encode(&sqe, out.as_mut_ptr() as u64, length, 0);
    // SAFETY: as for `identify`.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), IO_COMMAND as _, command.as_mut_ptr()) };
    if result == 0 { Placement::decode(&out[..]) } else { Placement::default() }
}

fn identify(file: &File, nsid: u32, which: u8) -> Result<Box<[u8; IDENTIFY_SIZE]>, String> {
    let mut out = Box::new([0; IDENTIFY_SIZE]);
    let sqe = Sqe::new(admin::IDENTIFY, nsid).with_dword(10, which.into());
    let mut command = passthrough::encode(&sqe, out.as_mut_ptr() as u64, IDENTIFY_SIZE as u32, 0);
    // SAFETY: the request reads and writes the 72 bytes of its structure, and writes as many bytes as that
    // says to the memory that it names, which is as long.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_COMMAND as _, command.as_mut_ptr()) };
    match result {
        0 => Ok(out),
        -1 => Err(format!("it cannot be identified: {}", system::Error::last_os_error())),
        status => Err(format!("it cannot be identified: status {status:#x}")),
    }
}

/// Reads the first block, as all later commands are done: whether kernel and drive take them.
fn probe(file: &File, shape: &Shape) -> Result<(), String> {
    let refused = |error: system::Error| format!("the kernel refuses: {error}");
    let ring = IoUring::<squeue::Entry128, cqueue::Entry32>::builder().build(1);
    let mut ring = ring.map_err(refused)?;
    let mut memory = crate::aligned::AlignedMemory::zeroed(shape.block_size() as usize);
    let sqe = Sqe::new(io::READ, shape.nsid).with_blocks(0, 1);
    let length = shape.block_size() as u32;
    let mut area = [0; 80];
    let command = passthrough::encode(&sqe, memory.as_mut_pointer() as u64, length, 0);
    area[..passthrough::COMMAND_SIZE].copy_from_slice(&command);
    let fd = types::Fd(file.as_raw_fd());
    let entry = opcode::UringCmd80::new(fd, passthrough::OPERATION_IO).cmd(area).build();
    // SAFETY: the memory lives until the answer is there.
    let pushed = unsafe { ring.submission().push(&entry) };
    assert!(pushed.is_ok(), "the ring has room for one");
    while ring.completion().is_empty() {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            // The kernel may still write there: better lost than given to others.
            Err(error) => {
                std::mem::forget(memory);
                return Err(refused(error));
            }
        }
    }
    let answer = ring.completion().next().map_or(0, |answer| answer.result());
    match passthrough::status(answer) {
        Ok(status) if status.is_success() => Ok(()),
        Ok(status) => Err(format!("the drive refuses a read: {status}")),
        Err(errno) => Err(refused(system::Error::from_raw_os_error(errno))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a drive says of itself, of its limit of a transfer and of Dataset Management.
    fn controller(transfer_log: u8, optional: u16) -> [u8; IDENTIFY_SIZE] {
        let mut bytes = [0; IDENTIFY_SIZE];
        bytes[77] = transfer_log;
        bytes[520..522].copy_from_slice(&optional.to_le_bytes());
        bytes[525] = 1;
        bytes
    }

    /// What it says of a namespace in its second format, with metadata and blocks of this size.
    fn namespace(metadata_size: u16, block_size_log: u8) -> [u8; IDENTIFY_SIZE] {
        let mut bytes = [0; IDENTIFY_SIZE];
        bytes[0] = 100;
        bytes[26] = 1;
        // A format that is not in use is of no interest.
        bytes[128..132].copy_from_slice(&[64, 0, 20, 0]);
        bytes[132..134].copy_from_slice(&metadata_size.to_le_bytes());
        bytes[134] = block_size_log;
        bytes
    }

    fn shape(metadata_size: u16, block_size_log: u8) -> Result<Shape, String> {
        let namespace = namespace(metadata_size, block_size_log);
        shape_of(3, &controller(5, optional::DATASET_MANAGEMENT), &namespace, [None; 2])
    }

    #[test]
    fn metadata_and_blocks_that_a_store_cannot_use_are_refused_with_the_reason() {
        for (metadata_size, block_size_log, reason) in [
            (8, 12, "metadata"),
            (64, 9, "metadata"),
            (1, 12, "metadata"),
            (0, 0, "of a size that is not used"),
            (0, 8, "of a size that is not used"),
            (0, 13, "8192 bytes"),
            (0, 16, "65536 bytes"),
            (0, 17, "of a size that is not used"),
            (0, 255, "of a size that is not used"),
        ] {
            let refused = shape(metadata_size, block_size_log).expect_err("it cannot be used");
            assert!(refused.contains(reason), "{metadata_size} {block_size_log}: {refused}");
        }
        let mut empty = namespace(0, 12);
        empty[0] = 0;
        assert!(shape_of(3, &controller(5, 0), &empty, [None; 2]).is_err(), "it has no blocks");
        for block_size_log in [9, 12] {
            let shape = shape(0, block_size_log).expect("it can be used");
            assert_eq!((shape.nsid, shape.block_size_log), (3, block_size_log));
            assert!(shape.discard && shape.volatile_cache);
        }
    }

    #[test]
    fn partitions_of_a_disk_are_found_where_the_kernel_lists_them() {
        let disk = std::env::temp_dir().join(format!("coulter-partitions-{}", std::process::id()));
        for other in ["queue", "holders", "slaves"] {
            fs::create_dir_all(disk.join(other)).expect("there is room");
        }
        fs::write(disk.join("nsid"), "1").expect("there is room");
        assert_eq!(partition_of(&disk), None);
        let partition = disk.join("nvme0n1p2");
        fs::create_dir(&partition).expect("there is room");
        fs::write(partition.join("partition"), "2").expect("there is room");
        assert_eq!(partition_of(&disk).as_deref(), Some("nvme0n1p2"));
        fs::remove_dir_all(&disk).expect("it is ours");
        assert_eq!(partition_of(Path::new("/nowhere")), None);
    }

    #[test]
    fn the_longest_command_is_within_every_limit_in_whole_pages() {
        let longest = |transfer_log, limits| {
            let shape = shape_of(1, &controller(transfer_log, 0), &namespace(0, 9), limits);
            shape.expect("it can be used").transfer_size_max
        };
        assert_eq!(longest(5, [None, None]), 128 << 10);
        assert_eq!(longest(5, [Some(100 << 10), None]), 100 << 10);
        assert_eq!(longest(5, [Some(127 << 10), Some(70_000)]), 68 << 10);
        assert_eq!(longest(0, [None, None]), (1 << 16) * 512, "a command counts 2^16 blocks");
        assert_eq!(longest(255, [Some(1), None]), 4096, "one page always goes");
    }

    #[test]
    fn what_the_kernel_does_not_let_be_identified_is_told() {
        // A file refuses the request, as a namespace does for a user without permission.
        let file = File::open("/dev/null").expect("it is there");
        let refused = identify(&file, 1, cns::NAMESPACE).expect_err("it is no namespace");
        assert!(refused.starts_with("it cannot be identified: "), "{refused}");
        let shape = super::shape(&file, Path::new("/nowhere")).expect_err("there is nothing");
        assert_eq!(shape, "the kernel does not tell its number");
    }
}
