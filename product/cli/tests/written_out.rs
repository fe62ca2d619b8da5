//! Daemons that end while a file system on their volume is mounted: what hosts wrote is written out, and
//! nothing hangs. Needs root, FUSE and loop devices.

mod sandbox;

use sandbox::{Sandbox, can_mount, is_running, mounts_below, send, wait_until, write_and_sync};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_terminated_daemon_writes_out_the_file_system_first() {
    let Some(_right) = can_mount("a_terminated_daemon_writes_out_the_file_system_first") else {
        return;
    };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    // Not synced: it lies in the page cache when the signal comes.
    fs::write(directory.join("file"), b"written, not synced").expect("there is room");
    sandbox.signal("disk", "TERM");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    let content = fs::read(directory.join("file")).expect("it was written out");
    assert_eq!(content, b"written, not synced");
    sandbox.ok(&["umount", "mnt"]);
}

/// The path of a file system of its own, in a file, mounted.
fn another_file_system(sandbox: &Sandbox) -> String {
    let image = sandbox.path("other.img");
    File::create(&image).and_then(|file| file.set_len(400 << 20)).expect("it is writable");
    let image = image.to_str().expect("it is text");
    let point = sandbox.make_directory("other").to_str().expect("it is text").to_owned();
    run(&["mkfs.ext4", "-q", "-F", image]);
    run(&["mount", "-o", "loop", image, &point]);
    point
}

/// Thaws it, also when a test fails.
struct Frozen<'a>(&'a str);

impl Frozen<'_> {
    fn new(point: &str) -> Frozen<'_> {
        run(&["fsfreeze", "-f", point]);
        Frozen(point)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").args(["-u", self.0]).status();
    }
}

#[test]
fn a_file_system_whose_daemon_is_ending_is_not_unmounted_under_it() {
    let Some(_right) = can_mount("a file system whose daemon is ending") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    let other = another_file_system(&sandbox);
    let store = format!("{other}/disk.img");
    sandbox.ok(&["mount", &store, "mnt", "--create", "--size", "128M", "--mkfs", "ext4"]);
    let pid = sandbox.pid_of("disk");
    fs::write(directory.join("file"), vec![7; 20 << 20]).expect("there is room");
    let frozen = Frozen::new(&other);
    send(pid, "TERM");
    wait_until("it is ending", || sandbox.listed()[0]["ending"] == true);
    // While the file system below is frozen, an unmount could not even be killed.
    let mut umount = sandbox.command(&["umount", "mnt"]);
    let mut umount = umount.stderr(Stdio::piped()).spawn().expect("it can be run");
    wait_until("umount gives up", || umount.try_wait().expect("it is our child").is_some());
    let output = umount.wait_with_output().expect("it is our child");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("is ending") && !error.contains("end what uses it"), "{error}");
    send(pid, "STOP");
    let error = sandbox.fails(1, &["attach", &store]);
    assert!(error.contains(&format!("kill -CONT {pid}")), "{error}");
    send(pid, "CONT");
    drop(frozen);
    wait_until("the daemon is gone", || !is_running(pid));
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["mount", &store, "mnt"]);
    assert!(fs::read(directory.join("file")).is_ok_and(|bytes| bytes == vec![7; 20 << 20]));
    sandbox.ok(&["umount", "mnt"]);
    run(&["umount", &other]);
}

