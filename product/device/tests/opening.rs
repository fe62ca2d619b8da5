//! What can go wrong when a path is opened, and what the error says.

mod common;

use common::privileged::{LoopDisk, Mount, change_mount, checked, with_private_mounts};
use common::{Scratch, open_as, uring};
use coulter_device::conformance::Access;
use coulter_device::{
    AlignedMemory, Device, Engine, LockedFile, OpenError, OpenOptions, Region, blocking, open_path,
};
use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{self, Command};
use std::thread;

const SIZE: u64 = 1 << 20;

fn open(path: &Path) -> Result<Box<dyn Device>, OpenError> {
    open_path(path, &OpenOptions::default())
}

/// The error of opening, whose message must name the path and contain `phrase`.
#[track_caller]
fn refusal(path: &Path, options: &OpenOptions, phrase: &str) -> OpenError {
    let error = open_path(path, options).map(|_| ()).expect_err("it cannot be opened");
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "{text}");
    assert!(text.contains(phrase), "{text}");
    error
}

fn by_default() -> OpenOptions {
    OpenOptions::default()
}

#[test]
fn what_is_not_there_is_not_found() {
    let scratch = Scratch::new();
    let error = refusal(&scratch.path("nothing"), &by_default(), "no such file");
    assert!(matches!(error, OpenError::NotFound { .. }));
    assert_eq!(error.errno(), libc::ENOENT);
    let below_a_file = scratch.file("file", SIZE).path.join("below");
    assert!(matches!(
        refusal(&below_a_file, &by_default(), "no such file"),
        OpenError::NotFound { .. }
    ));
}

#[test]
fn what_is_neither_file_nor_disk_is_refused_at_once() {
    let scratch = Scratch::new();
    let pipe = scratch.path("pipe");
    let name = CString::new(pipe.to_str().expect("a plain path")).expect("no zero inside");
    // SAFETY: the string lives until the call returns.
    checked(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, "mkfifo");
    for path in [scratch.path("."), "/dev/null".into(), pipe] {
        let error = refusal(&path, &by_default(), "neither a file nor a block device");
        assert!(matches!(error, OpenError::NotABlockDeviceOrFile { .. }));
    }
}

#[test]
fn a_file_too_small_is_refused_with_both_sizes() {
    let scratch = Scratch::new();
    refusal(&scratch.file("empty", 0).path, &by_default(), "has 0 bytes and 4096 are needed");
    let options = OpenOptions { size_min: SIZE + 1, ..by_default() };
    let file = scratch.file("small", SIZE);
    let error = refusal(&file.path, &options, "has 1048576 bytes and 1048577 are needed");
    assert!(matches!(error, OpenError::TooSmall { size: SIZE, .. }));
    open(&file.path).expect("the refusal gave up the lock");
}

#[test]
fn a_file_that_ends_in_a_part_of_a_sector_loses_that_part() {
    let file = Scratch::new().file("odd", SIZE + 511);
    assert_eq!(open(&file.path).expect("it is large enough").properties().size, SIZE);
}

#[test]
fn without_permission_the_error_says_so() {
    let file = Scratch::new().file("secret", SIZE);
    let path = file.path.clone();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("the file is ours");
    thread::spawn(move || {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } == 0 {
            // The bare system call changes this thread only.
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
        }
        if fs::metadata(&path).is_err() {
            println!("skipped, for the directory is closed to others");
            return;
        }
        let error = refusal(&path, &by_default(), "no permission to read and write");
        assert!(matches!(error, OpenError::PermissionDenied { writing: true, .. }));
        let options = OpenOptions { read_only: true, ..by_default() };
        open_path(&path, &options).expect("everyone may read it");
    })
    .join()
    .expect("the checks hold");
}

#[test]
fn the_process_that_has_a_file_open_is_named() {
    let file = Scratch::new().file("store", SIZE);
    let _device = open(&file.path).expect("nothing has it open");
    let phrase = format!("in use by process {} (", process::id());
    let error = refusal(&file.path, &by_default(), &phrase);
    assert!(matches!(error, OpenError::InUse { by: Some(_), .. }));
    assert_eq!(error.errno(), libc::EBUSY);
}

#[test]
fn a_file_that_its_caller_has_locked_opens_once_that_is_said() {
    let file = Scratch::new().file("store", SIZE);
    let handle = fs::File::open(&file.path).expect("it is there");
    let copy = handle.try_clone().expect("it is open");
    let locked = LockedFile::lock(handle, &file.path).expect("nobody else has it");
    let error = refusal(&file.path, &by_default(), "in use by process");
    assert!(matches!(error, OpenError::InUse { by: Some(_), .. }));
    let device = open_path(&file.path, &OpenOptions { locked: true, ..by_default() });
    drop(device.expect("the lock is known"));
    refusal(&file.path, &by_default(), "in use by process");
    drop(locked);
    open(&file.path).expect("the lock has ended, whoever still has a copy of the descriptor");
    drop(copy);
}

