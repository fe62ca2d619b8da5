//! The front door: what the README tells people to type works when it is pasted, block after block.

mod sandbox;

use sandbox::{Sandbox, can_mount, skipped};
use std::path::Path;
use std::process::Command;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(path).expect("the document is there")
}

/// The blocks of a section that are to be pasted.
fn blocks(text: &str, section: &str) -> Vec<String> {
    let start = text.find(&format!("\n## {section}\n")).expect("the section is there");
    let section = &text[start + 4..];
    let section = section.split("\n## ").next().expect("a split has a first part");
    let parts = section.split("```");
    parts.skip(1).step_by(2).map(|block| block.trim_start_matches("sh").to_owned()).collect()
}

/// A loop device that stands in for the disk of the README, until it goes.
struct Disk(String);

impl Disk {
    fn new(sandbox: &Sandbox) -> Option<Disk> {
        let path = sandbox.path("disk");
        let file = std::fs::File::create(&path).expect("it can be made");
        file.set_len(1 << 30).expect("it can be sparse");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(path).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(Disk(String::from_utf8(output.stdout).ok()?.trim_end().to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn what_the_readme_says_to_type_works_in_order() {
    let Some(_right) = can_mount("README") else { return };
    let sandbox = Sandbox::new();
    let Some(disk) = Disk::new(&sandbox) else {
        return skipped("README: it needs loop devices");
    };
    let mounts = [sandbox.make_directory("mnt"), sandbox.make_directory("srv")];
    let [mnt, srv] = mounts.map(|path| path.display().to_string());
    let blocks = blocks(&document("README.md"), "Use it");
    assert!(blocks.len() >= 4, "{blocks:?}");
    let program = Path::new(env!("CARGO_BIN_EXE_coulter")).parent().expect("it is in a directory");
    let mut script = String::from(
        "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nsudo() { \"$@\"; }\n",
    );
    // The first block installs, which this test leaves to others.
    for block in &blocks[1..] {
        // A busy machine takes longer to start a server.
        let block = block.replace("& sleep 1", "& sleep 5").replace("10G", "1G");
        let block = block.replace("/dev/sdb", &disk.0);
        script += &block.replace(" /mnt", &format!(" {mnt}")).replace(" /srv", &format!(" {srv}"));
    }
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if !(has("mkfs.xfs") && has("qemu-img")) {
        return skipped("README: mkfs.xfs or qemu-img is not installed");
    }
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(sandbox.path(""))
        .env("PATH", path)
        .env("COULTER_STATE_DIRECTORY", sandbox.path("state"))
        .output()
        .expect("bash is there");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{script}\n{out}\n{error}");
    assert!(out.contains("file format: raw"), "{out}");
    assert_eq!(sandbox.ok(&["list"]).trim(), "", "nothing is left");
}

#[test]
fn the_front_door_stays_short() {
    let readme = document("README.md");
    assert!(readme.lines().count() <= 110, "README.md: {} lines", readme.lines().count());
    for word in
        ["Do not use it", "What it costs", "not settled", "16 TiB", "dm-writeboost", "bcache"]
    {
        assert!(readme.contains(word), "README.md does not say `{word}`");
    }
    let changes = document("CHANGELOG.md");
    assert!(changes.lines().count() <= 60, "CHANGELOG.md: {} lines", changes.lines().count());
}
