//! One verb for volumes, file systems and overlays: `mount`, `list`, `status`, `umount`, `detach`,
//! `grow`, `check`, `export`. Needs root, FUSE and loop devices.

mod sandbox;

use sandbox::{Sandbox, can_mount, mounts_below, wait_until, write_and_sync};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a program of the system that must succeed.
#[track_caller]
fn tool(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", words.join(" "));
}

/// A store with a Coulter file system of 64 MiB, and `mnt`.
fn made() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "files.img", "--size", "64M", "--segment-size", "2M"]);
    sandbox
}

#[test]
fn mount_takes_a_coulter_file_system_and_every_verb_its_name_or_its_directory() {
    let Some(_right) = can_mount("mount takes a Coulter file system") else { return };
    let sandbox = made();
    let told = sandbox.run(&["mount", "files.img", "mnt", "--mkfs", "ext4"]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("Coulter file system, so without --mkfs"), "{told}");
    fs::write(sandbox.path("mnt/file"), "text").expect("it is writable");
    let mnt = sandbox.path("mnt").display().to_string();
    let listed = sandbox.listed();
    assert_eq!(listed[0]["mount_points"][0], mnt.as_str(), "{listed}");
    assert_eq!(listed[0]["via"], "fs");
    for name in ["files", "files.img", "mnt"] {
        assert_eq!(sandbox.json(&["status", name, "--json"])["name"], "files", "{name}");
        assert!(sandbox.ok(&["check", name]).contains("sound"), "{name}");
        let error = sandbox.fails(1, &["grow", name, "--size", "1G"]);
        assert!(error.contains("is mounted on") && error.contains("coulter umount"), "{error}");
        let error = sandbox.fails(1, &["export", name, "out.img"]);
        assert!(error.contains("coulter umount"), "{name}: {error}");
    }
    sandbox.ok(&["umount", "files"]);
    sandbox.ok(&["mount", "files.img", "mnt"]);
    sandbox.ok(&["detach", "mnt"]);
    assert!(mounts_below(&sandbox.path("")).is_empty());
    let error = sandbox.fails(2, &["mount", "files.img", "mnt", "--options", "sync"]);
    assert!(error.contains("fsync"), "{error}");
    let error = sandbox.fails(2, &["mount", "files.img", "mnt", "--acknowledge", "buffered"]);
    assert!(error.contains("--acknowledge"), "{error}");
    sandbox.ok(&["fs", "mount", "files.img", "mnt", "-o", "acl,user_xattr,nosuid"]);
    assert_eq!(fs::read_to_string(sandbox.path("mnt/file")).expect("it is there"), "text");
    sandbox.ok(&["umount", "mnt"]);
}

#[test]
fn a_file_system_grows_with_its_volume_and_the_room_can_be_used() {
    let Some(_right) = can_mount("a file system grows with its volume") else { return };
    let sandbox = made();
    let grown = sandbox.json(&["grow", "files.img", "--size", "320M", "--json"]);
    assert_eq!(grown["file_system_size_bytes"], 320 << 20, "{grown}");
    sandbox.ok(&["fs", "check", "files.img"]);
    sandbox.ok(&["mount", "files.img", "mnt"]);
    // More than one group of blocks, and more than there was before.
    let content: Vec<u8> = (0..200_u32 << 20 >> 2).flat_map(u32::to_le_bytes).collect();
    fs::write(sandbox.path("mnt/large"), &content).expect("there is room");
    tool(&["umount", &sandbox.path("mnt").display().to_string()]);
    // At once: the next command waits for the daemon.
    sandbox.ok(&["fs", "check", "files.img"]);
    sandbox.ok(&["mount", "files.img", "mnt"]);
    assert!(fs::read(sandbox.path("mnt/large")).expect("it is there") == content);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["check", "files.img", "--data"]);
}

