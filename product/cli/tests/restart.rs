//! `coulter restart`: another program takes over while hosts wait; and sockets that are passed.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The program again, as a new version would be: another file.
fn another_program(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.path("coulter-new");
    fs::copy(env!("CARGO_BIN_EXE_coulter"), &path).expect("there is room");
    path
}

fn program_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).expect("it runs")
}

#[test]
fn a_mounted_file_system_goes_on_under_another_program() {
    let Some(_right) = can_mount("a_mounted_file_system_goes_on_under_another_program") else {
        return;
    };
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["mount", "disk.img", "mnt", "--create", "--size", "1G", "--mkfs", "ext4"]);
    let before = sandbox.listed();
    let pid = sandbox.pid_of("disk");
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writer = {
        let (stop, written, directory) = (stop.clone(), written.clone(), directory.clone());
        std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::SeqCst) {
                let number = written.load(Ordering::SeqCst);
                let begun = Instant::now();
                let mut file = File::create(directory.join(format!("f{number}")))?;
                file.write_all(&content(number))?;
                file.sync_all()?;
                longest = longest.max(begun.elapsed());
                written.store(number + 1, Ordering::SeqCst);
            }
            std::io::Result::Ok(longest)
        })
    };
    let new = another_program(&sandbox);
    let old = program_of(pid);
    for program in [&new, &old, &new] {
        let so_far = written.load(Ordering::SeqCst);
        sandbox::wait_until("files are written", || written.load(Ordering::SeqCst) > so_far + 20);
        sandbox.ok(&["restart", "disk", "--program", &program.to_string_lossy()]);
        assert_eq!(program_of(pid), *program, "the same process, another program");
    }
    stop.store(true, Ordering::SeqCst);
    let longest = writer.join().expect("it does not panic").expect("no write fails");
    assert!(longest < Duration::from_secs(20), "a write took {longest:?}");
    assert_eq!(sandbox.listed(), before, "nothing that a host sees has changed");
    let count = written.load(Ordering::SeqCst);
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["check", "disk.img", "--data"]);
    sandbox.ok(&["mount", "disk.img", "mnt"]);
    for number in 0..count {
        let seen = fs::read(directory.join(format!("f{number}"))).expect("it was synced");
        assert!(seen == content(number), "file {number} of {count}");
    }
    println!("{count} files, the longest took {longest:?}");
    sandbox.ok(&["umount", "mnt"]);
}

fn content(number: usize) -> Vec<u8> {
    (0..20_000).map(|at| (at * 31 + number * 7) as u8).collect()
}

#[test]
fn an_nbd_server_goes_on_at_its_address_and_a_program_that_is_none_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let attach =
        ["attach", "disk.img", "--via", "nbd-server", "--metrics", "127.0.0.1:0", "--json"];
    let entry = sandbox.json(&attach);
    let pid = sandbox.pid_of("disk");
    let error = sandbox.fails(1, &["restart", "disk", "--program", "/bin/true"]);
    assert!(error.contains("no coulter that runs here"), "{error}");
    // It says that it is one, and then cannot be executed as what it should become.
    let liar = sandbox.path("liar");
    let text = "#!/bin/sh\n[ \"$1\" = --version ] && echo coulter 9 && chmod -x \"$0\"\n";
    fs::write(&liar, text).expect("there is room");
    fs::set_permissions(&liar, fs::Permissions::from_mode(0o755)).expect("it is ours");
    sandbox.ok(&["restart", "disk", "--program", &liar.to_string_lossy()]);
    assert_eq!(program_of(pid), Path::new(env!("CARGO_BIN_EXE_coulter")), "it went on itself");
    let log = fs::read_to_string(sandbox.path("state/disk.log")).expect("there is a log");
    assert!(log.contains("could not become another program"), "{log}");
    let new = another_program(&sandbox);
    sandbox.ok(&["restart", "disk", "--program", &new.to_string_lossy()]);
    assert_eq!(program_of(pid), new);
    let mut listed = sandbox.listed()[0].take();
    // What only who looks at it from outside knows.
    listed.as_object_mut().expect("an entry").remove("mount_points");
    assert_eq!(listed, entry, "device, port and all");
    let uri = entry["device"].as_str().expect("it has one");
    match Command::new("qemu-io").args(["-f", "raw", "-c", "write -P 7 0 64k", uri]).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => skipped("an NBD client after a restart needs qemu-io"),
    }
    sandbox.ok(&["detach", "disk"]);
    assert!(!sandbox.path("state/disk.nbd").exists(), "the socket goes with the volume");
}

#[test]
fn another_store_never_comes_in_the_place_of_the_one_that_is_served() {
    let sandbox = Sandbox::new();
    for name in ["a.img", "b.img"] {
        sandbox.ok(&["create", name, "--size", "64M", "--segment-size", "2M"]);
    }
    std::os::unix::fs::symlink(sandbox.path("a.img"), sandbox.path("link")).expect("writable");
    let move_to = |from: &str, to: &str| {
        fs::rename(sandbox.path(from), sandbox.path(to)).expect("it is there");
    };
    let is_refused = || {
        let error = sandbox.fails(1, &["restart", "vol"]);
        assert!(error.contains("no longer what it was attached from"), "{error}");
        assert_eq!(sandbox.listed()[0]["name"], "vol", "it goes on");
        sandbox.ok(&["status", "vol"]);
    };
    for path in ["a.img", "link"] {
        sandbox.ok(&["attach", path, "--name", "vol", "--via", "nbd-server"]);
        sandbox.ok(&["restart", "vol"]);
        move_to("a.img", "away");
        is_refused();
        move_to("b.img", "a.img");
        is_refused();
        // A copy has the same identity within.
        fs::remove_file(sandbox.path("a.img")).expect("it is there");
        fs::copy(sandbox.path("away"), sandbox.path("a.img")).expect("there is room");
        is_refused();
        fs::rename(sandbox.path("a.img"), sandbox.path("b.img")).expect("writable");
        move_to("away", "a.img");
        sandbox.ok(&["restart", "vol"]);
        sandbox.ok(&["detach", "vol"]);
    }
}

