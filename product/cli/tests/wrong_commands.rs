//! Commands that cannot work: each says what it could not do and to what, why, and what to do about it, and ends
//! with 2 if the command line is to blame and with 1 if the world is. And it changes nothing.

mod judge;
mod sandbox;

use judge::faults_of;
use sandbox::Sandbox;
use std::fs::{self, File};
use std::path::Path;

/// A command, its exit code, and words that its message must have.
type Wrong = (&'static str, i32, &'static [&'static str]);

const CREATE: &[Wrong] = &[
    ("create", 2, &["<PATH>"]),
    ("create new.img", 2, &["cannot make new.img", "no size is given", "--size 10G"]),
    ("create new.img --size 0", 2, &["new.img", "volume size", "not zero"]),
    ("create new.img --size -1G", 2, &["-1G", "below zero"]),
    ("create new.img --size 500T", 2, &["500 TiB", "16 TiB at most"]),
    ("create new.img --size 1X", 2, &["'1X'", "--size", "'X' is not a unit", "K, M, G"]),
    ("create new.img --size 10GB", 2, &["--size", "ambiguous", "write G or GiB"]),
    ("create new.img --store-size 1K", 2, &["has 1 KiB", "needs", "larger device"]),
    ("create new.img --size +1G", 2, &["'+1G'", "digits and a unit", "1.5G"]),
    ("create new.img --size 1,5G", 2, &["'1,5G'", "digits and a unit", "1.5G"]),
    ("create new.img --size ten", 2, &["'ten'", "digits and a unit"]),
    (
        "create new.img --size 64M --capacity 128M",
        2,
        &["--capacity 128 MiB is more than --size 64 MiB"],
    ),
    ("create new.img --size 9999999999G", 2, &["--size", "larger than 8 EiB"]),
    ("create new.img --size 1G --segment-size 3M", 2, &["segment size", "power of two"]),
    ("create new.img --size 1G --segment-size 1M", 2, &["segment size", "from 2 MiB"]),
    ("create new.img --store-size 1G --size 1G", 2, &["too little room for cleaning", "at most"]),
    ("create new.img --store-size 1G --size 0", 2, &["volume size", "not zero"]),
    ("create new.img --store-size 1G --size 1000", 2, &["volume size", "multiple of 4096"]),
    ("create new.img --size 1G --spare 3", 2, &["spare", "at least"]),
    ("create new.img --size 1G --spare -5", 2, &["-5", "--spare"]),
    ("create new.img --size 1G --spare 1001", 2, &["--spare", "ten times the volume"]),
    ("create new.img --size 1G --label LONG", 2, &["label", "at most 64 bytes"]),
    ("create new.img --size 1G --map-memory 1K", 2, &["map", "at least"]),
    ("create directory --size 1G", 2, &["directory", "neither a regular file", "name a file"]),
    ("create no/such/new.img --size 1G", 1, &["no/such", "no such file or directory"]),
    ("create /dev/nosuch", 1, &["/dev/nosuch", "no such device", "lsblk"]),
    ("create /dev/null --size 1G", 2, &["/dev/null", "neither a regular file"]),
    ("create text.img --size 1G", 1, &["text.img", "holds data", "--force"]),
    ("create present.img", 1, &["present.img", "holds a Coulter store", "--force"]),
    ("create disk.img --force", 1, &["disk.img", "coulter detach disk"]),
    ("create zeros.img --store-size 1M", 2, &["will not shrink", "128 MiB long"]),
    ("create empty.img", 2, &["empty.img", "it is empty", "--size 10G"]),
    ("create new.img 1G", 2, &["unexpected argument '1G'", "`--size 1G`"]),
    ("create new/ --size 1G", 1, &["new/", "name a file"]),
    ("create dangling.img --size 1G", 1, &["dangling.img", "symbolic link", "nowhere"]),
    ("create ext4.img", 1, &["ext4.img", "ext4 file system", "--force"]),
];

const ATTACH: &[Wrong] = &[
    ("attach", 2, &["<PATH>"]),
    (
        "attach missing.img",
        1,
        &["missing.img", "no such file", "do:  check the path", "coulter create"],
    ),
    ("attach text.img --via nbd-server", 1, &["text.img", "no store here"]),
    (
        "attach ext4.img --via nbd-server",
        1,
        &["ext4.img", "no store here: it holds an ext2, ext3 or ext4", "path is right"],
    ),
    ("attach empty.img --via nbd-server", 1, &["empty.img", "it is empty", "coulter create"]),
    ("attach zeros.img --via nbd-server", 1, &["zeros.img", "nothing but zeros", "coulter create"]),
    (
        "attach directory --via nbd-server",
        2,
        &["directory", "it is a directory", "name the file or disk"],
    ),
    ("attach present.img --via nbd-server --name a/b", 2, &["a/b", "letters, digits"]),
    ("attach present.img --name disk --via nbd-server", 1, &["disk", "name", "--name"]),
    (
        "attach disk.img --via nbd-server",
        1,
        &["disk.img", "served as 'disk'", "coulter detach disk"],
    ),
    ("attach present.img --via usb", 2, &["usb", "--via", "loop"]),
    ("attach present.img --via nbd-server --map-memory 1", 1, &["present.img", "map memory"]),
    ("attach present.img --tune cleaning=fast", 2, &["cleaning", "fast", "paced"]),
    ("attach present.img --tune speed=1", 2, &["speed", "cleaning-rate"]),
    ("attach present.img --metrics nonsense", 2, &["--metrics", "nonsense"]),
    ("attach present.img --via nbd-server --metrics 192.0.2.1:9", 2, &["192.0.2.1:9", "loopback"]),
    ("attach pipe --via nbd-server", 2, &["pipe", "neither a file nor a block device"]),
    ("serve pipe --nbd unix:pipe.sock", 2, &["pipe", "neither a file nor a block device"]),
    ("attach cut.img --via nbd-server", 1, &["cut.img", "truncated"]),
    ("serve present.img", 2, &["--nbd"]),
    ("serve present.img --nbd somewhere", 2, &["no such kind of address", "tcp:host:port"]),
    ("serve present.img --nbd tcp:0.0.0.0:0", 2, &["0.0.0.0", "--allow-remote"]),
    (
        "serve present.img --nbd unix:/no/such/socket",
        1,
        &["cannot listen on unix:/no/such/socket", "no such file", "mkdir -p /no/such"],
    ),
    (
        "serve present.img --nbd unix:no/such/socket",
        1,
        &["no/such/socket", "no such file", "mkdir -p"],
    ),
    ("serve present.img --nbd tcp:192.0.2.1:9 --allow-remote", 1, &["192.0.2.1:9", "ip address"]),
    ("serve missing.img --nbd tcp:127.0.0.1:0", 1, &["missing.img", "no such file"]),
];

const VOLUME: &[Wrong] = &[
    ("detach", 2, &["NAME|PATH|DEVICE"]),
    ("detach nobody", 1, &["'nobody' is not attached", "disk", "coulter list"]),
    ("detach /dev/loop9999", 1, &["/dev/loop9999", "is not attached", "coulter list"]),
    ("detach present.img", 1, &["present.img", "is not attached"]),
    ("list disk", 2, &["unexpected argument 'disk'"]),
    ("status nobody", 1, &["'nobody' is not attached", "coulter list"]),
    ("status disk other", 2, &["unexpected argument 'other'"]),
    ("tune nobody cleaning=paused", 1, &["'nobody' is not attached"]),
    ("tune disk cleaning=fast", 2, &["fast", "paced"]),
    ("tune disk cleaning-rate=lots", 2, &["lots"]),
    ("tune disk cleaning", 2, &["cleaning", "="]),
    ("restart nobody", 1, &["'nobody' is not attached"]),
    ("mount missing.img directory", 1, &["missing.img", "no such file", "--create --size 10G"]),
    ("mount missing.img directory --size 1G --mkfs ext4", 1, &["no such file", "--create"]),
    ("mount missing.img directory --create", 2, &["missing.img", "--size 10G"]),
    ("mount present.img directory --create", 1, &["no file system", "--mkfs ext4"]),
    ("mount present.img nodirectory", 1, &["no such directory", "mkdir -p nodirectory"]),
    ("mount present.img text.img", 1, &["text.img", "not a directory", "name a directory"]),
    ("mount directory present.img", 1, &["not a directory", "the store comes first"]),
    ("mount present.img /proc", 1, &["proc is mounted there already", "`umount /proc`"]),
    ("mount pipe directory", 2, &["pipe", "neither a file nor a block device"]),
    ("mount present.img directory --mkfs fat", 2, &["fat", "--mkfs", "ext4"]),
    ("mount text.img directory", 1, &["text.img", "no store here"]),
    ("umount directory", 1, &["directory", "nothing is mounted there", "findmnt"]),
    ("umount /proc", 1, &["/proc", "is mounted there", "coulter list"]),
];

const OFFLINE: &[Wrong] = &[
    (
        "grow missing.img",
        1,
        &["missing.img", "no such file", "no volume of that name", "do:  check the path"],
    ),
    ("grow disk.img --store-size 1M", 2, &["disk", "never shrinks"]),
    ("grow present.img --store-size 1M", 2, &["will not shrink", "never shrinks"]),
    ("grow present.img --size 4K", 2, &["present.img", "never shrinks"]),
    ("grow present.img --spare 1000", 2, &["present.img", "never shrinks", "at most"]),
    ("grow present.img --spare 1", 2, &["present.img", "at least 7 %"]),
    (
        "grow text.img --store-size 1G",
        1,
        &["text.img", "no store here", "do:  check that the path"],
    ),
    ("grow ext4.img", 1, &["ext4.img", "it holds an ext2", "do:  check that the path"]),
    ("grow present.img +1G", 2, &["unexpected argument '+1G'", "`--size +1G`"]),
    ("check missing.img", 1, &["missing.img", "no such file"]),
    ("check text.img", 1, &["text.img"]),
    ("check small.txt", 1, &["small.txt", "no store here", "6 bytes", "do:  check the path"]),
    ("attach small.txt --via nbd-server", 1, &["small.txt", "no store here", "check the path"]),
    (
        "scrub present.img",
        1,
        &["present.img", "not attached", "coulter check --data present.img", "coulter attach"],
    ),
    ("dump present.img everything", 2, &["everything", "superblock"]),
    ("dump present.img records --segment 99999", 2, &["segment 99999", "its segments are 0 to"]),
    ("salvage present.img present.img", 2, &["present.img", "that is the store itself"]),
    ("salvage missing.img out.img", 1, &["missing.img", "no such file"]),
    ("salvage present.img text.img", 1, &["text.img", "--force"]),
    ("atach present.img", 2, &["unrecognized subcommand 'atach'", "'attach'"]),
    ("--log-format xml list", 2, &["xml", "text", "json"]),
    ("--state-directory /proc/no list", 0, &[]),
    ("--state-directory /proc/no attach present.img", 1, &["/proc/no"]),
];

const WORDS: &[Wrong] = &[
    ("version", 2, &["'version'", "coulter --version"]),
    ("fsck present.img", 2, &["'fsck'", "coulter check PATH", "coulter fs check PATH"]),
    ("mkfs new.img", 2, &["'mkfs'", "coulter fs create PATH"]),
    ("mkfs.xfs new.img", 2, &["'mkfs.xfs'", "coulter mount PATH DIR --mkfs"]),
    ("remove disk", 2, &["'remove'", "coulter detach NAME"]),
    ("fs umount directory", 2, &["'umount'", "coulter umount DIR"]),
    ("fs list", 2, &["'list'", "coulter list"]),
    ("overlay list", 2, &["'list' is a verb", "coulter list", "./list"]),
    ("overlay frobnicate directory", 2, &["'frobnicate'", "status, settle, check"]),
    ("overlay directory extra", 2, &["unexpected argument 'extra'"]),
    ("overlay umount directory", 2, &["'umount'", "coulter overlay detach DIR"]),
    ("list --all", 2, &["unexpected argument '--all'"]),
];

const FILES: &[Wrong] = &[
    ("fs create", 2, &["<PATH>"]),
    ("fs create new.img", 2, &["cannot make new.img", "no size is given", "--size 10G"]),
    ("fs create new.img 10G", 2, &["unexpected argument '10G'", "`--size 10G`"]),
    ("fs create new.img --size 0", 2, &["new.img", "volume size", "not zero"]),
    ("fs create text.img --size 1G", 1, &["text.img", "holds data", "--force"]),
    ("fs create present.img", 1, &["present.img", "holds a Coulter store", "--force"]),
    (
        "fs mount missing.img directory",
        1,
        &["missing.img", "no such file", "check the path", "coulter fs create"],
    ),
    ("fs mount text.img directory", 1, &["text.img", "no store here"]),
    ("fs mount present.img directory", 1, &["no Coulter file system", "coulter fs create"]),
    ("fs mount present.img nodirectory", 1, &["no such directory", "mkdir -p nodirectory"]),
    ("fs mount present.img text.img", 1, &["text.img", "not a directory"]),
    ("fs mount pipe directory", 2, &["pipe", "neither a file nor a block device"]),
    ("fs salvage pipe out", 1, &["pipe", "neither a regular file nor a block device"]),
    ("fs salvage text.img out", 1, &["text.img", "no store here"]),
    ("fs salvage missing.img out", 1, &["missing.img", "no such file"]),
    ("fs salvage present.img out", 1, &["no Coulter file system", "coulter check present.img"]),
    ("fs salvage present.img full", 1, &["full", "not empty", "do:  empty it"]),
    ("fs mount present.img directory --cache sideways", 2, &["sideways", "through, back"]),
    ("fs check missing.img", 1, &["missing.img", "no such file", "do:  check the path"]),
    ("fs check text.img", 1, &["text.img", "no store here", "path is right"]),
    ("fs check disk.img", 1, &["disk.img", "in use", "coulter detach disk"]),
    ("fs dump missing.img", 1, &["missing.img", "no such file"]),
    ("sync directory", 1, &["directory", "no Coulter file system", "coulter fs mount"]),
    ("sync nodirectory", 1, &["nodirectory", "no such file or directory", "check the path"]),
    ("overlay", 2, &["<DIR>"]),
    ("overlay nodirectory", 1, &["nodirectory", "no such file or directory", "check the path"]),
    ("overlay text.img", 1, &["text.img", "not a directory", "name a directory"]),
    ("overlay directory --remap some", 2, &["some", "--remap", "random, all, off"]),
    ("overlay directory --settle later", 2, &["later", "--settle", "idle, unmount, never"]),
    ("overlay directory --store-size 1K", 1, &["1 KiB", "--store-size 48 MiB"]),
    ("overlay directory --store pipe", 1, &["pipe", "neither a regular file nor a block device"]),
    ("overlay status directory --jsn", 2, &["unexpected argument '--jsn'"]),
    ("overlay check directory --json", 2, &["unexpected argument '--json'"]),
    ("overlay directory --store no/such/store", 1, &["no/such", "mkdir -p"]),
    ("overlay status directory", 1, &["directory", "no overlay is over it", "coulter overlay"]),
    ("overlay settle directory", 1, &["directory", "no overlay is over it", "coulter overlay"]),
    ("overlay check directory", 1, &["directory", "no overlay is over it", "coulter overlay"]),
    ("overlay list-orphans directory", 1, &["directory", "no overlay is over it"]),
    ("overlay adopt-orphan directory 1 file", 1, &["directory", "no overlay is over it"]),
    ("overlay adopt-orphan directory one file", 2, &["<NUMBER>", "one"]),
    ("overlay remap directory off", 1, &["directory", "no overlay is over it"]),
    ("overlay remap directory", 2, &["<WHAT>"]),
    ("overlay detach nodirectory", 1, &["nodirectory", "no such file or directory"]),
];

const COPIES: &[Wrong] = &[
    ("attach present.img --replicate ftp://host/vol", 2, &["--replicate", "s3://", "file:///"]),
    ("attach present.img --replicate file://relative", 2, &["not absolute", "file:///DIRECTORY"]),
    ("attach present.img --replicate s3://", 2, &["--replicate", "3 to 63 letters"]),
    ("attach present.img --ack remote", 2, &["--replicate <URL>"]),
    ("attach present.img --replicate file:///x/v --every 5", 2, &["--every", "5sec"]),
    (
        "attach present.img --via nbd-server --replicate file:///no/such/vol",
        1,
        &["file:///no/such/vol", "no such bucket", "check the URL"],
    ),
    ("restore", 2, &["<URL[@SNAPSHOT]>"]),
    ("restore file:///no/vol new.img", 1, &["file:///no/vol", "no such bucket", "check the URL"]),
    ("restore file:///no/vol@monday new.img", 1, &["file:///no/vol@monday", "no such bucket"]),
    ("restore file:///no/vol present.img", 1, &["present.img", "there already", "not there yet"]),
    ("restore file:///no/vol@ new.img", 2, &["snapshot's name", "1 to 255 bytes"]),
    ("restore file:///no/vol@x new.img --take-over", 2, &["take over", "past", "--take-over"]),
    ("restore present.img new.img", 2, &["present.img", "s3://", "file:///"]),
    ("snapshot create file:///no/vol", 2, &["which snapshot", "the copy alone", "URL@NAME"]),
    ("snapshot create file:///no/vol@a/b", 2, &["a/b", "must not hold"]),
    ("snapshot create file:///no/vol@monday", 1, &["no such bucket", "check the URL"]),
    ("snapshot list file:///no/vol", 1, &["file:///no/vol", "no such bucket", "check the URL"]),
    ("snapshot list present.img", 2, &["present.img", "s3://"]),
    ("snapshot delete file:///no/vol", 2, &["which snapshot", "URL@NAME"]),
    ("snapshot delete file:///no/vol@monday", 1, &["no such bucket", "check the URL"]),
    ("snapshot restore file:///no/vol@x out.img", 2, &["coulter restore URL@NAME FILE"]),
    ("snapshot remove file:///no/vol@x", 2, &["coulter snapshot delete URL@NAME"]),
    ("snapshot rollback file:///no/vol", 2, &["which snapshot", "URL@NAME"]),
    ("snapshot rollback file:///no/vol@monday", 1, &["no such bucket", "check the URL"]),
    ("replica status disk", 2, &["'disk'", "s3://"]),
    ("replica status file:///no/vol", 1, &["no such bucket", "check the URL"]),
    ("replica verify file:///no/vol", 1, &["no such bucket", "check the URL"]),
    ("diff file:///no/vol", 2, &["<URL[@NAME]>"]),
    ("diff file:///no/vol@a file:///no/vol", 1, &["no such bucket", "check the URL"]),
    ("diff file:///a/vol@a file:///b/vol", 2, &["two copies", "URL@A URL@B"]),
    ("diff present.img disk.img", 2, &["present.img", "s3://"]),
    ("export missing.img out.img", 1, &["missing.img", "no such file"]),
    ("export present.img present.img", 2, &["the store itself", "name another"]),
    ("export present.img text.img", 1, &["text.img", "something", "--force"]),
    ("export disk.img out.img", 1, &["disk.img", "in use", "coulter detach disk"]),
    ("export present.img no/out.img", 1, &["no/out.img", "no such file or directory", "mkdir -p"]),
    ("create new.img --from missing.img", 1, &["missing.img", "no such file", "check the path"]),
    ("create new.img --from directory", 2, &["directory", "neither a regular file", "image"]),
    (
        "create new.img --from present.img",
        1,
        &["it is a Coulter store", "coulter export present.img FILE"],
    ),
    ("create new.img --from pipe", 2, &["pipe", "neither a regular file"]),
    ("create new.img --from empty.img", 2, &["empty.img", "it is empty"]),
    ("salvage zeros.img out.img", 1, &["zeros.img", "no superblock"]),
    ("check zeros.img", 1, &["zeros.img is not sound", "1 fault, 0 warnings"]),
    ("serve disk.img --nbd unix:s", 1, &["already attached", "coulter detach disk"]),
    ("tune disk nosuch=1", 2, &["nosuch", "cleaning-rate"]),
];

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let store = ["--store-size", "128M", "--segment-size", "2M"];
    for name in ["present.img", "disk.img", "cut.img"] {
        sandbox.ok(&[&["create", name], &store[..]].concat());
    }
    let sized = |name: &str, size: u64| {
        let file =
            File::options().create(true).truncate(false).write(true).open(sandbox.path(name));
        file.and_then(|file| file.set_len(size)).expect("it is writable");
    };
    sized("cut.img", 100 << 20);
    sized("zeros.img", 128 << 20);
    sized("empty.img", 0);
    fs::write(sandbox.path("small.txt"), "hello\n").expect("it is writable");
    fs::write(sandbox.path("text.img"), "somebody's text\n".repeat(1000)).expect("it is writable");
    let mut ext4 = vec![0; 1 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(sandbox.path("ext4.img"), ext4).expect("it is writable");
    std::os::unix::fs::symlink("nowhere", sandbox.path("dangling.img")).expect("it is writable");
    sandbox.make_directory("directory");
    sandbox.make_directory("full");
    sandbox.make_directory("full/of");
    // A program that opens it waits for ever.
    let pipe = std::process::Command::new("mkfifo").arg(sandbox.path("pipe")).status();
    assert!(pipe.expect("there is mkfifo").success());
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox
}

/// What lies in the directory: names and sizes.
fn seen(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is readable").flatten();
    let mut seen: Vec<String> = entries
        .filter(|entry| entry.file_name() != "state")
        .map(|entry| {
            let size = entry.metadata().expect("it is there").len();
            format!("{:?} {size}", entry.file_name())
        })
        .collect();
    seen.sort();
    seen
}

/// What is in the files that no command may change, be it as one that opens a store does.
fn contents(sandbox: &Sandbox) -> Vec<Vec<u8>> {
    let names = ["text.img", "ext4.img", "cut.img", "zeros.img"];
    names.map(|name| fs::read(sandbox.path(name)).expect("it is there")).to_vec()
}

#[test]
fn each_wrong_command_says_what_where_why_and_what_to_do_and_changes_nothing() {
    let sandbox = sandbox();
    let (mut before, held) = (seen(&sandbox.path("")), contents(&sandbox));
    let long = "x".repeat(65);
    let is_root = nix_is_root();
    let mut poor = Vec::new();
    let all = [CREATE, ATTACH, VOLUME, OFFLINE, WORDS, FILES, COPIES].concat();
    assert!(all.len() >= 150);
    for wrong in all {
        if !is_root && ["mount", "overlay"].iter().any(|it| wrong.0.contains(it)) {
            continue;
        }
        let words: Vec<&str> = wrong
            .0
            .split_whitespace()
            .map(|word| if word == "LONG" { &long } else { word })
            .collect();
        let output = sandbox.run(&words);
        let message = String::from_utf8_lossy(&output.stderr);
        let mut faults = faults_of(wrong.1, wrong.2, output.status.code(), &message);
        let after = seen(&sandbox.path(""));
        let changed: Vec<_> = after.iter().filter(|entry| !before.contains(entry)).collect();
        if after != before {
            faults.push(format!("has changed something: {changed:?}"));
        }
        before = after;
        if !faults.is_empty() {
            poor.push(format!("coulter {}\n  {}\n{message}", wrong.0, faults.join("\n  ")));
        }
    }
    sandbox.ok(&["detach", "disk"]);
    assert!(contents(&sandbox) == held, "what somebody has is as it was");
    assert!(poor.is_empty(), "{} are poor:\n\n{}", poor.len(), poor.join("\n"));
}

#[test]
fn the_name_of_a_killed_daemon_leads_to_what_serves_it_again() {
    let sandbox = sandbox();
    sandbox.signal("disk", "KILL");
    for words in [
        &["tune", "disk"][..],
        &["scrub", "disk"],
        &["upgrade", "disk"],
        &["grow", "disk", "--size", "1G"],
        &["export", "disk", "out.img"],
        &["check", "disk"],
        &["fs", "check", "disk"],
        &["replicate", "disk", "--status"],
    ] {
        let said = sandbox.fails(1, words);
        for word in ["the daemon of 'disk' was killed", "coulter attach ", "coulter detach disk"] {
            assert!(said.contains(word), "coulter {}: {said}", words.join(" "));
        }
    }
    sandbox.ok(&["detach", "disk"]);
    let said = sandbox.fails(1, &["tune", "disk"]);
    assert!(said.contains("'disk' is not attached"), "{said}");
}

#[test]
fn what_was_made_is_told_though_the_result_cannot_be_printed() {
    let sandbox = sandbox();
    for (words, told) in [
        (&["create", "a.img", "--size", "64M"][..], "the store was made all the same"),
        (&["create", "b.img", "--size", "64M", "--json"], "the store was made all the same"),
        (&["fs", "create", "c.img", "--size", "64M"], "the file system was made all the same"),
        (&["grow", "a.img", "--size", "80M"], "it has grown all the same"),
        (&["export", "a.img", "a.raw"], "the image was made all the same"),
    ] {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = sandbox.command(words).stdout(full).output().expect("it can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for word in [told, "cannot write to standard output"] {
            assert!(said.contains(word), "coulter {}: {said}", words.join(" "));
        }
    }
    for store in ["a.img", "b.img", "c.img"] {
        sandbox.ok(&["check", store]);
    }
    sandbox.ok(&["detach", "disk"]);
}

fn nix_is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}
