//! `probe`, and what keeps others from taking a store for an empty disk.

mod sandbox;

use sandbox::{Sandbox, skipped};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What `probe` prints, by key.
fn probed(sandbox: &Sandbox, path: &str) -> BTreeMap<String, String> {
    let text = sandbox.ok(&["probe", path]);
    let properties = text.lines().map(|line| line.split_once('=').expect("KEY=VALUE"));
    properties.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_store_is_told_by_the_properties_that_udev_uses_attached_or_not() {
    let sandbox = Sandbox::new();
    let create = ["create", "disk.img", "--size", "256M", "--segment-size", "2M"];
    let made = sandbox.json(&[&create[..], &["--label", "fast disk", "--json"]].concat());
    let properties = probed(&sandbox, "disk.img");
    let expected = [
        ("ID_FS_TYPE", "coulter"),
        ("ID_FS_USAGE", "other"),
        ("ID_FS_VERSION", "2"),
        ("ID_FS_LABEL", "fast_disk"),
        ("ID_FS_LABEL_ENC", "fast\\x20disk"),
        ("ID_FS_BLOCKSIZE", "4096"),
        ("COULTER_VOLUME_SIZE", "268435456"),
    ];
    for (key, value) in expected {
        assert_eq!(properties.get(key).map(String::as_str), Some(value), "{key}");
    }
    let text = |key: &str| properties[key].clone();
    assert_eq!(made["uuid"], text("ID_FS_UUID"));
    assert_eq!(made["store_size_bytes"].to_string(), text("ID_FS_SIZE"));
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    assert_eq!(probed(&sandbox, "disk.img"), properties);
}

#[test]
fn what_is_no_store_ends_with_2_and_what_cannot_be_read_with_1() {
    let sandbox = Sandbox::new();
    for (name, bytes) in [("empty", 0), ("short", 100), ("blank", 8 << 20)] {
        let file = std::fs::File::create(sandbox.path(name)).expect("the directory is writable");
        file.set_len(bytes).expect("the directory is writable");
        let error = sandbox.fails(2, &["probe", name]);
        assert!(error.contains("is no store"), "{error}");
    }
    sandbox.fails(1, &["probe", "missing"]);
}

/// The properties that a rule goes by are those that `probe` prints.
#[test]
fn the_udev_rule_asks_for_properties_that_there_are() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "256M", "--segment-size", "2M", "--label", "a"]);
    let properties = probed(&sandbox, "disk.img");
    let rule = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/udev/61-coulter-store.rules");
    let rule = std::fs::read_to_string(rule).expect("it is there");
    let code = rule.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let mut named = 0;
    for opening in ["ENV{", "$env{"] {
        for rest in code.split(opening).skip(1) {
            let name = rest.split('}').next().expect("it ends");
            assert!(properties.contains_key(name) || name.starts_with("DM_"), "{name}");
            named += 1;
        }
    }
    assert!(named >= 5, "{named}");
    assert!(code.contains("coulter probe -- $devnode"), "{code}");
    let label = code.trim_end().lines().last().expect("it has lines");
    assert_eq!(label, "LABEL=\"coulter_store_end\"");
}

/// A loop device, which goes when this does.
struct LoopDevice(String);

impl LoopDevice {
    fn over(path: &Path) -> Option<LoopDevice> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(path).output().ok()?;
        let device = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(LoopDevice(device))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn no_file_system_is_made_on_a_disk_whose_store_is_attached() {
    let sandbox = Sandbox::new();
    let file = std::fs::File::create(sandbox.path("disk")).expect("the directory is writable");
    file.set_len(512 << 20).expect("the directory is writable");
    let Some(device) = LoopDevice::over(&sandbox.path("disk")) else {
        return skipped("a disk that is in use: no loop device");
    };
    sandbox.ok(&["create", &device.0, "--segment-size", "2M"]);
    let properties = probed(&sandbox, &device.0);
    assert_eq!(properties["ID_FS_TYPE"], "coulter");
    sandbox.ok(&["attach", &device.0, "--via", "nbd-server", "--name", "disk"]);
    assert_eq!(probed(&sandbox, &device.0), properties);
    let mut tried = 0;
    for words in [&["mkfs.ext4", "-q", "-F"][..], &["mkfs.xfs", "-q", "-f"], &["wipefs", "-a"]] {
        let Ok(output) = Command::new(words[0]).args(&words[1..]).arg(&device.0).output() else {
            skipped(words[0]);
            continue;
        };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?} succeeds");
        assert!(text.to_lowercase().contains("in use") || text.contains("busy"), "{text}");
        tried += 1;
    }
    sandbox.ok(&["scrub", "disk", "--rate", "none"]);
    sandbox.ok(&["detach", "disk"]);
    sandbox.ok(&["check", &device.0, "--data"]);
    assert!(tried > 0, "one of them is installed");
}