#[test]
fn the_next_command_waits_for_the_daemon_of_a_file_system_that_was_just_unmounted() {
    let Some(_right) = can_mount("the next command waits for the daemon") else { return };
    let sandbox = made();
    let mnt = sandbox.path("mnt").display().to_string();
    let verbs: [&[&str]; 4] = [
        &["fs", "check", "files.img"],
        &["check", "files.img"],
        &["dump", "files.img", "superblock"],
        &["export", "files.img", "out.img", "--force"],
    ];
    for words in verbs {
        sandbox.ok(&["fs", "mount", "files.img", "mnt"]);
        fs::write(sandbox.path("mnt/file"), vec![7; 20 << 20]).expect("there is room");
        tool(&["umount", "--internal-only", &mnt]);
        sandbox.ok(words);
    }
}

#[test]
fn a_bind_mount_is_unmounted_alone() {
    let Some(_right) = can_mount("a bind mount is unmounted alone") else { return };
    let sandbox = made();
    sandbox.ok(&["fs", "mount", "files.img", "mnt"]);
    fs::create_dir(sandbox.path("mnt/part")).expect("it is writable");
    fs::write(sandbox.path("mnt/file"), "text").expect("it is writable");
    sandbox.make_directory("bound");
    fs::write(sandbox.path("bound-file"), "").expect("it is writable");
    let text = |name: &str| sandbox.path(name).display().to_string();
    tool(&["mount", "--bind", &text("mnt/part"), &text("bound")]);
    tool(&["mount", "--bind", &text("mnt/file"), &text("bound-file")]);
    sandbox.ok(&["umount", "bound"]);
    sandbox.ok(&["umount", "bound-file"]);
    assert_eq!(fs::read_to_string(sandbox.path("mnt/file")).expect("it is served"), "text");
    sandbox.ok(&["umount", "mnt"]);
    assert!(mounts_below(&sandbox.path("")).is_empty());
}

#[test]
fn an_overlay_is_listed_with_its_directory_and_the_size_of_its_store() {
    let Some(_right) = can_mount("an overlay is listed") else { return };
    let sandbox = made();
    let data = sandbox.make_directory("data").display().to_string();
    sandbox.ok(&["overlay", "data", "--store-size", "256M"]);
    let listed = sandbox.listed();
    let entry = &listed[0];
    assert_eq!(entry["via"], "overlay", "{listed}");
    assert_eq!(entry["mount_points"][0], data.as_str());
    assert_eq!(entry["store_size_bytes"], 256 << 20);
    assert!(entry.get("store_fate").is_none(), "its store is where it was: {listed}");
    let table = sandbox.ok(&["list"]);
    assert!(table.contains("256 MiB") && !table.contains("moved"), "{table}");
    assert_eq!(sandbox.json(&["status", "data", "--json"])["name"], "data");
    let error = sandbox.fails(1, &["grow", "data"]);
    assert!(error.contains("coulter overlay detach"), "{error}");
    sandbox.ok(&["detach", "data"]);
    let error = sandbox.fails(1, &["mount", "data/.coulter/store", "mnt"]);
    assert!(error.contains("store of an overlay"), "{error}");
    let error = sandbox.fails(1, &["grow", "data/.coulter/store", "--size", "5G"]);
    assert!(error.contains("keeps its size"), "{error}");
    sandbox.ok(&["overlay", "data"]);
    sandbox.ok(&["overlay", "detach", "data"]);
    assert!(mounts_below(&sandbox.path("")).is_empty());
}

