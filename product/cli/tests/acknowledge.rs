//! `--acknowledge buffered`: said wherever the volume is told of, kept over a restart, and refused where a
//! device would go on without what was in memory. What it loses and keeps is for `operator` to find out.

mod sandbox;

use sandbox::{Sandbox, can_mount};

const ATTACH: [&str; 5] = ["attach", "a.img", "--acknowledge", "buffered", "--via"];

fn attach(via: &str) -> Vec<&str> {
    [ATTACH.as_slice(), &[via]].concat()
}

#[test]
fn it_is_told_and_outlasts_a_restart() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "a.img", "--size", "64M"]);
    sandbox.ok(&["create", "b.img", "--size", "64M"]);
    sandbox.ok(&attach("nbd-server"));
    sandbox.ok(&["attach", "b.img", "--via", "nbd-server"]);
    for restarts in 0..2 {
        let list = sandbox.listed();
        let modes: Vec<&str> = list
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| entry["acknowledge"].as_str().expect("a word"))
            .collect();
        assert_eq!(modes, ["buffered", "written"], "after {restarts} restarts");
        assert!(sandbox.ok(&["status", "a"]).contains("acknowledged from memory"));
        assert!(!sandbox.ok(&["status", "b"]).contains("acknowledged from memory"));
        sandbox.ok(&["restart", "a"]);
    }
    sandbox.ok(&["detach", "a"]);
    sandbox.ok(&["detach", "b"]);
}

#[test]
fn no_device_that_waits_for_another_daemon_is_made() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "a.img", "--size", "64M"]);
    let error = sandbox.fails(1, &attach("nbd"));
    assert!(error.contains("--acknowledge buffered"), "{error}");
    // Nothing waits, so there is nothing to take over.
    sandbox.ok(&[attach("nbd-server").as_slice(), &["--recover"]].concat());
    sandbox.ok(&["detach", "a"]);
    let error = sandbox.fails(2, &["attach", "a.img", "--acknowledge", "never"]);
    assert!(error.contains("written") && error.contains("buffered"), "{error}");
    assert_eq!(sandbox.listed(), serde_json::json!([]));
}

#[test]
fn auto_takes_a_loop_device_and_says_why_and_a_mount_says_what_it_found() {
    let Some(_right) = can_mount("auto_takes_a_loop_device_and_says_why") else { return };
    let sandbox = Sandbox::new();
    sandbox.make_directory("mnt");
    sandbox.ok(&["create", "a.img", "--size", "256M"]);
    let quiet = sandbox.run(&attach("auto"));
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    sandbox.ok(&["detach", "a"]);
    let output = sandbox.run(&[attach("auto").as_slice(), &["-v"]].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("nbd: its device would outlive"), "{told}");
    sandbox.ok(&["detach", "a"]);
    sandbox.ok(&["attach", "a.img", "--via", "loop"]);
    let mount = ["mount", "a.img", "mnt", "--mkfs", "ext4", "--acknowledge", "buffered"];
    let output = sandbox.run(&[mount.as_slice(), &["--trim", "yes"]].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let note = "attached already, so without --trim and --acknowledge buffered";
    assert!(output.status.success() && told.contains(note), "{told}");
    sandbox.ok(&["umount", "mnt"]);
    let list = sandbox.listed();
    if list != serde_json::json!([]) {
        sandbox.ok(&["detach", "a"]);
    }
    sandbox.ok(&mount);
    assert_eq!(sandbox.listed()[0]["acknowledge"], "buffered");
    sandbox.ok(&["umount", "mnt"]);
    sandbox.ok(&["check", "a.img", "--data"]);
}
