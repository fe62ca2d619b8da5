//! Commands in other namespaces than the daemon's: its process is not to be seen from there, or seems to have
//! started at another time. It lives all the same.

mod sandbox;

use sandbox::{Sandbox, can_mount, is_running, skipped, wait_until};
use std::fs;
use std::process::{Command, Output};

const STORE: [&str; 4] = ["--store-size", "256M", "--segment-size", "2M"];

/// The ways to be elsewhere, as `unshare` takes them.
const ELSEWHERE: [&[&str]; 2] =
    [&["--pid", "--fork", "--mount-proc"], &["--time", "--boottime", "864000", "--fork"]];

/// Whether namespaces like these can be had.
fn can_unshare(namespace: &[&str]) -> bool {
    let can = Command::new("unshare").args(namespace).arg("true").output();
    let can = can.is_ok_and(|output| output.status.success());
    if !can {
        skipped(&format!("commands elsewhere: needs `unshare {}`", namespace.join(" ")));
    }
    can
}

/// Runs `script` elsewhere, where `$coulter` is the program.
#[track_caller]
fn elsewhere(sandbox: &Sandbox, namespace: &[&str], script: &str) -> Output {
    let program = sandbox.command(&[]);
    let output = Command::new("unshare")
        .args(namespace)
        .args(["sh", "-ec", script])
        .env("coulter", program.get_program())
        .env("COULTER_STATE_DIRECTORY", sandbox.path("state"))
        .current_dir(sandbox.path(""))
        .output()
        .expect("`unshare` can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {error}");
    output
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_daemon_that_lives_elsewhere_is_not_taken_for_killed() {
    let Some(_right) = can_mount("a daemon that lives elsewhere") else { return };
    for namespace in ELSEWHERE.into_iter().filter(|namespace| can_unshare(namespace)) {
        let sandbox = Sandbox::new();
        let directory = sandbox.make_directory("mnt");
        for name in ["disk.img", "other.img"] {
            sandbox.ok(&[&["create", name], &STORE[..]].concat());
        }
        sandbox.ok(&["attach", "disk.img", "--via", "loop"]);
        let pid = sandbox.pid_of("disk");
        sandbox.ok(&["mount", "disk.img", "mnt", "--mkfs", "ext4"]);
        fs::write(directory.join("file"), "content").expect("it is mounted");

        let listed = elsewhere(&sandbox, namespace, "$coulter list --json");
        let list: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("it is JSON");
        assert_eq!(list[0]["name"], "disk", "{namespace:?}");
        assert!(!told(&listed).contains("killed"), "{}", told(&listed));
        let status = elsewhere(&sandbox, namespace, "$coulter status; $coulter status disk");
        assert!(!told(&status).contains("killed"), "{}", told(&status));
        // The next attach clears away what killed daemons left.
        let script = "$coulter attach other.img --via nbd-server; $coulter detach other";
        elsewhere(&sandbox, namespace, script);
        let refused = "! $coulter attach disk.img --via nbd-server; ! $coulter detach disk";
        let refused = told(&elsewhere(&sandbox, namespace, refused));
        assert!(refused.contains("it is served as 'disk'"), "{refused}");
        assert!(refused.contains("is in use"), "{refused}");

        assert_eq!(sandbox.pid_of("disk"), pid);
        let content = fs::read_to_string(directory.join("file"));
        assert_eq!(content.expect("it is mounted"), "content");
        fs::write(directory.join("file"), "more").expect("it is mounted");
        sandbox.ok(&["umount", "mnt"]);
        assert!(!is_running(pid));

        // And so is one that another program has become meanwhile.
        sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        sandbox.ok(&["restart", "disk"]);
        let pid = sandbox.pid_of("disk");
        let listed = elsewhere(&sandbox, namespace, "$coulter list --json; $coulter detach disk");
        assert!(!told(&listed).contains("killed"), "{}", told(&listed));
        wait_until("the daemon is gone", || !is_running(pid));
        assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
    }
}

#[test]
fn a_daemon_that_was_killed_is_known_to_be_from_everywhere() {
    let Some(_right) = can_mount("a killed daemon seen from elsewhere") else { return };
    for namespace in ELSEWHERE.into_iter().filter(|namespace| can_unshare(namespace)) {
        let sandbox = Sandbox::new();
        sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
        sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
        sandbox.signal("disk", "KILL");
        let listed = elsewhere(&sandbox, namespace, "$coulter list && exit 3 || test $? = 1");
        assert!(told(&listed).contains("the daemon of 'disk' was killed"), "{}", told(&listed));
        elsewhere(&sandbox, namespace, "$coulter detach disk");
        let listed = sandbox.run(&["list"]);
        assert!(!told(&listed).contains("killed"), "{}", told(&listed));
    }
}

/// Its file system is not cleared away as if it were dead.
#[test]
fn a_file_system_of_a_daemon_elsewhere_is_unmounted_in_order() {
    let Some(_right) = can_mount("a file system of a daemon elsewhere") else { return };
    // Another PID namespace would have mounts of its own.
    let namespace = ELSEWHERE[1];
    if !can_unshare(namespace) {
        return;
    }
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("mnt");
    sandbox.ok(&["fs", "create", "disk.img", "--size", "64M", "--segment-size", "2M"]);
    sandbox.ok(&["fs", "mount", "disk.img", "mnt"]);
    let pid = sandbox.pid_of("disk");
    fs::write(directory.join("file"), "content").expect("it is mounted");
    elsewhere(&sandbox, namespace, "$coulter umount mnt");
    wait_until("the daemon is gone", || !is_running(pid));
    assert!(!directory.join("file").exists(), "it is still mounted");
    sandbox.ok(&["fs", "check", "disk.img"]);
}

/// What a daemon elsewhere holds is seen from here just as well.
#[test]
fn a_daemon_in_a_container_is_not_taken_for_killed_from_outside() {
    let Some(_right) = can_mount("a daemon in a container") else { return };
    let namespace = ELSEWHERE[0];
    if !can_unshare(namespace) {
        return;
    }
    let sandbox = Sandbox::new();
    for name in ["disk.img", "other.img"] {
        sandbox.ok(&[&["create", name], &STORE[..]].concat());
    }
    let script = "$coulter attach disk.img --via nbd-server; \
        while [ ! -e stop ]; do sleep 0.05; done; $coulter detach disk || true";
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| elsewhere(&sandbox, namespace, script));
        wait_until("it is attached", || sandbox.ok(&["list", "--json"]).contains("\"disk\""));
        sandbox.ok(&["attach", "other.img", "--via", "nbd-server"]);
        sandbox.ok(&["detach", "other"]);
        let listed = sandbox.run(&["list"]);
        assert!(!told(&listed).contains("killed"), "{}", told(&listed));
        sandbox.ok(&["status", "disk"]);
        sandbox.ok(&["detach", "disk"]);
        fs::write(sandbox.path("stop"), "").expect("it is writable");
        inside.join().expect("it does not panic");
    });
    assert_eq!(sandbox.ok(&["list", "--json"]).trim_end(), "[]");
}

/// As in a bare chroot.
#[test]
fn without_sys_a_loop_device_is_refused_with_what_to_do() {
    let Some(_right) = can_mount("a chroot without /sys") else { return };
    let sandbox = Sandbox::new();
    sandbox.ok(&[&["create", "disk.img"], &STORE[..]].concat());
    let namespace = ["--mount", "--propagation", "private"];
    let script =
        "mount -t tmpfs none /sys; $coulter attach disk.img --via loop && exit 3 || test $? = 1";
    let refused = told(&elsewhere(&sandbox, &namespace, script));
    assert!(refused.contains("needs /sys") && refused.contains("mount -t sysfs"), "{refused}");
}