/// Has `fcntl` do `command` with the byte 101 of `file`, which QEMU locks while it writes; what the
/// lock is like afterwards.
fn byte_lock(file: &fs::File, command: libc::c_int, kind: libc::c_int) -> libc::c_int {
    let mut range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 101,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: `range` outlives the call, which may write to it; the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) }, 0);
    range.l_type.into()
}

#[test]
fn the_lock_of_a_range_is_heeded_and_ours_is_seen_by_who_asks_for_ranges() {
    let file = Scratch::new().file("store", SIZE);
    let theirs = fs::File::open(&file.path).expect("it is there");
    let is_free = || byte_lock(&theirs, libc::F_OFD_GETLK, libc::F_WRLCK) == libc::F_UNLCK;
    assert!(is_free());
    let device = open(&file.path).expect("nothing has it open");
    assert!(!is_free());
    drop(device);
    assert!(is_free());
    byte_lock(&theirs, libc::F_OFD_SETLK, libc::F_RDLCK);
    refusal(&file.path, &by_default(), "in use by something else");
    let reading = OpenOptions { read_only: true, ..by_default() };
    refusal(&file.path, &reading, "in use by something else");
    byte_lock(&theirs, libc::F_OFD_SETLK, libc::F_UNLCK);
    let _reader = open_path(&file.path, &reading).expect("nothing has it locked");
    drop(open_path(&file.path, &reading).expect("readers do not exclude each other"));
    refusal(&file.path, &by_default(), "in use by process");
}

#[test]
fn a_lock_of_another_program_is_heeded_and_ours_is_heeded_by_it() {
    let file = Scratch::new().file("store", SIZE);
    let try_lock = |mode| {
        let mut flock = Command::new("flock");
        flock.args([mode, "--nonblock"]).arg(&file.path).arg("true");
        flock.status().expect("flock runs").success()
    };
    assert!(try_lock("--exclusive"));
    let device = open(&file.path).expect("nothing has it open");
    assert!(!try_lock("--shared"));
    drop(device);
    assert!(try_lock("--exclusive"));
    let theirs = fs::File::open(&file.path).expect("it is there");
    theirs.lock_shared().expect("nothing has it locked");
    refusal(&file.path, &by_default(), "in use by");
}

#[test]
fn readers_of_a_file_share_it_and_exclude_writers() {
    let file = Scratch::new().file("store", SIZE);
    let options = OpenOptions { read_only: true, ..by_default() };
    let first = open_path(&file.path, &options).expect("nothing has it open");
    let second = open_path(&file.path, &options).expect("readers share it");
    drop(first);
    refusal(&file.path, &by_default(), "in use by");
    drop(second);
    open(&file.path).expect("nothing has it open");
}

#[test]
fn a_missing_file_is_made_if_that_is_asked_for() {
    let scratch = Scratch::new();
    let path = scratch.path("new");
    let options = OpenOptions { create_size: Some(4 * SIZE), ..by_default() };
    let device = open_path(&path, &options).expect("it can be made");
    assert_eq!(device.properties().size, 4 * SIZE);
    drop(device);
    let metadata = fs::metadata(&path).expect("it was made");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    // What is there stays as it is.
    let options = OpenOptions { create_size: Some(SIZE), ..by_default() };
    assert_eq!(open_path(&path, &options).expect("it is there").properties().size, 4 * SIZE);
    // What cannot be made leaves nothing.
    let path = scratch.path("huge");
    let options = OpenOptions { create_size: Some(u64::MAX), ..by_default() };
    refusal(&path, &options, "cannot create");
    assert!(!path.exists());
    let path = scratch.path("no/such/directory");
    refusal(&path, &OpenOptions { create_size: Some(SIZE), ..by_default() }, "no such file");
}

#[test]
fn a_read_only_file_system_or_disk_is_told_from_missing_permission() {
    with_private_mounts("read-only media", || {
        let scratch = Scratch::new();
        let place = scratch.path("mount");
        let _mount = Mount::new("none", &place, "tmpfs", "size=4m");
        let path = place.join("store");
        fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("room for a file");
        change_mount(&place, libc::MS_REMOUNT | libc::MS_RDONLY);
        let error = refusal(&path, &by_default(), "it is read-only");
        assert!(matches!(error, OpenError::ReadOnlyMedium { .. }));
        open_as(&path, &by_default(), Access::ReadOnly).expect("it can be read");

        let disk = LoopDisk::new(&scratch.file("disk", SIZE).path, 512, true);
        let error = refusal(&disk.path, &by_default(), "it is read-only");
        assert!(matches!(error, OpenError::ReadOnlyMedium { .. }), "{error:?}");
        open_as(&disk.path, &by_default(), Access::ReadOnly).expect("it can be read");
    });
}

