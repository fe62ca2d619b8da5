//! The life of an attached volume, from the outside, by the ways that need no root.

mod sandbox;

use coulter_system::process::{Process, Signal};
use sandbox::{Sandbox, is_running, send, skipped, wait_until};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn with_store() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox
}

#[test]
fn a_volume_is_listed_from_attach_to_detach() {
    let sandbox = with_store();
    let printed = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    assert!(printed.starts_with("nbd+unix:///disk?socket=/"), "{printed}");
    let list = sandbox.listed();
    let entry = &list[0];
    assert_eq!(entry["name"], "disk");
    assert_eq!(entry["via"], "nbd-server");
    assert_eq!(entry["device"], printed.trim_end());
    let store = sandbox.path("disk.img").canonicalize().expect("it was made");
    assert_eq!(entry["store"], store.to_str().expect("the path is text"));
    let pid = entry["pid"].as_u64().expect("a number") as u32;
    assert!(is_running(pid));
    let table = sandbox.ok(&["list"]);
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("disk ")), "{table}");

    sandbox.ok(&["detach", "disk"]);
    assert!(!is_running(pid), "detach came back before the daemon was gone");
    assert_eq!(sandbox.listed(), Value::Array(Vec::new()));
}

/// `kill` comes back before the kernel has closed what the daemon had.
#[test]
fn a_daemon_that_was_killed_just_now_is_not_said_to_live() {
    let sandbox = with_store();
    for round in 0..15 {
        sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        let process = Process::with_pid(sandbox.pid_of("disk")).expect("it runs");
        let verb = if round % 3 == 0 { "status" } else { "list" };
        let listing = {
            let mut command = sandbox.command(&[verb, "--json"]);
            process.signal(Signal::KILL).expect("it runs");
            command.output().expect("it can be started")
        };
        let (shown, told) = [listing.stdout, listing.stderr]
            .map(|it| String::from_utf8_lossy(&it).into_owned())
            .into();
        assert_eq!(listing.status.code(), Some(1), "{round}: {shown}{told}");
        assert!(told.contains("'disk' was killed"), "{round}: {shown}{told}");
        assert!(verb == "status" || shown.contains("\"killed\": true"), "{round}: {shown}{told}");
    }
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn a_store_whose_path_is_no_text_is_refused_in_words() {
    let sandbox = with_store();
    let name = OsStr::from_bytes(b"d\xff.img");
    fs::rename(sandbox.path("disk.img"), sandbox.path("").join(name)).expect("it was made");
    for words in [&["attach", "--via", "nbd-server"][..], &["serve", "--nbd", "unix:s"]] {
        let output = sandbox.command(words).arg(name).output().expect("it can be started");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("not UTF-8") && error.contains("rename"), "{error}");
    }
    assert_eq!(sandbox.listed(), Value::Array(Vec::new()));
}

