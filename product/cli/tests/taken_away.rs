//! What people and full disks do to devices and stores while a daemon serves them.

mod sandbox;

use coulter::buffer::Buffer;
use coulter::service::{Operation, Request, RequestError, Session};
use coulter_attach_suite::nbd_client::Client;
use coulter_net::nbd::{Address, ClientOptions};
use sandbox::{Sandbox, can_mount, is_running, send, skipped, wait_until};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const STORE: [&str; 4] = ["--size", "256M", "--segment-size", "2M"];

/// Runs a program of the system that must succeed.
#[track_caller]
fn system(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
}

/// The path of a new file with a file system of its own in it.
fn image(sandbox: &Sandbox, name: &str, size: u64) -> String {
    let path = sandbox.path(name);
    File::create(&path).and_then(|file| file.set_len(size)).expect("it is writable");
    let path = path.to_str().expect("it is text").to_owned();
    system("mkfs.ext4", &["-q", "-F", &path]);
    path
}

#[test]
fn a_loop_device_that_became_another_files_is_neither_formatted_nor_taken_away() {
    let Some(_right) = can_mount("a loop device that became another file's") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let theirs_mounted = sandbox.make_directory("theirs");
    let theirs_mounted = theirs_mounted.to_str().expect("it is text");
    let theirs = image(&sandbox, "theirs.img", 64 << 20);
    let before = fs::read(&theirs).expect("it is readable");
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    let device = sandbox.ok(&["attach", "disk.img", "--via", "loop"]).trim_end().to_owned();
    system("losetup", &["--detach", &device]);
    system("losetup", &[&device, &theirs]);

    let error = sandbox.fails(1, &["mount", "disk.img", "mnt", "--mkfs", "ext4"]);
    assert!(error.contains("does not lead to 'disk' any more"), "{error}");
    assert!(error.contains("coulter detach disk"), "{error}");
    assert!(fs::read(&theirs).expect("it is readable") == before, "it was written to");

    system("mount", &["-o", "ro,noload", &device, theirs_mounted]);
    let error = sandbox.fails(1, &["umount", "theirs"]);
    assert!(error.contains("theirs"), "{error}");
    let error = sandbox.fails(1, &["detach", &device]);
    assert!(error.contains("does not lead to 'disk' any more"), "{error}");
    sandbox.ok(&["detach", "disk"]);
    system("mountpoint", &["-q", theirs_mounted]);
    system("umount", &[theirs_mounted]);
    // It is still set up.
    system("losetup", &["--detach", &device]);
    sandbox.ok(&["mount", "disk.img", "mnt", "--mkfs", "ext4"]);
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn whoever_would_wait_for_a_stopped_daemon_is_told() {
    let Some(_right) = can_mount("a stopped daemon") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    let pid = sandbox.pid_of("disk");
    send(pid, "STOP");
    let errors = ["mount disk.img mnt --mkfs ext4", "status disk"]
        .map(|words| sandbox.fails(1, &words.split(' ').collect::<Vec<_>>()));
    send(pid, "CONT");
    for error in errors {
        assert!(error.contains(&format!("kill -CONT {pid}")), "{error}");
    }
    sandbox.ok(&["mount", "disk.img", "mnt", "--mkfs", "ext4"]);
    sandbox.ok(&["umount", "mnt"]);
}

/// Of the second device no mount table knows. When it goes first, nothing may be left to be written to it.
#[test]
fn a_file_system_on_two_volumes_that_end_one_after_the_other_keeps_its_files() {
    let Some(_right) = can_mount("a file system on two volumes") else { return };
    if Command::new("mkfs.btrfs").arg("--version").output().is_err() {
        return skipped("a file system on two volumes: needs mkfs.btrfs");
    }
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    let point = directory.to_str().expect("it is text");
    let names = ["one", "two"];
    let attach = || {
        names.map(|name| {
            let store = format!("{name}.img");
            sandbox.ok(&["attach", &store, "--via", "loop"]).trim_end().to_owned()
        })
    };
    for name in names {
        sandbox.ok(&[&["create", &format!("{name}.img")], &STORE[..]].concat());
    }
    let devices = attach();
    let raid = ["-q", "-f", "-d", "raid0", "-m", "raid1", &devices[0], &devices[1]];
    system("mkfs.btrfs", &raid);
    system("mount", &["-o", &format!("device={}", devices[1]), &devices[0], point]);
    let content: Vec<u8> = (0..60_u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(directory.join("file"), &content).expect("there is room");
    let place = format!("{point} from {}", devices[0]);
    let error = sandbox.fails(1, &["detach", "two"]);
    assert!(error.contains(&place) && error.contains(&format!("umount {point}")), "{error}");
    for name in ["two", "one"] {
        sandbox.signal(name, "TERM");
    }
    let log = fs::read_to_string(sandbox.path("state/two.log")).expect("there is a log");
    assert!(log.contains(&place), "{log}");
    system("umount", &["--lazy", point]);
    let devices = attach();
    system("mount", &["-o", &format!("device={}", devices[1]), &devices[0], point]);
    let found = fs::read(directory.join("file")).expect("it is there");
    assert!(found == content, "{} bytes of {}", found.len(), content.len());
    system("umount", &[point]);
    for name in names {
        sandbox.ok(&["detach", name]);
    }
}

#[test]
fn a_volume_whose_last_writes_find_no_room_is_detached_and_sound() {
    let Some(_right) = can_mount("a volume whose last writes find no room") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    let small = sandbox.make_directory("small");
    let small = small.to_str().expect("it is text");
    system("mount", &["-o", "loop", &image(&sandbox, "small.img", 160 << 20), small]);
    let store = format!("{small}/disk.img");
    let words = ["--create", "--size", "512M", "--sparse", "--mkfs", "ext4"];
    sandbox.ok(&[&["mount", &store, "mnt"], &words[..]].concat());
    // Each waits for room for a minute before it is refused.
    let is_full = (0..40).any(|number| {
        let file = File::create(directory.join(format!("file{number}")));
        let written = file.and_then(|mut file| {
            file.write_all(&vec![number; 8 << 20])?;
            file.sync_all()
        });
        written.is_err()
    });
    assert!(is_full, "there was room for all of it");
    // What was refused is nobody's any more: whether there is something left to be told depends on what
    // the file system still wanted to write.
    let ended = sandbox.run(&["umount", "mnt"]);
    let error = String::from_utf8_lossy(&ended.stderr);
    if !ended.status.success() {
        assert!(error.contains("its last writes are not durable"), "{error}");
        assert!(error.contains("free space below the store"), "{error}");
    }
    sandbox.ok(&["check", &store, "--data"]);
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
    system("umount", &[small]);
}

/// How long until it is told what somebody has done to a volume.
const SECONDS: Duration = Duration::from_secs(20);

/// What `status` says once it ends with an error, which is to be soon.
#[track_caller]
fn failure_of(sandbox: &Sandbox, name: &str) -> String {
    let begun = Instant::now();
    loop {
        let status = sandbox.run(&["status", name]);
        if !status.status.success() {
            assert_eq!(status.status.code(), Some(1));
            assert!(!status.stdout.is_empty(), "it shows all the same what it is doing");
            return String::from_utf8_lossy(&status.stderr).into_owned();
        }
        assert!(begun.elapsed() < SECONDS, "it is not noticed");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_store_that_is_cut_short_while_it_is_attached_is_noticed_and_told() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--store-size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.ok(&["status"]);
    let address = Address::Unix(sandbox.path("state/disk.nbd"));
    let mut host = Client::connect(&address, &ClientOptions::default()).expect("it listens");
    let mut ask = |operation| {
        let buffer = Buffer::zeroed(if operation == Operation::Flush { 0 } else { 4096 });
        let length = buffer.len() as u64;
        host.submit(Request { tag: 1, operation, offset: 0, length, buffer });
        let mut completions = Vec::new();
        host.complete(&mut completions, None);
        completions.pop().expect("it is answered").result
    };
    assert_eq!(ask(Operation::Write { fua: true }), Ok(()));
    let store = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    store.set_len(100 << 20).expect("it is writable");
    let error = failure_of(&sandbox, "disk");
    assert!(error.contains("'disk' has failed"), "{error}");
    assert!(error.contains("of the store are lost, flushed or not"), "{error}");
    assert!(error.contains("coulter salvage") && !error.contains("is safe"), "{error}");
    wait_until("flushes fail", || ask(Operation::Flush).is_err());
    let refused = Err(RequestError::Device { errno: libc::EIO });
    assert_eq!(ask(Operation::Flush), refused);
    assert_eq!(ask(Operation::Write { fua: false }), Err(RequestError::ReadOnly));
    wait_until("it is listed as read-only", || sandbox.listed()[0]["read_only"] == true);
    // Unless a write behind the end came before it was looked at.
    assert!(error.contains("it has 1") && error.contains("MiB of 256 MiB"), "{error}");
    sandbox.fails(1, &["status", "--json"]);
    wait_until("lists tell of it", || {
        let listed = sandbox.listed();
        listed[0]["failure"].as_str().is_some_and(|failure| failure.contains("cut short"))
    });
    let log = fs::read_to_string(sandbox.path("state/disk.log")).expect("there is a log");
    assert!(log.contains("cut short"), "{log}");
    store.set_len(256 << 20).expect("it is writable");
    std::thread::sleep(Duration::from_secs(2));
    let error = failure_of(&sandbox, "disk");
    assert!(
        error.contains("cut short"),
        "it is as long as it was, and what was cut off is lost: {error}"
    );
    let _ = sandbox.run(&["detach", "--force", "disk"]);
}

#[test]
fn a_loop_device_that_is_taken_away_is_noticed_and_told() {
    let Some(_right) = can_mount("a loop device that is taken away") else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    let device = sandbox.ok(&["attach", "disk.img", "--via", "loop"]).trim_end().to_owned();
    sandbox.ok(&["status", "disk"]);
    system("losetup", &["--detach", &device]);
    let error = failure_of(&sandbox, "disk");
    assert!(error.contains(&format!("{device} was taken away")), "{error}");
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn a_killed_daemon_is_in_the_list_for_programs_too() {
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    assert!(sandbox.listed()[0].get("killed").is_none());
    sandbox.signal("disk", "KILL");
    let listed = sandbox.listed();
    assert_eq!((&listed[0]["name"], &listed[0]["killed"]), (&"disk".into(), &true.into()));
    sandbox.fails(1, &["status", "--json"]);
    sandbox.ok(&["detach", "disk"]);
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
}

/// What is left of a life in which nothing happened is of no use to anybody. A log that tells of something stays.
#[test]
fn a_log_without_events_goes_with_its_daemon() {
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    let log = sandbox.path("state/disk.log");
    for _ in 0..2 {
        sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        // Told after the command was.
        wait_until("it logs", || fs::read_to_string(&log).is_ok_and(|log| log.contains("serving")));
        sandbox.ok(&["detach", "disk"]);
        assert!(!log.exists());
    }
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.signal("disk", "KILL");
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.ok(&["detach", "disk"]);
    assert!(log.exists(), "it tells of one that was killed");
}

/// The state directory does not outlive a boot; the journal does.
#[test]
fn a_daemon_tells_the_journal_what_it_tells_its_log() {
    let Some(_right) = can_mount("the journal") else { return };
    let systemd = Path::new("/run/systemd");
    if !systemd.is_dir() {
        return skipped("the journal: needs /run/systemd, where one could be");
    }
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    let directory = sandbox.make_directory("systemd");
    fs::create_dir(directory.join("journal")).expect("it is writable");
    let socket = UnixDatagram::bind(directory.join("journal/socket")).expect("it is writable");
    socket.set_read_timeout(Some(SECONDS)).expect("it is a socket");
    let program = sandbox.command(&["attach", "disk.img", "--via", "nbd-server"]);
    let script = "mount --bind \"$0\" /run/systemd; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-ec", script])
        .arg(&directory)
        .arg(program.get_program())
        .args(program.get_args())
        .current_dir(sandbox.path(""))
        .env("COULTER_STATE_DIRECTORY", sandbox.path("state"))
        .output()
        .expect("`unshare` can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut bytes = [0; 4096];
    let mut heard = || {
        let size = socket.recv(&mut bytes).expect("the daemon tells something");
        String::from_utf8_lossy(&bytes[..size]).into_owned()
    };
    let mut entry = heard();
    while !entry.contains("MESSAGE=serving name=disk") {
        entry = heard();
    }
    assert!(entry.contains("\nSYSLOG_IDENTIFIER=coulter\n"), "{entry}");
    assert!(entry.contains("\nCOULTER_VOLUME=disk\n"), "{entry}");
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn on_a_full_file_system_a_sparse_store_waits_is_read_and_goes_on_by_itself() {
    let Some(_right) = can_mount("a sparse store on a full file system") else { return };
    let sandbox = Sandbox::new();
    let mounted = sandbox.make_directory("mnt");
    let small = sandbox.make_directory("small");
    let small = small.to_str().expect("it is text");
    system("mount", &["-o", "loop", &image(&sandbox, "small.img", 300 << 20), small]);
    let store = format!("{small}/disk.img");
    let size = ["--create", "--size", "512M", "--segment-size", "2M", "--sparse"];
    sandbox.ok(&[&["mount", &store, "mnt"], &size[..], &["--mkfs", "ext4"]].concat());
    let ballast = format!("{small}/ballast");
    fs::write(mounted.join("before"), vec![7; 1 << 20]).expect("there is room");
    system("fallocate", &["-l", "120M", &ballast]);
    let content: Vec<u8> = (0..48_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let writer = std::thread::spawn({
        let (path, content) = (mounted.join("file"), [&content[..], &content, &content].concat());
        move || {
            let mut file = File::create(path)?;
            file.write_all(&content)?;
            file.sync_all()
        }
    });
    let status = || -> serde_json::Value {
        let output = sandbox.run(&["status", "disk", "--json"]);
        serde_json::from_slice(&output.stdout).expect("the output is JSON")
    };
    let waits = || status()["statistics"]["waiting"]["for_space"] == true;
    wait_until("the store waits for space", waits);
    // Between two tries it may look as if there were some.
    wait_until("the status says so", || {
        let output = sandbox.run(&["status", "disk"]);
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (text, error) = (said(&output.stdout), said(&output.stderr));
        output.status.code() == Some(1)
            && text.contains("wait for space below")
            && error.contains("'disk' waits for space below")
    });
    assert_eq!(status()["state"], "running");
    assert_eq!(fs::read(mounted.join("before")).expect("it can be read"), vec![7; 1 << 20]);
    fs::remove_file(ballast).expect("it is there");
    writer.join().expect("it does not panic").expect("what waited is written");
    // The file system goes on writing what is its own.
    wait_until("nothing waits for space any more", || !waits());
    assert_eq!(status()["state"], "running");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["check", "--data", &store]);
    // Filled up by somebody else, it is opened and read.
    let _ = Command::new("fallocate").args(["-l", "290M", &format!("{small}/rest")]).status();
    sandbox.ok(&["mount", &store, "mnt"]);
    let found = fs::read(mounted.join("file")).expect("it can be read");
    assert!(found.chunks(content.len()).all(|part| part == content), "it is what was written");
    // What waits is refused when its time is over, and the volume stays as it is.
    sandbox.ok(&["tune", "disk", "space-patience=2s"]);
    let mut file = File::options().write(true).open(mounted.join("file")).expect("it is there");
    let begin = Instant::now();
    let refused = file.write_all(&content).and_then(|()| file.sync_all());
    if refused.is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    }
    drop(file);
    assert_eq!(status()["state"], "running");
    sandbox.ok(&["umount", "mnt"]);
    system("umount", &[small]);
}

#[test]
fn a_file_that_took_the_place_of_a_store_is_not_taken_for_it() {
    let sandbox = Sandbox::new();
    let make = |name: &str| sandbox.ok(&[&["create", name], &STORE[..]].concat());
    let remove = |name: &str| fs::remove_file(sandbox.path(name)).expect("it is there");
    make("disk.img");
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    remove("disk.img");
    assert!(sandbox.ok(&["list"]).contains("disk.img (deleted)"));
    make("disk.img");
    assert!(sandbox.ok(&["list"]).contains("disk.img (replaced)"));
    for verb in ["status", "detach"] {
        let error = sandbox.fails(1, &[verb, "disk.img"]);
        assert!(error.contains("is not the file that is attached"), "{error}");
        assert!(error.contains("was deleted: `coulter status disk`"), "{error}");
    }
    // The new one is a store like others, under another name.
    let error = sandbox.fails(1, &["attach", "disk.img", "--via", "nbd-server"]);
    assert!(error.contains("the name 'disk' is taken"), "{error}");
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server", "--name", "disk-2"]);
    assert!(sandbox.ok(&["list", "--json"]).contains("disk-2"));
    sandbox.ok(&["detach", "disk.img"]);
    sandbox.ok(&["detach", "--force", "disk"]);
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
}

#[test]
fn a_store_that_was_deleted_is_told_while_it_can_be_saved() {
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    let device = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let fates = || {
        let (listed, all) = (sandbox.listed(), sandbox.json(&["status", "--json"]));
        let one = sandbox.json(&["status", "disk", "--json"]);
        [&listed[0], &all[0], &one].map(|of| of["store_fate"].as_str().unwrap_or("").to_owned())
    };
    let told = |words: &[&str]| String::from_utf8(sandbox.run(words).stderr).expect("it is text");
    assert_eq!(fates(), ["", "", ""]);
    fs::rename(sandbox.path("disk.img"), sandbox.path("moved.img")).expect("it is writable");
    assert_eq!(fates(), ["moved", "moved", "moved"]);
    assert!(sandbox.ok(&["list"]).contains("disk.img (moved)"));
    assert_eq!((told(&["list"]), told(&["status"])), (String::new(), String::new()));
    fs::remove_file(sandbox.path("moved.img")).expect("it is there");
    assert_eq!(fates(), ["deleted", "deleted", "deleted"]);
    for words in [&["list"][..], &["status"], &["status", "disk"], &["status", "--json"]] {
        let told = told(words);
        assert!(told.contains("the store of 'disk' was deleted"), "{told}");
        assert!(told.contains(&format!("copy it from {}", device.trim_end())), "{told}");
    }
    // Nobody loses it without having been told.
    let error = sandbox.fails(1, &["detach", "disk"]);
    assert!(error.contains("'disk' stays attached: its store was deleted"), "{error}");
    assert!(error.contains("coulter detach --force disk"), "{error}");
    sandbox.ok(&["status", "disk"]);
    sandbox.ok(&["detach", "--force", "disk"]);
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
}

#[test]
fn a_file_system_on_a_deleted_store_is_unmounted_and_the_volume_kept() {
    let Some(_right) = can_mount("a file system on a deleted store") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "256M", "--mkfs", "ext4"]);
    fs::write(directory.join("file"), "kept").expect("it is writable");
    fs::remove_file(sandbox.path("disk.img")).expect("it is there");
    // Nor does anything else at its path become a store by a mount.
    let blank = File::create(sandbox.path("disk.img")).expect("it is writable");
    blank.set_len(256 << 20).expect("there is room");
    sandbox.make_directory("other");
    let words = ["mount", "disk.img", "other", "--create", "--size", "256M", "--mkfs", "ext4"];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("is not the file that is attached"), "{error}");
    assert_eq!(fs::metadata(sandbox.path("disk.img")).expect("it is there").blocks(), 0);
    fs::remove_file(sandbox.path("disk.img")).expect("it is there");
    let error = sandbox.fails(1, &["umount", "mnt"]);
    assert!(error.contains("'disk' stays attached"), "{error}");
    assert!(!directory.join("file").exists());
    let device = sandbox.listed()[0]["device"].as_str().map(str::to_owned);
    let path = directory.to_str().expect("it is text");
    system("mount", &["-o", "ro", &device.expect("it is attached"), path]);
    assert_eq!(fs::read_to_string(directory.join("file")).expect("it is there"), "kept");
    system("umount", &[path]);
    sandbox.ok(&["detach", "--force", "disk"]);
}

#[test]
fn a_store_that_was_moved_is_found_at_its_new_place() {
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    fs::rename(sandbox.path("disk.img"), sandbox.path("moved.img")).expect("it is writable");
    let error = sandbox.fails(1, &["attach", "moved.img", "--via", "nbd-server"]);
    assert!(error.contains("already attached"), "{error}");
    let error = sandbox.fails(1, &["grow", "moved.img", "--size", "1G"]);
    assert!(error.contains("attached as 'disk'"), "{error}");
    sandbox.ok(&["detach", "moved.img"]);
    assert!(!Path::new(&sandbox.path("disk.img")).exists());
}

#[test]
fn a_volume_whose_files_in_the_state_directory_were_deleted_is_found_again() {
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let pid = sandbox.pid_of("disk");
    let files = ["disk.json", "disk.sock", "lock"].map(|name| sandbox.path("state").join(name));
    for file in &files {
        fs::remove_file(file).expect("it is there");
    }
    wait_until("the volume is found again", || files[..2].iter().all(|file| file.exists()));
    assert_eq!(sandbox.pid_of("disk"), pid);
    sandbox.ok(&["status", "disk"]);
    sandbox.ok(&["detach", "disk"]);
    assert!(!is_running(pid) && !files[0].exists());
}