#[test]
fn a_volume_is_found_by_the_directory_that_its_file_system_is_mounted_on() {
    let Some(_right) = can_mount("a volume is found by its directory") else { return };
    let sandbox = made();
    sandbox.ok(&["create", "disk.img", "--size", "64M", "--segment-size", "2M"]);
    sandbox.ok(&["mount", "disk.img", "mnt", "--mkfs", "ext4"]);
    assert_eq!(sandbox.json(&["status", "mnt", "--json"])["name"], "disk");
    sandbox.ok(&["grow", "mnt", "--size", "80M"]);
    let error = sandbox.fails(1, &["detach", "mnt"]);
    assert!(error.contains("coulter umount"), "{error}");
    sandbox.ok(&["umount", "disk"]);
    sandbox.ok(&["attach", "disk.img"]);
    let error = sandbox.fails(1, &["umount", "disk"]);
    assert!(error.contains("mounted nowhere") && error.contains("coulter detach disk"), "{error}");
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn an_export_that_is_killed_leaves_nothing_under_the_name_of_the_image() {
    let sandbox = Sandbox::new();
    let image = vec![5; 96 << 20];
    fs::write(sandbox.path("origin.img"), &image).expect("there is room");
    sandbox.ok(&["create", "disk.img", "--from", "origin.img", "--segment-size", "2M"]);
    let mut export = sandbox.command(&["export", "disk.img", "out.img"]);
    let mut child = export.stdout(Stdio::null()).spawn().expect("it can be started");
    let partial = sandbox.path("out.img.partial");
    let has_begun = || fs::metadata(&partial).is_ok_and(|it| it.blocks() > 0);
    sandbox::wait_until("the export has begun", || has_begun() || sandbox.path("out.img").exists());
    child.kill().expect("it is ours");
    child.wait().expect("it was started");
    // It may have been faster.
    let is_whole = sandbox.path("out.img").exists();
    assert!(is_whole != partial.exists(), "one of them");
    let words: &[&str] = if is_whole { &["--force"] } else { &[] };
    sandbox.ok(&[&["export", "disk.img", "out.img"], words].concat());
    assert!(fs::read(sandbox.path("out.img")).expect("it is there") == image);
    assert!(!partial.exists(), "what the killed one left is gone");
    // The old image is given up by --force, and never looks whole before it is.
    let before = fs::metadata(sandbox.path("out.img")).expect("it is there").ino();
    sandbox.ok(&["export", "disk.img", "out.img", "--force"]);
    let after = fs::metadata(sandbox.path("out.img")).expect("it is there").ino();
    assert_eq!(before, after, "it is the file that it was");
}

#[test]
fn names_with_blanks_quotes_and_line_breaks_are_told_on_one_line_and_can_be_pasted() {
    let sandbox = Sandbox::new();
    for name in ["my disk.img", "it's.img", "a\nb.img", "日本.img", "x@y.img", "-dash.img"] {
        let output = sandbox.run(&["attach", "--via", "nbd-server", "--", name]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert_eq!(error.lines().count(), 3, "{error}");
        let command = error.split('`').nth(1).expect("it says what to do");
        assert!(command.starts_with("coulter create "), "{command}");
        let words = format!("printf '%s\\n' {}", command.trim_start_matches("coulter "));
        let pasted = Command::new("bash").args(["-c", &words]).output().expect("bash can be run");
        let pasted = String::from_utf8(pasted.stdout).expect("it is text");
        let word = pasted.trim_start_matches("create\n").trim_start_matches("./");
        assert!(word.starts_with(&format!("{name}\n")), "{command}: {pasted}");
    }
}

/// The command line with which a killed daemon is told of.
fn offered(sandbox: &Sandbox) -> String {
    let output = sandbox.command(&["list"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("was killed"), "{told}");
    told.split('`').nth(1).expect("a command line").to_owned()
}

fn paste(sandbox: &Sandbox, line: &str) {
    let coulter = sandbox.command(&[]);
    let program = coulter.get_program().to_str().expect("it is text");
    let words = line.strip_prefix("coulter").expect("it is ours");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{program}{words}")]).current_dir("/");
    let pasted = shell.env("COULTER_STATE_DIRECTORY", sandbox.path("state")).output();
    let pasted = pasted.expect("there is a shell");
    assert!(pasted.status.success(), "{line}: {}", String::from_utf8_lossy(&pasted.stderr));
}

#[test]
fn what_a_killed_daemon_of_files_was_started_with_is_offered_and_serves_again() {
    let Some(_right) = can_mount("what a killed daemon was started with") else { return };
    let sandbox = Sandbox::new();
    let (mnt, data) = (sandbox.make_directory("my mnt"), sandbox.make_directory("data"));
    sandbox.ok(&["fs", "create", "files.img", "--size", "64M"]);
    let words = ["fs", "mount", "files.img", "my mnt", "--cache", "back", "--cache-size", "32M"];
    let more = ["--options", "nosuid,nodev", "--name", "files", "--tune", "latency-target=1500us"];
    sandbox.ok(&[&words[..], &more[..]].concat());
    write_and_sync(&mnt.join("file"), b"kept");
    sandbox.signal("files", "KILL");
    let line = offered(&sandbox);
    let expected = format!(
        "coulter fs mount {} '{}' --cache=back --cache-size=33554432 --options=nosuid,nodev \
             --name=files \
         '--tune=latency-target=1ms 500us'",
        sandbox.path("files.img").display(),
        mnt.display()
    );
    assert_eq!(line, expected);
    paste(&sandbox, &line);
    assert_eq!(fs::read(mnt.join("file")).expect("it was synced"), b"kept");
    assert_eq!(sandbox.listed()[0]["again"], expected.as_str(), "it is as it was");
    sandbox.ok(&["umount", "files"]);

    let words = ["overlay", "data", "--store-size", "256M", "--remap", "all", "--settle", "idle"];
    sandbox.ok(&[&words[..], &["--cache", "back"]].concat());
    sandbox.signal("data", "KILL");
    let line = offered(&sandbox);
    let data = data.display();
    let expected =
        format!("coulter overlay {data} --remap=all --settle=idle --cache=back --name=data");
    assert_eq!(line, expected);
    paste(&sandbox, &line);
    assert_eq!(sandbox.json(&["overlay", "status", "data", "--json"])["remap"], "all");
    sandbox.ok(&["overlay", "detach", "data"]);
}

#[test]
fn a_mount_that_was_taken_away_lazily_while_it_is_in_use_is_told_and_stands_in_nobodys_way() {
    let Some(_right) = can_mount("a mount that was taken away lazily") else { return };
    let sandbox = made();
    let data = sandbox.make_directory("data");
    let begin = [
        (&["fs", "mount", "files.img", "mnt"][..], "files", sandbox.path("mnt")),
        (&["overlay", "data", "--store-size", "256M"][..], "data", data),
    ];
    for (words, name, directory) in begin {
        sandbox.ok(words);
        fs::write(directory.join("file"), "text").expect("it is writable");
        let mut file = fs::File::open(directory.join("file")).expect("it is there");
        tool(&["umount", "-l", &directory.display().to_string()]);
        let own = format!("process {} ", std::process::id());
        let start = Instant::now();
        let error = sandbox.fails(1, &["detach", name]);
        assert!(error.contains(&own) && error.contains("before it was unmounted"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        wait_until("status tells it", || {
            let status = sandbox.run(&["status", name]);
            let told = [status.stdout, status.stderr].concat();
            String::from_utf8_lossy(&told).contains("while files of it are open")
        });
        // It is served for as long as a program uses it.
        let mut text = String::new();
        file.read_to_string(&mut text).expect("it is served");
        assert_eq!(text, "text");
        drop(file);
        wait_until("its daemon ends", || {
            String::from_utf8_lossy(&sandbox.run(&["list", "--json"]).stdout).trim_end() == "[]"
        });

        sandbox.ok(words);
        let file = fs::File::open(directory.join("file")).expect("it is there");
        tool(&["umount", "-l", &directory.display().to_string()]);
        sandbox.ok(&["detach", name, "--force"]);
        drop(file);
        sandbox.ok(words);
        sandbox.ok(&["umount", name]);
    }
    sandbox.ok(&["overlay", "detach", "data"]);
}