#[test]
fn what_is_served_is_never_said_to_have_ended() {
    let Some(_right) = can_mount("what is served is never said to have ended") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
    let entry = sandbox.path("state/disk.json");
    let told = || String::from_utf8(sandbox.run(&["list"]).stderr).expect("it is text");
    for _ in 0..20 {
        fs::remove_file(&entry).expect("it is there");
        assert!(!told().contains("has ended"), "{}", told());
        wait_until("it is listed again", || entry.exists());
    }
    let point = sandbox.path("state/disk.mount");
    run(&["umount", "-l", point.to_str().expect("it is text")]);
    assert!(!told().contains("has ended"), "{}", told());
    write_and_sync(&directory.join("file"), b"it works");
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_command_that_is_stopped_holds_up_no_daemon_that_writes_out() {
    let Some(_right) = can_mount("a stopped command holds up no daemon") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
    fs::write(directory.join("file"), b"written, not synced").expect("there is room");
    let pid = sandbox.pid_of("disk");
    // As a command has it that was stopped while it wrote to the directory.
    let lock = File::open(sandbox.path("state/lock")).expect("it is there");
    lock.lock().expect("nobody else holds it for long");
    send(pid, "TERM");
    let store = File::open(sandbox.path("disk.img")).expect("it is there");
    wait_until("the store is closed", || store.try_lock().is_ok());
    store.unlock().expect("it was just locked");
    assert!(is_running(pid), "it gives its name back, for which it waits");
    lock.unlock().expect("it is held");
    wait_until("the daemon is gone", || !is_running(pid));
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    let content = fs::read(directory.join("file")).expect("it was written out");
    assert_eq!(content, b"written, not synced");
    sandbox.ok(&["umount", "mnt"]);
}

/// An MBR partition table with one partition. `first` and `count` are in sectors of 4096 bytes.
fn partition_table(first: u32, count: u32) -> [u8; 512] {
    let mut sector = [0; 512];
    sector[450] = 0x83;
    sector[454..458].copy_from_slice(&first.to_le_bytes());
    sector[458..462].copy_from_slice(&count.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

fn run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it can be run");
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// Attaches `disk.img` as a loop device, and gives that.
fn attached(sandbox: &Sandbox) -> String {
    let entry = sandbox.json(&["attach", "disk.img", "--via", "loop", "--json"]);
    entry["device"].as_str().expect("it has a device").to_owned()
}

#[test]
fn a_file_system_on_a_partition_is_named_and_written_out() {
    let test = "a_file_system_on_a_partition_is_named_and_written_out";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    let point = directory.to_string_lossy();
    sandbox.ok(&["create", "disk.img", "--size", "512M", "--segment-size", "2M"]);
    let device = attached(&sandbox);
    let disk = File::options().write(true).open(&device).expect("it is a disk");
    disk.write_all_at(&partition_table(256, 20_000), 0).expect("it is writable");
    disk.sync_all().expect("it is writable");
    drop(disk);
    run(&["partx", "--add", &device]);
    let partition = format!("{device}p1");
    run(&["mkfs.ext4", "-q", &partition]);
    run(&["mount", &partition, &point]);
    let error = sandbox.fails(1, &["detach", "disk"]);
    assert!(error.contains(&format!("mounted on {point} from {partition}")), "{error}");
    assert!(error.contains(&format!("run `umount {point}`")), "{error}");
    // It lies in the page cache when the signal comes.
    fs::write(directory.join("file"), b"written, not synced").expect("there is room");
    sandbox.signal("disk", "TERM");
    run(&["umount", &point]);

    let device = attached(&sandbox);
    run(&["partx", "--add", &device]);
    run(&["mount", &format!("{device}p1"), &point]);
    let content = fs::read(directory.join("file")).expect("it was written out");
    assert_eq!(content, b"written, not synced");
    run(&["umount", &point]);
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn a_file_system_that_only_others_have_mounted_is_written_out() {
    let test = "a_file_system_that_only_others_have_mounted_is_written_out";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
    sandbox.ok(&["umount", "mnt"]);
    let device = attached(&sandbox);
    let script = "mount \"$0\" \"$1\" && printf kept > \"$1/file\" && echo && read end";
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, &device])
        .arg(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`unshare` can be run");
    let mut newline = [0];
    let said = other.stdout.take().expect("it is piped").read_exact(&mut newline);
    assert!(said.is_ok() && mounts_below(&directory).is_empty());
    let error = sandbox.fails(1, &["detach", "disk"]);
    assert!(error.contains("in the mount namespace of process"), "{error}");
    sandbox.signal("disk", "TERM");
    drop(other.stdin.take());
    other.wait().expect("it ends");

    sandbox.ok(&["mount", "disk.img", "mnt"]);
    assert_eq!(fs::read(directory.join("file")).expect("it was written out"), b"kept");
    sandbox.ok(&["umount", "mnt"]);
}

/// A daemon that slept until it had answered itself could not be killed, and its store stayed locked
/// until the machine started anew.
#[test]
fn a_daemon_that_is_killed_while_it_writes_out_its_own_file_system_ends() {
    let Some(_right) =
        can_mount("a_daemon_that_is_killed_while_it_writes_out_its_own_file_system_ends")
    else {
        return;
    };
    for (way, wait) in [("TERM", 20), ("TERM", 100), ("detach", 60)] {
        let sandbox = Sandbox::new();
        let directory = sandbox.make_directory("mnt");
        sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
        let pid = sandbox.pid_of("disk");
        fs::write(directory.join("file"), vec![7; 150 << 20]).expect("there is room");
        let detach = match way {
            "detach" => {
                let mut detach = sandbox.command(&["detach", "disk", "--force"]);
                Some(detach.stderr(Stdio::null()).spawn().expect("it can be run"))
            }
            signal => {
                send(pid, signal);
                None
            }
        };
        std::thread::sleep(Duration::from_millis(wait));
        let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).output();
        if let Err(error) = std::panic::catch_unwind(|| {
            wait_until("a killed daemon is gone", || !is_running(pid));
        }) {
            // The command that ends its mount answers for it.
            let mount = sandbox.path("state").join("disk.mount");
            let _ = Command::new("umount").arg("--force").arg(mount).output();
            std::panic::resume_unwind(error);
        }
        if let Some(mut detach) = detach {
            detach.wait().expect("it ends, too");
        }
        wait_until("the dead file system is unmounted", || {
            !mounts_below(&directory).iter().any(|mount| mount.mount_point == directory)
                || Command::new("umount").arg(&directory).output().is_ok_and(|o| o.status.success())
        });
        sandbox.ok(&["mount", "disk.img", "mnt"]);
        sandbox.ok(&["umount", "mnt"]);
        sandbox.ok(&["check", "disk.img"]);
    }
}