/// In any script; what is attached is found by name, and by words from elsewhere.
#[test]
fn a_name_stays_in_its_script_and_one_that_is_taken_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.make_directory("other");
    for store in ["日本.img", "other/日本.img"] {
        sandbox.ok(&["create", store, "--size", "256M", "--label", "速い"]);
    }
    sandbox.ok(&["attach", "日本.img", "--via", "nbd-server"]);
    let error = sandbox.fails(1, &["attach", "other/日本.img", "--via", "nbd-server"]);
    assert!(error.contains("the name '日本' is taken") && error.contains("--name"), "{error}");
    sandbox.ok(&["attach", "other/日本.img", "--via", "nbd-server", "--name", "zwei"]);
    let listed = sandbox.json(&["ls", "--json"]);
    assert_eq!((&listed[0]["name"], &listed[0]["label"]), (&"zwei".into(), &"速い".into()));
    assert_eq!(listed[1]["name"], "日本");
    assert_eq!(listed[1]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(listed[1]["mount_points"], serde_json::json!([]));
    let text = sandbox.ok(&["info", "日本"]);
    for word in ["LABEL=速い", "UUID=", "WAF 1.00", "p50 / p99 / max"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    sandbox.ok(&["detach", "日本"]);
    sandbox.ok(&["detach", "zwei"]);
    assert!(sandbox.ok(&["help", "mount"]).contains("Mount the file system"));
}

#[test]
fn a_path_of_several_lines_is_one_line_of_text() {
    let sandbox = Sandbox::new();
    let store = "a\nforged  64 MiB  ublk\u{1b}[2K.img";
    sandbox.ok(&["create", store, "--size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", store, "--via", "nbd-server", "--name", "disk"]);
    let shown = "/a\\nforged  64 MiB  ublk\\u{1b}[2K.img";
    for (words, lines) in [(["list"], 2), (["status"], 8)] {
        let text = sandbox.ok(&words);
        assert!(text.contains(shown), "{text}");
        assert_eq!(text.lines().count(), lines, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    for verb in ["list", "status"] {
        let listed = sandbox.json(&[verb, "--json"]);
        assert!(listed[0]["store"].as_str().is_some_and(|path| path.ends_with(store)), "{listed}");
    }
    sandbox.ok(&["detach", store]);
}

#[test]
fn whoever_only_looks_makes_no_state_directory() {
    let sandbox = Sandbox::new();
    let nothing = "nothing is attached";
    for words in [&["list"][..], &["status"]] {
        let output = sandbox.run(words);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim_end(), nothing);
        assert_eq!(sandbox.json(&[words, &["--json"]].concat()), Value::Array(Vec::new()));
    }
    for words in [&["status", "disk"][..], &["restart", "disk"], &["tune", "disk"]] {
        let error = sandbox.fails(1, words);
        assert!(error.contains(nothing), "{error}");
    }
    assert!(sandbox.fails(1, &["detach", "disk"]).contains(nothing));
    sandbox.make_directory("mnt");
    assert!(sandbox.fails(1, &["umount", "mnt"]).contains("nothing is mounted there"));
    sandbox.ok(&["create", "disk.img", "--size", "64M", "--segment-size", "2M"]);
    sandbox.ok(&["grow", "disk.img", "--size", "128M"]);
    assert!(!sandbox.path("state").exists());
}

#[test]
fn an_attach_that_cannot_print_its_device_says_that_it_is_attached() {
    let sandbox = with_store();
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut attach = sandbox.command(&["attach", "disk.img", "--via", "nbd-server"]);
    let output = attach.stdout(full).output().expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("'disk' is attached all the same"), "{error}");
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn a_volume_answers_to_its_name_its_store_and_its_device() {
    let sandbox = with_store();
    for way in ["blue", "disk.img", "DEVICE"] {
        let device = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server", "--name", "blue"]);
        let way = if way == "DEVICE" { device.trim_end() } else { way };
        let status = sandbox.json(&["status", way, "--json"]);
        assert_eq!(status["name"], "blue");
        sandbox.ok(&["detach", way]);
    }
}

#[test]
fn a_store_is_attached_once() {
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let error = sandbox.fails(1, &["attach", "disk.img", "--via", "nbd-server"]);
    assert!(error.contains("is already attached"), "{error}");
    assert!(error.contains("coulter detach disk"), "{error}");
    let error = sandbox.fails(1, &["attach", "disk.img", "--via", "nbd-server", "--name", "other"]);
    assert!(error.contains("is already attached"), "{error}");
}

#[test]
fn a_store_that_is_open_elsewhere_is_refused_by_its_lock() {
    let sandbox = with_store();
    let (mut child, _) = sandbox.start(&["serve", "disk.img", "--nbd", "unix:a.sock"]);
    // Another state directory does not know of the server; only the lock does.
    let other = sandbox.path("other").display().to_string();
    let store = sandbox.path("disk.img").display().to_string();
    let error =
        sandbox.fails(1, &["attach", &store, "--via", "nbd-server", "--state-directory", &other]);
    assert!(error.contains("in use by process"), "{error}");
    let error = sandbox.fails(1, &["create", "disk.img", "--force"]);
    assert!(error.contains("in use by process"), "{error}");
    send(child.id(), "INT");
    assert!(child.wait().expect("it is our child").success());
}

#[test]
fn a_killed_daemon_leaves_nothing_in_the_way() {
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.signal("disk", "KILL");
    assert_eq!(sandbox.listed()[0]["killed"], true);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn an_attach_that_was_killed_on_its_way_stands_in_nobodys_way() {
    let sandbox = with_store();
    let words = ["attach", "disk.img", "--via", "nbd-server"];
    for delay in [1, 2, 3, 5, 8, 12] {
        let mut first = sandbox.command(&words).spawn().expect("the program can be started");
        std::thread::sleep(Duration::from_millis(delay));
        first.kill().and_then(|()| first.wait()).expect("it is our child");
        // It is refused only if the first had come to its end, and then that one serves.
        let second = sandbox.run(&words);
        let error = String::from_utf8_lossy(&second.stderr);
        assert!(second.status.success() || error.contains("it is served as 'disk'"), "{error}");
        sandbox.ok(&["detach", "disk"]);
    }
}

#[test]
fn detaching_clears_away_what_a_killed_daemon_left() {
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    sandbox.signal("disk", "KILL");
    assert!(sandbox.path("state/disk.json").exists());
    sandbox.ok(&["detach", "disk"]);
    assert!(!sandbox.path("state/disk.json").exists());
    let error = sandbox.fails(1, &["detach", "disk"]);
    assert!(error.contains("nothing is attached"), "{error}");
}

#[test]
fn signals_end_a_daemon_cleanly_and_take_its_entry_along() {
    let sandbox = with_store();
    for signal in ["TERM", "INT", "HUP"] {
        sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        sandbox.signal("disk", signal);
        assert!(!sandbox.path("state/disk.json").exists(), "{signal}");
        assert!(!sandbox.path("state/disk.sock").exists(), "{signal}");
        assert!(!sandbox.path("state/disk.log").exists(), "it would tell what went wrong");
    }
}

#[test]
fn a_foreground_server_ends_with_0_on_interrupt() {
    let sandbox = with_store();
    for arguments in [
        &["attach", "disk.img", "--via", "nbd-server", "--foreground"][..],
        &["serve", "disk.img", "--nbd", "unix:a.sock"],
        &["serve", "disk.img", "--nbd", "tcp:127.0.0.1:0"],
    ] {
        let (mut child, line) = sandbox.start(arguments);
        assert!(line.starts_with("nbd"), "{line}");
        assert_eq!(sandbox.pid_of("disk"), child.id());
        send(child.id(), "INT");
        assert!(child.wait().expect("it is our child").success(), "{arguments:?}");
    }
}

#[test]
fn an_address_that_others_reach_needs_consent() {
    let sandbox = with_store();
    let error = sandbox.fails(2, &["serve", "disk.img", "--nbd", "tcp:0.0.0.0:0"]);
    assert!(error.contains("other machines"), "{error}");
    let list = sandbox.listed();
    assert_eq!(list, Value::Array(Vec::new()), "a refused server stays listed");
}

#[test]
fn nonsense_on_the_control_socket_disturbs_nobody() {
    use std::io::{Read, Write};
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    for text in [&b""[..], b"\n", b"{\"request\":\"format\"}\n", b"\xff\xff\xff\n"] {
        let mut stream = UnixStream::connect(sandbox.path("state/disk.sock")).expect("it listens");
        stream.write_all(text).expect("it takes bytes");
        stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"", "{text:?} was answered");
    }
    assert_eq!(sandbox.json(&["status", "disk", "--json"])["name"], "disk");
    sandbox.ok(&["detach", "disk"]);
}

#[test]
fn what_is_no_store_is_refused_with_advice() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("noise.img"), vec![7; 1 << 20]).expect("it is writable");
    let error = sandbox.fails(1, &["attach", "noise.img", "--via", "nbd-server"]);
    assert!(error.starts_with("error: cannot open "), "{error}");
    assert!(error.contains("coulter create"), "{error}");
    assert_eq!(sandbox.listed(), Value::Array(Vec::new()));
    assert!(!sandbox.path("state/noise.json").exists());
}