#[test]
fn a_mounted_disk_is_in_use_and_the_mount_is_named() {
    with_private_mounts("a mounted disk", || {
        let scratch = Scratch::new();
        let disk = LoopDisk::new(&scratch.file("disk", 16 << 20).path, 512, false);
        let mkfs = Command::new("mkfs.ext4").arg("-q").arg(&disk.path).status();
        assert!(mkfs.expect("mkfs.ext4 runs").success());
        let place = scratch.path("mount");
        let _mount = Mount::new(disk.path.to_str().expect("a plain path"), &place, "ext4", "");
        let phrase = format!("in use by the file system mounted on {}", place.display());
        let error = refusal(&disk.path, &by_default(), &phrase);
        assert!(matches!(error, OpenError::InUse { .. }));
    });
}

#[test]
fn a_file_and_a_loop_device_over_it_are_not_open_at_the_same_time() {
    with_private_mounts("a loop device over a file that is open", || {
        let scratch = Scratch::new();
        let backing = scratch.file("disk", SIZE).path;
        let disk = LoopDisk::new(&backing, 512, false);
        let phrase = format!("in use by the loop device {}", disk.path.display());
        refusal(&backing, &by_default(), &phrase);
        open_as(&backing, &by_default(), Access::ReadOnly).expect("nothing is written this way");
        let through_the_disk = open(&disk.path).expect("nobody else has it");
        let lock = fs::File::open(&backing).expect("it is readable");
        assert!(lock.try_lock_shared().is_err(), "the file below is not locked");
        drop(through_the_disk);

        // The other way round: the file was open before the device was there.
        lock.lock().expect("it can be locked");
        let phrase = format!("which has {}, the file below it", backing.display());
        let error = refusal(&disk.path, &by_default(), &phrase);
        assert!(matches!(error, OpenError::InUse { .. }));
        drop(lock);
        open(&disk.path).expect("nobody else has it any more");
    });
}

#[test]
fn a_file_system_without_direct_transfers_is_used_through_the_page_cache_and_says_so() {
    with_private_mounts("ramfs", || {
        let scratch = Scratch::new();
        let place = scratch.path("mount");
        let _mount = Mount::new("none", &place, "ramfs", "");
        let path = place.join("store");
        fs::File::create(&path).and_then(|file| file.set_len(SIZE)).expect("room for a file");
        for engine in [uring(), Engine::Threads] {
            let options = OpenOptions { engine, ..by_default() };
            let mut device = open_path(&path, &options).expect("it can be opened");
            let properties = device.properties();
            let note = properties.note.clone().unwrap_or_default();
            assert!(note.contains("refuses O_DIRECT"), "{note}");
            assert!(!properties.discard, "it cannot punch holes either");
            assert!(properties.volatile_cache);
            blocking::discard(&mut device, 0, SIZE).expect("a discard may do nothing");
            let mut memory = AlignedMemory::zeroed(SIZE as usize);
            memory.fill(3);
            blocking::write(&mut device, 0, &mut memory).expect("it works");
            memory.fill(0);
            blocking::read(&mut device, 0, &mut memory).expect("it works");
            assert!(memory.iter().all(|byte| *byte == 3));
        }
    });
}

#[test]
fn memory_that_cannot_be_pinned_is_used_all_the_same() {
    with_private_mounts("a limit on locked memory", || {
        let file = Scratch::new().file("store", SIZE);
        if uring() != Engine::Uring {
            return;
        }
        drop_memory_lock_capability();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` has room for what the kernel writes.
        checked(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) }, "getrlimit");
        if limit.rlim_cur > 64 << 20 {
            println!("skipped, for there is no limit");
            return;
        }
        let mut memory = AlignedMemory::zeroed(128 << 20);
        let region = Region { start: memory.as_mut_pointer(), length: memory.len() };
        let options = OpenOptions { engine: Engine::Uring, ..by_default() };
        let mut device = open_path(&file.path, &options).expect("it can be opened");
        // SAFETY: the device is dropped before the memory.
        unsafe { device.register(&[region]) }.expect("not an error");
        let note = device.properties().note.clone().unwrap_or_default();
        assert!(note.contains("memory is not registered"), "{note}");
        let buffer = memory.as_mut_pointer();
        let mut completions = Vec::new();
        // SAFETY: the completion is taken before the memory is dropped.
        unsafe { device.submit(coulter_device::Command::write(1, 0, SIZE, buffer)) };
        device.poll(&mut completions, coulter_device::Wait::Forever).expect("it works");
        assert_eq!(completions[0].result, Ok(()));
        drop(device);
    });
}

/// Makes `RLIMIT_MEMLOCK` count for this thread.
fn drop_memory_lock_capability() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let header: [u32; 2] = [VERSION_3, 0];
    // Effective, permitted and inheritable, first the lower 32 capabilities and then the upper.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the pointers are to a header and to sets as version 3 lays them out.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    assert_eq!(got, 0, "capget");
    sets[0][0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(set, 0, "capset");
}
