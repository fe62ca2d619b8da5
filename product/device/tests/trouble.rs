//! Files and disks that change or fill up beneath a device, and discards that must be seen below.

mod common;

use common::privileged::{LoopDisk, Mount, with_private_mounts};
use common::{Scratch, open_as, uring};
use coulter_device::conformance::{self, Access, SIZE_MIN};
use coulter_device::{
    AlignedMemory, Command, Device, DeviceErrorKind, Engine, OpenError, OpenOptions, Wait,
    blocking, open_path,
};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn engines() -> [Engine; 2] {
    [uring(), Engine::Threads]
}

fn by(engine: Engine, direct: bool) -> OpenOptions {
    OpenOptions { engine, direct, ..OpenOptions::default() }
}

fn filled(length: u64, byte: u8) -> AlignedMemory {
    let mut memory = AlignedMemory::zeroed(length as usize);
    memory.fill(byte);
    memory
}

#[test]
fn a_file_that_was_truncated_gives_errors_and_no_zeros() {
    for (engine, direct) in engines().into_iter().zip([true, false]).chain([(uring(), false)]) {
        let file = Scratch::new().file("store", MIB);
        let mut device = open_path(&file.path, &by(engine, direct)).expect("nothing has it open");
        blocking::write(&mut device, 0, &mut filled(MIB, 1)).expect("there is room");
        // In the middle of a sector.
        let length = MIB / 2 + 700;
        fs::File::options()
            .write(true)
            .open(&file.path)
            .and_then(|file| file.set_len(length))
            .expect("the file is ours");
        let mut memory = AlignedMemory::zeroed(MIB as usize);
        let error = blocking::read(&mut device, 0, &mut memory).expect_err("half is missing");
        assert_eq!(error.kind, DeviceErrorKind::ShortRead, "{engine:?}, direct: {direct}");
        assert_eq!(error.errno, libc::EIO);
        let mut sector = AlignedMemory::zeroed(4096);
        let error = blocking::read(&mut device, MIB / 2 + 4096, &mut sector).expect_err("gone");
        assert_eq!(error.kind, DeviceErrorKind::ShortRead);
        blocking::read(&mut device, MIB / 2 - 4096, &mut sector).expect("what is left is read");
        assert!(sector.iter().all(|byte| *byte == 1));
    }
}

#[test]
fn a_full_disk_beneath_a_sparse_file_is_told_as_such() {
    with_private_mounts("a full disk", || {
        for (engine, direct) in engines().into_iter().flat_map(|is| [(is, true), (is, false)]) {
            let scratch = Scratch::new();
            let place = scratch.path("mount");
            let _small = Mount::new("none", &place, "tmpfs", "size=1m");
            full_disk(&place, engine, direct);
            let disk = LoopDisk::new(&scratch.file("disk", 16 * MIB).path, 512, false);
            let mkfs = std::process::Command::new("mkfs.ext4").arg("-q").arg(&disk.path).status();
            assert!(mkfs.expect("mkfs.ext4 runs").success());
            let _ext4 = Mount::new(disk.path.to_str().expect("a plain path"), &place, "ext4", "");
            full_disk(&place, engine, direct);
        }
    });
}

fn full_disk(place: &Path, engine: Engine, direct: bool) {
    let path = place.join("store");
    fs::File::create(&path).and_then(|file| file.set_len(64 * MIB)).expect("a sparse file");
    let mut device = open_path(&path, &by(engine, direct)).expect("nothing has it open");
    blocking::write(&mut device, 0, &mut filled(512 << 10, 1)).expect("there is room");
    blocking::flush(&mut device).expect("what was written can be made durable");
    // As one large write, which is taken in part, and then as small ones.
    let error = blocking::write(&mut device, MIB, &mut filled(32 * MIB, 2)).expect_err("no room");
    assert_eq!((error.kind, error.errno), (DeviceErrorKind::NoSpace, libc::ENOSPC));
    let error = (0..)
        .find_map(|n| blocking::write(&mut device, 40 * MIB + n * 4096, &mut filled(4096, 3)).err())
        .expect("the end of the room is found");
    assert_eq!((error.kind, error.errno), (DeviceErrorKind::NoSpace, libc::ENOSPC));
    let mut memory = AlignedMemory::zeroed(512 << 10);
    blocking::read(&mut device, 0, &mut memory).expect("what was written before is there");
    assert!(memory.iter().all(|byte| *byte == 1));
    blocking::discard(&mut device, MIB, 63 * MIB).expect("room can be given back");
    blocking::write(&mut device, MIB, &mut filled(64 << 10, 4)).expect("there is room again");
}