#[test]
fn what_was_written_over_nbd_is_there_after_a_clean_end_and_after_a_kill() {
    let sandbox = with_store();
    for (signal, pattern) in [("TERM", "0x5a"), ("KILL", "0xa5")] {
        let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        let write = format!("write -P {pattern} 1M 64k");
        if !qemu_io(uri.trim_end(), &[&write, "flush"]) {
            skipped("durability over NBD: qemu-io is not installed");
            return;
        }
        sandbox.signal("disk", signal);
        let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        let read = format!("read -P {pattern} 1M 64k");
        assert!(qemu_io(uri.trim_end(), &[&read]), "{signal} lost a flushed write");
        assert!(!qemu_io(uri.trim_end(), &["read -P 0x11 1M 64k"]), "qemu-io does not compare");
        sandbox.ok(&["detach", "disk"]);
    }
}

#[test]
fn a_volume_whose_file_may_not_be_written_further_is_read_only_and_says_why() {
    let sandbox = Sandbox::new();
    // So few segments, which fill the store: no superblock lies behind them.
    sandbox.ok(&["create", "disk.img", "--store-size", "144M", "--segment-size", "2M"]);
    let words = ["attach", "disk.img", "--via", "nbd-server"];
    let uri = sandbox.command_with_file_limit(16 << 20, &words).output();
    let uri = uri.expect("the shell can be started");
    let error = String::from_utf8_lossy(&uri.stderr);
    assert!(uri.status.success(), "{error}");
    let uri = String::from_utf8(uri.stdout).expect("it is text");
    if std::process::Command::new("qemu-io").arg("--version").output().is_err() {
        return skipped("the limit on the size of files: qemu-io is not installed");
    }
    assert!(qemu_io(uri.trim_end(), &["write -P 1 0 4k", "flush"]), "there is room");
    let writes = ["write -P 2 0 16M", "write -P 3 16M 16M", "flush"];
    assert!(!qemu_io(uri.trim_end(), &writes), "all of it was written");
    let status = sandbox.run(&["status", "disk"]);
    let told = String::from_utf8_lossy(&status.stderr);
    assert!(told.contains("'disk' has failed") && told.contains("coulter detach disk"), "{told}");
    assert_eq!(status.status.code(), Some(1));
    let status = String::from_utf8_lossy(&status.stdout);
    let why = "read-only since the device failed to write: File too large";
    assert!(status.contains(why), "{status}");
    wait_until("it is listed", || sandbox.listed()[0]["failure"].is_string());
    let status = sandbox.run(&["status", "disk", "--json"]).stdout;
    let status = serde_json::from_slice(&status).expect("it is JSON");
    for listed in [sandbox.listed()[0].clone(), status] {
        assert_eq!(listed["read_only"], true, "{listed}");
        assert!(
            listed["failure"].as_str().is_some_and(|failure| failure.starts_with(why)),
            "{listed}"
        );
    }
    let list = sandbox.run(&["list"]);
    let (table, notes) =
        (String::from_utf8_lossy(&list.stdout), String::from_utf8_lossy(&list.stderr));
    assert!(table.contains(" (read-only) "), "{table}");
    assert!(notes.contains("'disk' has failed") && notes.contains(why), "{notes}");
    sandbox.run(&["detach", "disk"]);
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
    sandbox.ok(&["check", "disk.img"]);
}