#[test]
fn a_volume_goes_on_although_nothing_can_be_written_to_the_state_directory() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "a.img", "--size", "64M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "a.img", "--name", "vol", "--via", "nbd-server"]);
    let before = sandbox.listed();
    // Where entries are written before they get their name.
    sandbox.make_directory("state/.vol.json.new");
    sandbox.ok(&["restart", "vol"]);
    assert_eq!(sandbox.listed(), before);
    sandbox.ok(&["status", "vol"]);
    sandbox.ok(&["detach", "vol"]);
    sandbox.ok(&["check", "a.img", "--data"]);
}

/// As systemd does it: the socket is there before the server, and the server says when it is ready.
#[test]
fn a_server_takes_the_socket_that_is_passed_and_tells_when_it_is_ready() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let none = sandbox.fails(2, &["serve", "disk.img", "--nbd", "systemd"]);
    assert!(none.contains("0 sockets were passed"), "{none}");
    let Ok(_) = Command::new("systemd-socket-activate").arg("--version").output() else {
        return skipped("a passed socket needs systemd-socket-activate");
    };
    let heard = std::os::unix::net::UnixDatagram::bind(sandbox.path("notify")).expect("it is free");
    heard.set_read_timeout(Some(sandbox::PATIENCE)).expect("a socket takes that");
    let socket = sandbox.path("s");
    let mut activate = Command::new("systemd-socket-activate");
    activate
        .arg(format!("--listen={}", socket.display()))
        .args(["-E", "COULTER_STATE_DIRECTORY", "-E", "NOTIFY_SOCKET"])
        .arg(env!("CARGO_BIN_EXE_coulter"))
        .args(["serve", "disk.img", "--nbd", "systemd"])
        .current_dir(sandbox.path("."))
        .env("COULTER_STATE_DIRECTORY", sandbox.path("state"))
        .env("NOTIFY_SOCKET", sandbox.path("notify"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut server = activate.spawn().expect("it is installed");
    // The first client starts it. The file is there a moment before anybody listens.
    let mut client = None;
    sandbox::wait_until("it listens", || {
        client = std::os::unix::net::UnixStream::connect(&socket).ok();
        client.is_some()
    });
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("it is a pipe"))
        .read_line(&mut line)
        .expect("the server tells its URI");
    assert!(line.contains("nbd+unix"), "{line}");
    let mut text = [0; 256];
    let length = heard.recv(&mut text).expect("it says that it is ready");
    assert!(text[..length].starts_with(b"READY=1"), "{:?}", String::from_utf8_lossy(&text));
    drop(client);
    sandbox::send(server.id(), "TERM");
    assert!(server.wait().expect("it ends").success());
    assert!(socket.exists(), "the socket belongs to whoever passed it");
}

#[test]
fn nobody_gets_hold_of_a_store_whose_daemon_becomes_another_program() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let stop = AtomicBool::new(false);
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for words in [&["check", "disk.img", "--data"][..], &["dump", "disk.img", "map"]] {
            let (sandbox, stop, refused) = (&sandbox, &stop, &refused);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let output = sandbox.run(words);
                    let error = String::from_utf8_lossy(&output.stderr);
                    // Without an end of the loop a failure would be waited for.
                    if output.status.success() || !error.contains("in use by process") {
                        return Err(format!("{words:?}: {error}"));
                    }
                    refused.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            });
        }
        let restarts: Vec<_> = (0..12).map(|_| sandbox.run(&["restart", "disk"])).collect();
        stop.store(true, Ordering::SeqCst);
        for restart in restarts {
            let error = String::from_utf8_lossy(&restart.stderr);
            assert!(restart.status.success(), "{error}");
        }
    });
    assert!(refused.load(Ordering::SeqCst) > 10, "they have tried");
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["check", "disk.img", "--data"]);
}

#[test]
fn what_an_attach_leaves_that_fails_half_way_is_in_nobodys_way() {
    let Some(_right) = can_mount("what_an_attach_leaves_that_fails_half_way_is_in_nobodys_way")
    else {
        return;
    };
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M"]);
    let mut failed = 0;
    for descriptors in 9..16 {
        let attach = sandbox.command(&["attach", "disk.img", "--via", "loop"]);
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("ulimit -n {descriptors}; exec \"$@\""), "sh"]);
        limited.arg(attach.get_program()).args(attach.get_args());
        limited.current_dir(attach.get_current_dir().expect("it is the sandbox"));
        limited.envs(attach.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = limited.output().expect("it can be run");
        failed += u32::from(!output.status.success());
        if output.status.success() {
            sandbox.ok(&["detach", "disk"]);
        }
        assert!(sandbox::mounts_below(&sandbox.path("state")).is_empty(), "{descriptors}");
    }
    assert!(failed > 2, "with few descriptors it cannot be attached");
    sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
    sandbox.ok(&["detach", "disk"]);
}
