//! What `--cache back` changes: the kernel gathers writes, and tells errors when it writes them out.

use crate::overlaid::{BLOCK, BLOCKS, assert_holds, content, put_over, status};
use crate::sandbox::{Sandbox, can_mount, is_running, send, wait_until, write_and_sync};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;

fn errno(result: io::Result<()>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Closes a file; what the kernel says to that is kept, which dropping it does not.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and nothing owns it any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn errors_come_at_sync_or_close_and_synced_data_outlives_a_kill() {
    let Some(_right) = can_mount("write-back") else { return };
    let sandbox = Sandbox::new();
    let (data, bound) = (sandbox.make_directory("data"), sandbox.make_directory("bound"));
    crate::bind(&data, &bound);
    let mut expected = content(1);
    write_and_sync(&data.join("file"), &expected);
    write_and_sync(&data.join("other"), &expected);
    let pid = put_over(&sandbox, "data", &["--cache", "back"]);
    let file = crate::open(&data.join("file"));
    let other = crate::open(&data.join("other"));
    let far = (5 * BLOCK) as u64;
    let stored = || status(&sandbox, "data")["stored_bytes"].as_u64().unwrap_or_default();
    let before = stored();
    file.write_all_at(&[8; BLOCK], far).expect("it is in memory");
    file.sync_all().expect("it can be synced");
    assert!(stored() > before);
    expected[5 * BLOCK..6 * BLOCK].fill(8);
    assert_holds(&file, &expected);

    // The lower file is changed by others: the write is taken, its sync is not.
    other.write_all_at(&[8; BLOCK], far).and_then(|()| other.sync_all()).expect("it is sound");
    crate::open(&bound.join("other")).write_all_at(&[1; 10], 0).expect("it is plain");
    other.write_all_at(&[9; BLOCK], far).expect("it is in memory");
    assert_eq!(errno(other.sync_all()), Some(libc::EIO));
    other.write_all_at(&[9; BLOCK], far).expect("it is in memory");
    let closed = close(other).expect_err("closing tells it too");
    assert_eq!(closed.raw_os_error(), Some(libc::EIO));

    // Nobody serves it: the same.
    send(pid, "KILL");
    wait_until("it is gone", || !is_running(pid));
    let written = file.write_all_at(&[9; BLOCK], far);
    assert!(written.and_then(|()| file.sync_all()).is_err());
    drop(file);
    put_over(&sandbox, "data", &["--cache", "back"]);
    assert_holds(&crate::open(&data.join("file")), &expected);
}

#[test]
fn what_is_in_memory_at_detaching_comes_home() {
    let Some(_right) = can_mount("write-back and detaching") else { return };
    for verb in [&["overlay", "detach", "data"][..], &["umount", "data"]] {
        let sandbox = Sandbox::new();
        let path = sandbox.make_directory("data").join("file");
        let mut expected = content(1);
        write_and_sync(&path, &expected);
        put_over(&sandbox, "data", &["--cache", "back"]);
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
        for block in (1..BLOCKS).step_by(3) {
            file.write_all_at(&[block as u8; BLOCK], (block * BLOCK) as u64).expect("writable");
            expected[block * BLOCK..][..BLOCK].fill(block as u8);
        }
        drop(file);
        sandbox.ok(verb);
        assert_holds(&File::open(&path).expect("it is there"), &expected);
    }
}