#[test]
fn a_discard_gives_room_back_to_the_file_system() {
    for engine in engines() {
        let file = Scratch::new().file("store", 8 * MIB);
        let stored = || fs::metadata(&file.path).expect("it is there").blocks() * 512;
        let mut device = open_path(&file.path, &by(engine, true)).expect("nothing has it open");
        if !device.properties().discard {
            println!("skipped, for this file system cannot punch holes");
            return;
        }
        blocking::write(&mut device, 0, &mut filled(8 * MIB, 1)).expect("there is room");
        blocking::flush(&mut device).expect("it can be made durable");
        assert!(stored() >= 8 * MIB);
        blocking::discard(&mut device, MIB, 6 * MIB).expect("room can be given back");
        blocking::flush(&mut device).expect("it can be made durable");
        assert!(stored() < 3 * MIB, "{engine:?}: {} bytes are left", stored());
        assert_eq!(fs::metadata(&file.path).expect("it is there").len(), 8 * MIB);
    }
}

#[test]
fn a_discard_passes_through_a_disk() {
    with_private_mounts("discards of a disk", || {
        for engine in engines() {
            let file = Scratch::new().file("disk", 8 * MIB);
            let stored = || fs::metadata(&file.path).expect("it is there").blocks() * 512;
            let disk = LoopDisk::new(&file.path, 512, false);
            let mut device = open_path(&disk.path, &by(engine, true)).expect("it is free");
            assert!(device.properties().discard);
            blocking::write(&mut device, 0, &mut filled(8 * MIB, 1)).expect("there is room");
            blocking::flush(&mut device).expect("it can be made durable");
            assert!(stored() >= 8 * MIB);
            blocking::discard(&mut device, MIB, 6 * MIB).expect("room can be given back");
            blocking::flush(&mut device).expect("it can be made durable");
            assert!(stored() < 3 * MIB, "{engine:?}: {} bytes are left", stored());
            assert!(device.properties().discard, "no fallback was needed");
        }
    });
}

#[test]
fn disks_conform() {
    with_private_mounts("disks", || {
        for (engine, block_size) in [(uring(), 512), (Engine::Threads, 4096), (uring(), 4096)] {
            println!("disk with blocks of {block_size} bytes by {engine:?}");
            conformance::run_all(&|| {
                let file = Scratch::new().file("disk", SIZE_MIN);
                let disk = LoopDisk::new(&file.path, block_size, false);
                let options = by(engine, true);
                Box::new(move |access: Access| -> Result<Box<dyn Device>, OpenError> {
                    let (disk, _file) = (&disk, &file);
                    let device = open_as(&disk.path, &options, access)?;
                    assert_eq!(device.properties().alignment, u64::from(block_size));
                    Ok(device)
                })
            });
        }
    });
}

/// Lets the kernel answer this thread as when memory is short for a moment (`EAGAIN`) whenever it hands
/// commands to a ring without sleeping. The thread cannot be rid of it.
fn refuse_submission() -> io::Result<()> {
    let load = |field: usize| (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, field as u32);
    // If equal, on with the next but `yes`, else with the next but `no`.
    let equal = |value: u32, yes, no| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value);
    let answer = |value: u32| (libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    let argument =
        |index: usize| std::mem::offset_of!(libc::seccomp_data, args) + 8 * index + low_half;
    let program = [
        load(std::mem::offset_of!(libc::seccomp_data, nr)),
        equal(libc::SYS_io_uring_enter as u32, 0, 5),
        load(argument(1)),
        equal(0, 3, 0),
        // Answers that are waited for.
        load(argument(2)),
        equal(0, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let mut program =
        program.map(|(code, jt, jf, k)| libc::sock_filter { code: code as u16, jt, jf, k });
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the calls read the filter before they return.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
    };
    if set { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn whoever_sleeps_elsewhere_comes_back_to_what_the_kernel_did_not_take() {
    let file = Scratch::new().file("store", MIB);
    let sleeper = thread::spawn(move || {
        let mut device = open_path(&file.path, &by(uring(), true)).expect("nothing has it open");
        let mut completions = Vec::new();
        device.poll(&mut completions, Wait::No).expect("the ring is fine");
        if let Err(error) = refuse_submission() {
            println!("SKIPPED: this system has no filters of system calls: {error}");
            return;
        }
        let mut memory = AlignedMemory::zeroed(4096);
        let read = Command::read(1, 0, 4096, memory.as_mut_pointer());
        // SAFETY: the memory is there until the completion was taken.
        unsafe { device.submit(read) };
        device.poll(&mut completions, Wait::No).expect("memory is short for a moment only");
        let call = device.arm().expect("a descriptor is left").as_raw_fd();
        let mut call = libc::pollfd { fd: call, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor is named, which is open.
        let ready = unsafe { libc::poll(&mut call, 1, 5000) };
        // This sleep hands over what is queued, so that the device can be dropped.
        let nap = Wait::For(Duration::from_secs(5));
        device.poll(&mut completions, nap).expect("the ring is fine");
        assert_eq!(completions.len(), 1, "the read has ended");
        assert_eq!(ready, 1, "the read would have waited for another command");
    });
    sleeper.join().expect("the checks hold");
}
