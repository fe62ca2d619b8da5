//! Commands that cannot work, over attach and mount, fs, overlay and serve: in the wrong order, on
//! the wrong kind of thing, with odd names, without rights, without room. Each says what it could
//! not do and to what, why, and what to do about it. Needs root, FUSE and loop devices.

mod judge;
mod sandbox;

use judge::{faults_of, is_from_parser};
use sandbox::{Sandbox, can_mount, mounts_below};
use std::fs;
use std::process::{Command, Output};

/// A command, in which a word with blanks stands in braces and `\n` for a line break; its exit
/// code; and words that its message must have.
type Wrong = (&'static str, i32, &'static [&'static str]);

/// `files.img` is mounted on `mnt`, an overlay is over `data`, `vol.img` is served as `vol`;
/// `idle.img` holds a Coulter file system, `blank.img` nothing.
const ORDER: &[Wrong] = &[
    ("fs mount files.img mnt2", 1, &["already attached", "'files'", "coulter detach files"]),
    ("fs mount files mnt2", 1, &["files.img", "already attached"]),
    ("fs mount vol mnt2", 1, &["vol.img", "already attached", "coulter detach vol"]),
    ("fs mount idle.img mnt", 1, &["mounted there already", "coulter umount"]),
    ("mount idle.img mnt", 1, &["mounted there already", "coulter umount"]),
    ("mount vol.img mnt2", 1, &["'vol'", "no block device", "coulter detach vol"]),
    ("mount vol mnt2", 1, &["'vol'", "no block device", "coulter detach vol"]),
    ("mount blank.img mnt2", 1, &["holds no file system", "--mkfs ext4"]),
    ("fs mount blank.img mnt2", 1, &["no Coulter file system", "coulter mount", "fs create"]),
    ("mount idle.img mnt2 --options sync", 2, &["option sync", "fsync", "leave it away"]),
    ("mount idle.img mnt2 --trim yes", 2, &["--trim", "holds a Coulter file system"]),
    ("fs mount idle.img mnt2 --options bogus", 2, &["bogus", "no such option", "nosuid"]),
    ("fs mount idle.img mnt2 --options dirsync", 2, &["dirsync", "fsync"]),
    (
        "fs mount idle.img mnt2 --options lazytime",
        2,
        &["lazytime", "access times", "leave it away"],
    ),
    ("fs mount idle.img mnt2 --options noacl", 2, &["noacl", "always kept"]),
    ("attach files.img", 1, &["already attached", "coulter detach files"]),
    ("attach idle.img --via nbd-server --name files", 1, &["'files' is taken", "--name"]),
    ("detach mnt2", 1, &["'mnt2' is not attached", "its directory"]),
    ("detach idle.img", 1, &["'idle.img' is not attached", "vol", "coulter list"]),
    ("detach {}", 1, &["'' is not attached", "coulter list"]),
    ("status {}", 1, &["'' is not attached", "coulter list"]),
    ("status directory", 1, &["'directory' is not attached"]),
    ("umount vol", 1, &["'vol'", "mounted nowhere", "coulter detach vol"]),
    ("umount directory", 1, &["nothing is mounted there", "findmnt"]),
    ("umount nowhere", 1, &["nowhere", "no such file or directory", "coulter list"]),
    ("umount files.img.x", 1, &["no such file or directory"]),
    (
        "grow mnt --size 1G",
        1,
        &["mounted on", "coulter umount", "files.img --size 1073741824`", "`coulter fs mount"],
    ),
    ("upgrade files", 1, &["mounted on", "cannot wait", "coulter umount", "`coulter fs mount"]),
    ("upgrade data", 1, &["mounted on", "cannot wait", "coulter umount", "`coulter overlay"]),
    (
        "replicate files file:///no/vol",
        1,
        &["not replicated", "coulter umount", "files.img file:///no/vol`", "`coulter fs mount"],
    ),
    ("replicate data file:///no/vol", 1, &["a mount is not replicated", "`coulter overlay"]),
    ("replicate vol --ack remote", 1, &["it is not replicated", "coulter replicate vol URL"]),
    ("replicate vol file:///no/such/vol", 1, &["no such bucket", "goes on as before"]),
    ("replicate idle.raw file:///no/vol", 1, &["idle.raw", "no store here", "check that the path"]),
    ("attach vol", 1, &["vol.img is already attached", "coulter detach vol"]),
    ("umount mnt/sub", 1, &["it lies on", "files.img", "coulter umount"]),
    ("overlay detach files.img", 1, &["not a directory", "name the directory"]),
    ("overlay status files.img", 1, &["not a directory", "name the directory"]),
    ("grow files", 1, &["mounted on", "coulter umount"]),
    ("grow data", 1, &["overlay over", "coulter overlay detach", "--store-size"]),
    ("grow vol --size 1M", 2, &["never shrinks", "another --size"]),
    ("grow idle.img --size 1M", 2, &["never shrinks", "another --size"]),
    ("grow directory", 2, &["it is a directory", "file or disk of a store"]),
    ("grow nothing", 1, &["no such file", "no volume of that name", "check the path"]),
    ("check directory", 2, &["it is a directory", "file or disk of a store"]),
    ("check mnt/x", 1, &["mnt/x", "no such file", "check the path"]),
    ("fs check mnt", 1, &["files.img", "in use", "coulter umount"]),
    ("fs check vol", 1, &["vol.img", "in use", "coulter detach vol"]),
    ("fs check data", 1, &["in use", "coulter umount"]),
    ("fs check blank.img", 1, &["holds no Coulter file system", "coulter check blank.img"]),
    ("fs dump blank.img", 1, &["holds no Coulter file system", "coulter check blank.img"]),
    ("fs check directory", 2, &["it is a directory"]),
    ("fs salvage idle.img no/such/out", 1, &["no/such/out", "mkdir -p no/such"]),
    ("fs create files.img --force", 1, &["files.img", "in use", "coulter umount"]),
    ("fs create directory --size 1G", 2, &["directory", "neither a regular file", "name a file"]),
    ("create files.img --force", 1, &["files.img", "in use", "coulter umount"]),
    ("export mnt out.img", 1, &["files.img", "in use", "coulter umount"]),
    ("export vol out.img", 1, &["vol.img", "in use", "coulter detach vol"]),
    ("export idle.img idle.img", 2, &["the store itself", "name another"]),
    ("export idle.img no/out.img", 1, &["no/out.img", "mkdir -p no"]),
    ("export idle.img directory", 2, &["directory", "neither a regular file"]),
    ("export directory out.img", 2, &["it is a directory", "name the file or disk"]),
    ("export nothing out.img", 1, &["nothing", "check the path", "coulter list"]),
    ("move vol file:///no/vol", 1, &["cannot move", "no such bucket", "check the URL"]),
    ("move nothing file:///no/vol", 1, &["nothing", "no such file", "check the path"]),
    ("move vol", 2, &["<URL>"]),
    ("scrub directory", 1, &["'directory' is not attached"]),
    ("scrub idle.img", 1, &["idle.img", "coulter check --data idle.img", "coulter attach"]),
    ("tune directory cleaning=paused", 1, &["'directory' is not attached"]),
    ("sync vol", 1, &["vol", "no such file", "check the path"]),
];

const OVERLAYS: &[Wrong] = &[
    ("overlay data", 1, &["one is over it already", "coulter overlay status"]),
    ("overlay mnt", 1, &["a Coulter file system is mounted there", "ext4, XFS or Btrfs"]),
    ("overlay nowhere", 1, &["nowhere", "no such file", "check the path"]),
    ("overlay files.img", 1, &["not a directory", "name a directory"]),
    ("overlay /", 1, &["root of everything", "/srv/data"]),
    ("overlay /proc", 1, &["/proc", "ext4, XFS or Btrfs"]),
    ("overlay full", 1, &["tmpfs", "ext4, XFS or Btrfs"]),
    ("overlay data extra", 2, &["unexpected argument 'extra'"]),
    ("overlay directory --store no/such/store", 1, &["no/such", "mkdir -p"]),
    ("overlay directory --store directory/s", 1, &["lies in it", "--store"]),
    ("overlay directory --store blank.img", 1, &["blank.img", "holds a Coulter store"]),
    ("overlay status mnt", 1, &["a Coulter file system is mounted there", "coulter status"]),
    ("overlay status directory", 1, &["no overlay is over it", "coulter overlay"]),
    ("overlay settle vol", 1, &["vol", "no such file", "check the path"]),
    ("overlay check directory", 1, &["no overlay is over it"]),
    ("overlay detach mnt", 1, &["a Coulter file system is mounted there"]),
    ("overlay detach directory", 1, &["no overlay is over it"]),
    ("overlay adopt-orphan data 7 data/x", 1, &["no orphan 7", "list-orphans"]),
    ("overlay adopt-orphan data seven data/x", 2, &["seven", "list-orphans"]),
    ("overlay remap data", 2, &["<WHAT>"]),
    ("overlay remap data sideways", 2, &["sideways", "random, all, off"]),
    ("overlay list", 2, &["'list'", "coulter list", "./list"]),
    ("overlay tune", 2, &["'tune'", "coulter tune", "./tune"]),
    ("overlay grow data", 2, &["'grow'", "coulter grow STORE"]),
    ("overlay mount data", 2, &["'mount'", "coulter overlay DIR"]),
    ("mount data/.coulter/store mnt2", 1, &["data/.coulter/store", "served as 'data'"]),
];

const SERVERS: &[Wrong] = &[
    ("serve vol.img --nbd unix:s", 1, &["already attached", "coulter detach vol"]),
    ("serve files.img --nbd unix:s", 1, &["already attached", "coulter detach files"]),
    ("serve blank.img", 2, &["--nbd <ADDRESS>"]),
    ("serve blank.img --nbd unix:a --nvme tcp:127.0.0.1:0", 2, &["--nbd", "--nvme"]),
    ("serve blank.img --nbd unix:a --nvme-keys k", 2, &["--nbd", "--nvme-keys"]),
    ("serve blank.img --nbd unix:a --discovery", 2, &["--nbd", "--discovery"]),
    ("serve blank.img --nbd unix:", 2, &["the path is missing"]),
    ("serve blank.img --nbd unix:/no/such/socket", 1, &["no such file", "mkdir -p /no/such"]),
    ("serve blank.img --nbd unix:files.img", 1, &["not a socket", "choose another path"]),
    ("serve blank.img --nbd tcp:127.0.0.1:99999", 2, &["port", "65536"]),
    ("serve blank.img --nbd tcp:0.0.0.0:0", 2, &["0.0.0.0", "loopback", "--allow-remote"]),
    ("serve blank.img --nbd tcp:192.0.2.1:9 --allow-remote", 1, &["192.0.2.1:9", "ip address"]),
    ("serve blank.img --nvme unix:/tmp/x", 2, &["TCP only", "tcp:127.0.0.1:4420"]),
    ("serve blank.img --nvme tcp:0.0.0.0:0", 2, &["0.0.0.0", "--nvme-keys", "--allow-remote"]),
    (
        "serve blank.img --nvme tcp:127.0.0.1:0 --nvme-keys nokeys",
        1,
        &["nokeys", "No such file", "HOST-NQN"],
    ),
    ("serve blank.img --nvme tcp:127.0.0.1:0 --block-size 1024", 2, &["512 or 4096"]),
    ("serve directory --nbd unix:s", 2, &["it is a directory", "name the file or disk"]),
    ("serve {no such.img} --nbd unix:s", 1, &["no such.img", "check the path"]),
];

const NAMES: &[Wrong] = &[
    ("fs mount {no such.img} mnt2", 1, &["no such.img", "coulter fs create 'no such.img'"]),
    ("fs mount {it's.img} mnt2", 1, &["it's.img", "'it'\\''s.img'"]),
    ("fs mount {new\\nline.img} mnt2", 1, &["cannot open new\\nline.img", "$'new\\nline.img'"]),
    ("mount 日本.img mnt2", 1, &["日本.img", "check the path"]),
    ("attach x@y.img", 1, &["coulter create x@y.img"]),
    ("attach -- -dash.img", 1, &["coulter create ./-dash.img"]),
    ("attach {$HOME.img}", 1, &["'$HOME.img'"]),
    ("attach ../no/../such.img", 1, &["no such file", "check the path"]),
    ("attach blank.img --name .. --via nbd-server", 2, &["'..'", "letters, digits", "--name"]),
    ("attach blank.img --name x@y --via nbd-server", 2, &["'x@y'", "letters, digits"]),
    ("attach blank.img --name {a\\nb} --via nbd-server", 2, &["'a\\nb'", "letters, digits"]),
    ("overlay {my data} --name {a b}", 2, &["'a b'", "--name"]),
    ("overlay status {my data}", 1, &["coulter overlay '", "my data'"]),
    ("detach {a\\nb}", 1, &["'a\\nb' is not attached"]),
    ("umount {a\\nb}", 1, &["a\\nb", "no such file or directory"]),
    ("fs check {../x y}", 1, &["../x y", "check the path"]),
    ("fs mount idle.img {my dir}", 1, &["my dir", "no such directory"]),
    ("fs mount idle.img files.img", 1, &["files.img", "not a directory"]),
    ("{a\\nverb} x", 2, &["'a\\nverb'"]),
    ("list {a\\nb}", 2, &["'a\\nb'"]),
];

/// The URL of a copy where the path of a store belongs.
const URLS: &[Wrong] = &[
    ("check s3://bucket/vol", 2, &["the URL of a copy", "coulter restore s3://bucket/vol FILE"]),
    ("grow s3://bucket/vol", 2, &["the URL of a copy", "--cache FILE"]),
    ("dump s3://bucket/vol superblock", 2, &["the URL of a copy"]),
    ("salvage s3://bucket/vol out.img", 2, &["the URL of a copy"]),
    ("export {file:///no/my vol} out.img", 2, &["coulter restore 'file:///no/my vol' FILE"]),
    ("move file:///no/vol file:///no/vol", 2, &["the URL of a copy"]),
    ("create s3://bucket/vol --size 64M", 2, &["the URL of a copy", "--cache FILE"]),
    ("fs create file:///no/vol --size 64M", 2, &["the URL of a copy"]),
    ("fs mount file:///no/vol mnt2", 2, &["the URL of a copy"]),
    ("fs check file:///no/vol", 2, &["the URL of a copy"]),
    ("mount s3://bucket/vol mnt2", 2, &["needs a local file as cache", "--cache FILE"]),
    ("attach file:///no/vol@x --cache c", 2, &["'@'", "coulter restore URL@SNAPSHOT FILE"]),
];

const ROOM: &[Wrong] = &[
    (
        "create full/x.img --size 1G",
        1,
        &["full/x.img", "no space left", "1 MiB are free", "free space", "a smaller size"],
    ),
    ("fs create full/x.img --size 64M", 1, &["full/x.img", "no space left", "free space"]),
    ("fs create full/y.img --size 64M --sparse", 1, &["full/y.img", "No space left", "free space"]),
    ("create full/z.img --from idle.raw --sparse", 1, &["full/z.img", "space"]),
];

/// As another user, to whom nothing here belongs.
const RIGHTS: &[Wrong] = &[
    ("fs mount idle.img mnt2", 1, &["mounting", "root", "sudo"]),
    ("mount blank.img mnt2", 1, &["mounting", "root", "sudo"]),
    ("overlay directory", 1, &["root", "sudo"]),
    ("overlay status data", 1, &["root", "sudo"]),
    ("attach blank.img --via nbd-server", 1, &["blank.img", "no permission", "as root"]),
    ("attach blank.img --via loop", 1, &["root", "sudo", "nbd-server"]),
    ("check blank.img", 1, &["blank.img", "no permission"]),
    ("fs check idle.img", 1, &["idle.img", "no permission"]),
    ("grow blank.img", 1, &["blank.img", "permission", "root"]),
    ("detach files", 1, &["not attached", "volumes of other users"]),
    ("status vol", 1, &["not attached", "volumes of other users"]),
    ("umount mnt", 1, &["files.img is mounted there", "sudo"]),
    ("create new.img --size 64M", 1, &["permission denied", "permissions of the directory ."]),
    ("replica status file:///root/vol", 1, &["refuses access", "the owner of that directory"]),
    ("serve blank.img --nbd tcp:127.0.0.1:0", 1, &["blank.img", "no permission"]),
    ("export idle.img out.img", 1, &["idle.img", "no permission"]),
];

fn words_of(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('{') {
            Some(inner) => inner.split_once('}').expect("a brace is closed"),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(word.replace("\\n", "\n"));
        rest = behind.trim_start();
    }
    words
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["mnt", "mnt2", "data", "my data", "directory", "full", "theirs"] {
        sandbox.make_directory(name);
    }
    for name in ["files.img", "idle.img"] {
        sandbox.ok(&["fs", "create", name, "--size", "64M", "--segment-size", "2M"]);
    }
    for name in ["vol.img", "blank.img"] {
        sandbox.ok(&["create", name, "--store-size", "128M", "--segment-size", "2M"]);
    }
    sandbox.ok(&["export", "idle.img", "idle.raw"]);
    let full = sandbox.path("full").display().to_string();
    let words = ["-t", "tmpfs", "-o", "size=1M", "tmpfs", &full];
    let mounted = Command::new("mount").args(words).status().expect("it can be run");
    assert!(mounted.success());
    sandbox.ok(&["fs", "mount", "files.img", "mnt"]);
    fs::create_dir(sandbox.path("mnt/sub")).expect("it is writable");
    sandbox.ok(&["attach", "vol.img", "--via", "nbd-server"]);
    sandbox.ok(&["overlay", "data", "--store-size", "256M"]);
    sandbox
}

/// Runs it as root, or as a user who has one directory for the state.
fn run(sandbox: &Sandbox, words: &[String], is_root: bool) -> Output {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if is_root {
        return sandbox.run(&words);
    }
    let command = sandbox.command(&words);
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    other.arg(command.get_program()).args(&words).current_dir(sandbox.path(""));
    other.env("COULTER_STATE_DIRECTORY", sandbox.path("theirs/state"));
    other.output().expect("setpriv can be run")
}

#[test]
fn every_door_says_what_where_why_and_what_to_do() {
    let Some(_right) = can_mount("every door says what, where, why and what to do") else { return };
    let sandbox = sandbox();
    sandbox.let_others_in();
    std::os::unix::fs::chown(sandbox.path("theirs"), Some(65534), None).expect("root may");
    let mut poor = Vec::new();
    let groups = [ORDER, OVERLAYS, SERVERS, NAMES, URLS, ROOM, RIGHTS];
    assert!(groups.iter().map(|group| group.len()).sum::<usize>() >= 130);
    for group in groups {
        for (line, code, words) in group {
            let output = run(&sandbox, &words_of(line), !std::ptr::eq(group, RIGHTS));
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            // Notes may come first.
            let begin = message.find("error: ").unwrap_or(0);
            let message = &message[begin..];
            let mut faults = faults_of(*code, words, output.status.code(), message);
            // Without rights the reason is said with what could not be done.
            faults.retain(|fault| !(fault == "does not say why" && message.contains("needs root")));
            if !is_from_parser(message) && message.lines().count() > 3 {
                faults.push("does not keep to its lines".to_owned());
            }
            let advises = ["\n  do:  ", "; run as its owner or as root"];
            if !is_from_parser(message) && !advises.iter().any(|it| message.contains(it)) {
                faults.push("does not say what to do".to_owned());
            }
            if !faults.is_empty() {
                poor.push(format!("coulter {line}\n  {}\n{message}", faults.join("\n  ")));
            }
        }
    }
    let status = sandbox.ok(&["status", "data"]);
    assert!(status.starts_with("data  256 MiB at"), "the size of its store: {status}");
    // None of that has changed anything.
    fs::write(sandbox.path("mnt/file"), "text").expect("it is still mounted");
    let attached = sandbox.listed();
    let names: Vec<_> =
        attached.as_array().expect("an array").iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["data", "files", "vol"]);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["overlay", "detach", "data"]);
    sandbox.ok(&["detach", "vol"]);
    for name in ["files.img", "idle.img"] {
        sandbox.ok(&["fs", "check", name]);
    }
    let full = sandbox.path("full");
    let left: Vec<_> = fs::read_dir(&full).expect("it is readable").flatten().collect();
    let _ = Command::new("umount").arg(&full).status();
    assert!(left.is_empty(), "{left:?}");
    assert!(mounts_below(&sandbox.path("")).is_empty());
    assert!(poor.is_empty(), "{} are poor:\n\n{}", poor.len(), poor.join("\n"));
}
