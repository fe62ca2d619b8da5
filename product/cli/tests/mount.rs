//! Real file systems on volumes, from the outside. Needs root, FUSE and loop devices.

mod sandbox;

use sandbox::{Sandbox, can_mount, mounts_below, send, skipped, wait_until, write_and_sync};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[test]
fn a_file_system_is_made_mounted_and_found_again() {
    let Some(_right) = can_mount("a_file_system_is_made_mounted_and_found_again") else { return };
    for kind in ["ext4", "xfs", "btrfs"] {
        let sandbox = Sandbox::new();
        let directory = sandbox.make_directory("mnt");
        let mount = ["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", kind];
        let error = String::from_utf8_lossy(&sandbox.run(&mount).stderr).into_owned();
        if error.contains("is not installed") {
            skipped(&format!("{kind}: {error}"));
            continue;
        }
        assert_eq!(error.lines().count(), 1, "{kind}: {error}");
        assert!(error.starts_with("made "), "{kind}: {error}");
        write_and_sync(&directory.join("file"), kind.as_bytes());
        sandbox.ok(&["umount", "mnt"]);
        assert_eq!(fs::read_dir(&directory).expect("it is readable").count(), 0);
        assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");

        // The second time everything is there already, and --mkfs makes nothing.
        sandbox.ok(&["mount", "disk.img", "mnt", "--mkfs", kind]);
        assert_eq!(fs::read_to_string(directory.join("file")).expect("it was synced"), kind);
        sandbox.ok(&["umount", "mnt"]);
    }
}

#[test]
fn a_volume_without_a_file_system_is_not_mounted_and_not_left_attached() {
    let Some(_right) =
        can_mount("a_volume_without_a_file_system_is_not_mounted_and_not_left_attached")
    else {
        return;
    };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let error = sandbox.fails(1, &["mount", "disk.img", "mnt", "--create", "--size", "1G"]);
    assert!(error.contains("holds no file system"), "{error}");
    assert!(error.contains("--mkfs"), "{error}");
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
    assert!(mounts_below(&sandbox.path(".")).is_empty());
    assert!(!sandbox.path("disk.img").exists(), "what was made for it goes with it");
    sandbox.ok(&["create", "disk.img", "--size", "1G"]);
    sandbox.fails(1, &["mount", "disk.img", "mnt", "--create"]);
    assert!(sandbox.path("disk.img").exists(), "it was there before");
}

/// Under a mistyped name, or while the disk is not mounted that the store is on, a database would begin empty.
#[test]
fn a_store_is_made_only_when_that_is_asked_for_and_is_told() {
    let Some(_right) = can_mount("a_store_is_made_only_when_that_is_asked_for") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let words = ["mount", "disk.img", "mnt", "--store-size", "256M", "--mkfs", "ext4"];
    let error = sandbox.fails(1, &words);
    assert!(error.contains("there is no such file or disk"), "{error}");
    assert!(error.contains("--create"), "{error}");
    assert!(!sandbox.path("disk.img").exists());
    let words = [&words[..], &["--create"]].concat();
    let made = sandbox.run(&words);
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "{told}");
    assert!(told.contains("disk.img: a store of 256 MiB for a volume of"), "{told}");
    sandbox.ok(&["umount", "mnt"]);
    let again = sandbox.run(&words);
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.success() && !told.contains("made"), "{told}");
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_volume_that_is_only_read_gets_no_file_system() {
    let Some(_right) = can_mount("a_volume_that_is_only_read_gets_no_file_system") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["create", "disk.img", "--size", "256M"]);
    let error = sandbox.fails(2, &["mount", "disk.img", "mnt", "--mkfs", "ext4", "--read-only"]);
    assert!(error.contains("open for reading only"), "{error}");
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
}