#[test]
fn a_volume_that_is_only_read_is_listed_so_and_has_not_failed() {
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server", "--read-only"]);
    for listed in [sandbox.listed()[0].clone(), sandbox.json(&["status", "disk", "--json"])] {
        assert_eq!((&listed["read_only"], &listed["failure"]), (&true.into(), &Value::Null));
    }
    let list = sandbox.run(&["list"]);
    assert!(String::from_utf8_lossy(&list.stdout).contains(" (read-only) "));
    assert_eq!(String::from_utf8_lossy(&list.stderr), "");
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    assert!(!sandbox.ok(&["list"]).contains("read-only"));
}

/// Whether qemu-io does all of `commands` without complaint.
fn qemu_io(uri: &str, commands: &[&str]) -> bool {
    let mut qemu = std::process::Command::new("qemu-io");
    qemu.args(["-f", "raw"]);
    commands.iter().for_each(|command| {
        qemu.args(["-c", command]);
    });
    let Ok(output) = qemu.arg(uri).output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success() && !text.contains("failed") && !text.contains("Pattern verification")
}

#[test]
fn detach_waits_for_a_client_to_go_or_for_force() {
    let sandbox = with_store();
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let mut client = UnixStream::connect(sandbox.path("state/disk.nbd")).expect("it listens");
    // A client that is let in is greeted.
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting).expect("it is let in");
    assert_eq!(greeting[..8], *b"NBDMAGIC");
    let error = sandbox.fails(1, &["detach", "disk"]);
    assert!(error.contains("NBD client"), "{error}");
    sandbox.ok(&["detach", "disk", "--force"]);
    drop(client);
}

#[test]
fn a_daemon_keeps_no_descriptor_that_its_command_has_inherited() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "64M"]);
    let attach = sandbox.command(&["attach", "disk.img", "--via", "nbd-server", "--json"]);
    let lock = sandbox.path("lock");
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg("exec 9>\"$0\" && exec \"$@\"").arg(&lock);
    shell.arg(attach.get_program()).args(attach.get_args());
    shell.current_dir(attach.get_current_dir().expect("a sandbox is a directory"));
    shell.envs(attach.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().expect("the shell can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let entry: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let open = fs::read_dir(format!("/proc/{}/fd", entry["pid"])).expect("it runs");
    let open: Vec<_> = open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).collect();
    assert!(open.len() > 3, "{open:?}");
    assert!(!open.contains(&lock), "{open:?}");
    sandbox.ok(&["detach", "disk"]);
}