#[test]
fn a_store_that_is_only_read_is_not_made() {
    let Some(_right) = can_mount("a_store_that_is_only_read_is_not_made") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let words = "mount disk.img mnt --read-only --create --size 256M --mkfs ext4";
    let error = sandbox.fails(2, &words.split(' ').collect::<Vec<_>>());
    assert!(error.contains("there is no store yet"), "{error}");
    assert!(!sandbox.path("disk.img").exists());
}

#[test]
fn a_blank_file_becomes_a_store_as_none_does_and_nothing_else_is_formatted() {
    let Some(_right) = can_mount("a_blank_file_becomes_a_store") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let words = ["mount", "disk.img", "mnt", "--mkfs", "ext4"];
    let with_size = [&words[..], &["--create", "--store-size", "256M"]].concat();
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(sandbox.path("disk.img"));
    let file = file.expect("the directory is writable");
    for at in [0, 5 << 20, (256 << 20) - 1] {
        file.set_len(0).and_then(|()| file.set_len(256 << 20)).expect("there is room");
        file.write_all_at(b"x", at).expect("there is room");
        sandbox.fails(1, &with_size);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("it is there");
        assert_eq!(&byte, b"x");
    }
    for length in [256 << 20, 1 << 20, 0] {
        file.set_len(0).and_then(|()| file.set_len(length)).expect("there is room");
        let error = sandbox.fails(1, &words);
        let reason = if length > 0 { "nothing but zeros" } else { "it is empty" };
        assert!(error.contains(reason), "{error}");
        sandbox.fails(2, &[&with_size[..], &["--read-only"]].concat());
        let now = file.metadata().expect("it is there");
        assert_eq!((now.len(), now.blocks()), (length, 0));
        sandbox.ok(&with_size);
        fs::write(sandbox.path("mnt/file"), b"kept").expect("it is mounted");
        sandbox.ok(&["umount", "mnt"]);
        // What is a store by now is mounted, not made again.
        sandbox.ok(&with_size);
        assert_eq!(fs::read(sandbox.path("mnt/file")).expect("it is there"), b"kept");
        sandbox.ok(&["umount", "mnt"]);
    }
}

#[test]
fn a_busy_mount_point_names_who_uses_it() {
    let Some(_right) = can_mount("a_busy_mount_point_names_who_uses_it") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    let mut user =
        Command::new("sleep").arg("60").current_dir(&directory).spawn().expect("it can be run");
    let error = sandbox.fails(1, &["umount", "mnt"]);
    assert!(error.contains(&format!("process {} (sleep)", user.id())), "{error}");
    let error = sandbox.fails(1, &["detach", "disk"]);
    assert!(error.contains("coulter umount"), "{error}");
    let error = sandbox.fails(1, &["mount", "disk.img", "mnt"]);
    assert!(error.contains("ext4 is mounted there already"), "{error}");
    assert!(error.contains("coulter umount"), "{error}");
    user.kill().expect("it runs");
    user.wait().expect("it is our child");
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn fsynced_files_survive_a_killed_daemon() {
    let Some(_right) = can_mount("fsynced_files_survive_a_killed_daemon") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    let content: Vec<u8> = (0..300_000_u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
    write_and_sync(&directory.join("file"), &content);
    File::open(&directory).and_then(|d| d.sync_all()).expect("it can be synced");
    sandbox.signal("disk", "KILL");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    assert!(fs::read(directory.join("file")).expect("it was synced") == content);
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn what_a_killed_daemon_left_is_told_with_what_takes_it_away() {
    let Some(_right) = can_mount("what_a_killed_daemon_left_is_told") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    let told = || String::from_utf8(sandbox.run(&["list"]).stderr).expect("it is text");
    assert_eq!(told(), "", "it lives");
    sandbox.signal("disk", "KILL");
    let directory = sandbox.path("mnt");
    let remedy = format!("`coulter umount {}`", directory.display());
    assert!(told().contains(&remedy), "{}", told());
    assert_eq!(sandbox.listed()[0]["killed"], true);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    sandbox.signal("disk", "KILL");
    assert!(told().contains("`coulter detach disk`"), "{}", told());
    sandbox.ok(&["detach", "disk"]);
    assert_eq!(told(), "nothing is attached\n");
}

#[test]
fn what_is_mounted_from_a_daemon_that_ended_by_a_signal_is_told_with_what_takes_it_away() {
    let test = "what_is_mounted_from_a_daemon_that_ended_by_a_signal_is_told";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    let open = File::create(directory.join("file")).expect("it is writable");
    let remedy = format!("`coulter umount {}`", directory.display());
    let told = || String::from_utf8(sandbox.run(&["list"]).stderr).expect("it is text");
    assert!(!told().contains(&remedy), "{}", told());
    sandbox.signal("disk", "TERM");
    assert!(told().contains(&remedy), "{}", told());
    // What is attached now is another one, and lives.
    sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    assert_eq!(told().matches("has ended").count(), 1, "{}", told());
    drop(open);
    sandbox.ok(&["umount", "mnt"]);
    assert!(!told().contains("has ended"), "{}", told());
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn two_commands_may_unmount_at_once() {
    let Some(_right) = can_mount("two_commands_may_unmount_at_once") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    let commands =
        [(); 3].map(|()| sandbox.command(&["umount", "mnt"]).stderr(Stdio::piped()).spawn());
    for command in commands {
        let output = command.and_then(Child::wait_with_output).expect("it can be run");
        let error = String::from_utf8_lossy(&output.stderr);
        // Or it came when nothing was mounted there any more.
        let is_late = error.contains("nothing is mounted there");
        assert!(output.status.success() || is_late, "{error}");
    }
    assert_eq!(sandbox.listed().as_array().map(Vec::len), Some(0));
}

#[test]
fn a_mount_waits_for_a_daemon_that_is_ending() {
    let Some(_right) = can_mount("a_mount_waits_for_a_daemon_that_is_ending") else { return };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
    write_and_sync(&directory.join("file"), b"kept");
    sandbox.ok(&["umount", "mnt"]);
    for delay in [0, 2, 8, 32] {
        for is_signal in [true, false] {
            sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
            let ending = match is_signal {
                true => {
                    send(sandbox.pid_of("disk"), "TERM");
                    None
                }
                false => {
                    let mut detach = sandbox.command(&["detach", "disk"]);
                    Some(detach.stderr(Stdio::null()).spawn().expect("it can be run"))
                }
            };
            std::thread::sleep(Duration::from_millis(delay));
            sandbox.ok(&["mount", "disk.img", "mnt"]);
            assert_eq!(fs::read(directory.join("file")).expect("it was synced"), b"kept");
            // Refused, if the mount was first.
            ending.map(|mut detach| detach.wait().expect("it is our child"));
            sandbox.ok(&["umount", "mnt"]);
        }
    }
}

#[test]
fn a_mount_begins_with_settings_and_changes_those_of_what_is_attached() {
    let test = "a_mount_begins_with_settings_and_changes_those_of_what_is_attached";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let policy = || sandbox.json(&["tune", "disk", "--json"])["policy"].clone();
    let begun = ["--tune", "policy=greedy"];
    let mount = ["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"];
    sandbox.ok(&[&mount[..], &begun].concat());
    assert_eq!(policy(), "greedy");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["attach", "disk.img"]);
    assert_eq!(policy(), "damped-age", "it is not stored");
    sandbox.ok(&["mount", "disk.img", "mnt", "--tune", "policy=cost-benefit"]);
    assert_eq!(policy(), "cost-benefit");
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_mount_says_which_options_it_does_without() {
    let Some(_right) = can_mount("a_mount_says_which_options_it_does_without") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    let told = |options: &str| {
        let words = format!("mount disk.img mnt {options}");
        let output = sandbox.run(&words.split_whitespace().collect::<Vec<_>>());
        assert!(output.status.success(), "{output:?}");
        sandbox.ok(&["umount", "mnt"]);
        String::from_utf8(output.stderr).expect("it is text")
    };
    let new = "--size 512M --over-provisioning 20% --segment-size 2M --label x --mkfs ext4";
    let made = told(&format!("--create {new}"));
    assert!(made.starts_with("made ") && made.lines().count() == 1, "{made}");
    let note =
        "there is a store already, so without --segment-size and --over-provisioning and --label\n";
    assert_eq!(told(new), note, "its size is as it was asked for");
    let note = "there is a store already, so without --size and --store-size\n";
    assert_eq!(told("--store-size 1G --size 16M"), note);
    assert_eq!(told("--mkfs xfs"), "it holds ext4 already, so without --mkfs xfs\n");
    assert_eq!(told("--read-only"), "");
}

#[test]
fn what_is_attached_for_writing_is_not_mounted_by_read_only() {
    let test = "what_is_attached_for_writing_is_not_mounted_by_read_only";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["attach", "disk.img"]);
    let error = sandbox.fails(2, &["mount", "disk.img", "mnt", "--read-only"]);
    assert!(error.contains("attached for writing"), "{error}");
    assert!(error.contains("coulter detach disk"), "{error}");
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["attach", "disk.img", "--read-only"]);
    sandbox.ok(&["mount", "disk.img", "mnt", "--read-only"]);
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn what_is_attached_to_be_read_only_is_not_mounted_for_writing() {
    let test = "what_is_attached_to_be_read_only_is_not_mounted_for_writing";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", "ext4"]);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["attach", "disk.img", "--read-only"]);
    let error = sandbox.fails(2, &["mount", "disk.img", "mnt"]);
    assert!(error.contains("attached to be read only"), "{error}");
    assert!(error.contains("--read-only") && error.contains("coulter detach disk"), "{error}");
    // Whoever asks for it by the options of the system gets it.
    sandbox.ok(&["mount", "disk.img", "mnt", "--options", "noatime,ro"]);
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_file_system_that_was_not_unmounted_can_be_read_without_its_journal() {
    let test = "a_file_system_that_was_not_unmounted_can_be_read_without_its_journal";
    let Some(_right) = can_mount(test) else { return };
    for (kind, option) in [("ext4", "noload"), ("xfs", "norecovery")] {
        let sandbox = Sandbox::new();
        let directory = sandbox.make_directory("mnt");
        let mount = ["mount", "disk.img", "mnt", "--create", "--size", "512M", "--mkfs", kind];
        if !sandbox.run(&mount).status.success() {
            skipped(&format!("{test}: {kind}"));
            continue;
        }
        write_and_sync(&directory.join("file"), kind.as_bytes());
        sandbox.signal("disk", "KILL");
        sandbox.ok(&["umount", "mnt"]);
        let error = sandbox.fails(1, &["mount", "disk.img", "mnt", "--read-only"]);
        assert!(error.contains(&format!("--options {option}")), "{error}");
        assert!(error.contains("without --read-only"), "{error}");
        sandbox.ok(&["mount", "disk.img", "mnt", "--read-only", "--options", option]);
        sandbox.ok(&["umount", "mnt"]);
        sandbox.ok(&["mount", "disk.img", "mnt"]);
        let content = fs::read_to_string(directory.join("file")).expect("it was synced");
        assert_eq!(content, kind);
        sandbox.ok(&["umount", "mnt"]);
    }
}

#[test]
fn a_dead_file_system_can_be_left_after_the_store_was_attached_again() {
    let Some(_right) =
        can_mount("a_dead_file_system_can_be_left_after_the_store_was_attached_again")
    else {
        return;
    };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    sandbox.signal("disk", "KILL");
    sandbox.ok(&["attach", "disk.img"]);
    sandbox.ok(&["umount", "mnt"]);
    let list = sandbox.listed();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "the new attachment is gone");
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_volume_that_fails_while_it_is_opened_is_listed_so() {
    let Some(_right) = can_mount("a volume that fails while it is opened") else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "128M"]);
    // What an opening writes lies behind that; it fails while the device is set up.
    let words = ["attach", "disk.img", "--via", "loop"];
    let output = sandbox.command_with_file_limit(1 << 20, &words).output();
    let output = output.expect("the shell can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_until("it is listed", || sandbox.listed()[0]["failure"].is_string());
    assert_eq!(sandbox.listed()[0]["read_only"], true);
    let is_logged = || {
        let log = fs::read_to_string(sandbox.path("state/disk.log")).expect("there is a log");
        log.contains("can do less")
    };
    wait_until("it is logged", is_logged);
    sandbox.run(&["detach", "disk"]);
}

#[test]
fn a_dead_volume_that_stands_in_the_way_of_mkfs_is_named_with_its_remedy() {
    let test = "a_dead_volume_that_stands_in_the_way_of_mkfs_is_named_with_its_remedy";
    let Some(_right) = can_mount(test) else { return };
    if Command::new("mkfs.btrfs").arg("--version").output().is_err() {
        skipped(&format!("{test}: mkfs.btrfs is not installed"));
        return;
    }
    // Each with a state directory of its own: none clears away what the other left.
    let (dead, sandbox) = (Sandbox::new(), Sandbox::new());
    let directory = dead.make_directory("mnt");
    let entry = dead.json(&[
        "mount", "dead.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4", "--json",
    ]);
    let device = entry["device"].as_str().expect("it has a device").to_owned();
    dead.signal("dead", "KILL");
    sandbox.make_directory("mnt");
    let mount = ["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "btrfs"];
    let output = sandbox.run(&mount);
    if output.status.success() {
        sandbox.ok(&["umount", "mnt"]);
        skipped(&format!("{test}: this mkfs.btrfs does not mind"));
        return;
    }
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(&format!("{device} on ")), "{error}");
    let remedy = format!("umount {}; losetup --detach {device}; umount ", directory.display());
    assert!(error.contains(&remedy), "{error}");
    dead.ok(&["umount", "mnt"]);
    sandbox.ok(&mount);
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_volume_with_data_of_an_unknown_kind_gets_no_file_system() {
    let test = "a_volume_with_data_of_an_unknown_kind_gets_no_file_system";
    let Some(_right) = can_mount(test) else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["create", "disk.img", "--size", "1G"]);
    let attach = || {
        let device = sandbox.json(&["attach", "disk.img", "--json"])["device"].clone();
        device.as_str().expect("it has a device").to_owned()
    };
    let device = attach();
    let content = [0xa5; 4096];
    let at = 300 << 20;
    let disk = File::options().write(true).open(&device).expect("it is ours");
    // Not synced: so far the volume knows nothing of it.
    disk.write_all_at(&content, at).expect("there is room");
    drop(disk);
    let mkfs = ["mount", "disk.img", "mnt", "--mkfs", "ext4"];
    let refused = |arguments: &[&str]| {
        let error = sandbox.fails(1, arguments);
        assert!(error.contains("data of an unknown kind (at byte 314572800)"), "{error}");
        assert!(error.contains("coulter attach disk.img"), "{error}");
        assert!(!error.contains("--mkfs"), "{error}");
    };
    refused(&mkfs);
    refused(&["mount", "disk.img", "mnt"]);
    sandbox.ok(&["detach", "disk"]);
    refused(&mkfs);
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
    let device = attach();
    let disk = File::open(&device).expect("it is ours");
    let mut back = [0; 4096];
    disk.read_exact_at(&mut back, at).expect("it is readable");
    assert_eq!(back, content, "what was there is gone");
    drop(disk);

    // What was discarded holds nothing.
    let discard = Command::new("blkdiscard").arg(&device).status();
    assert!(discard.expect("blkdiscard is there").success());
    sandbox.ok(&mkfs);
    sandbox.ok(&["umount", "mnt"]);
}
