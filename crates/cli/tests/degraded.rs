//! A store with metadata damaged beyond repair: attached degraded, and told so by every verb.

mod sandbox;

use sandbox::{Sandbox, skipped};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

const BLOCK_SIZE: u64 = 4096;

/// Runs qemu-io on a volume; `None` where it is missing, else whether all was well.
fn qemu(uri: &str, commands: &[&str]) -> Option<bool> {
    let mut qemu = Command::new("qemu-io");
    let writes = commands.iter().any(|command| command.starts_with("write"));
    qemu.args(if writes { &["-f", "raw"][..] } else { &["-r", "-f", "raw"] });
    commands.iter().for_each(|command| _ = qemu.args(["-c", command]));
    let output = qemu.arg(uri.trim_end()).output().ok()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(output.status.success() && !told.contains("failed"))
}

/// A closed store with a pattern in it, of which both copies of the segment table are damaged.
fn damaged() -> Option<Sandbox> {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--size", "64M", "--segment-size", "2M"]);
    let uri = sandbox.ok(&["attach", "disk.img", "--via", "nbd-server"]);
    let written = qemu(&uri, &["write -P 0x42 0 8M", "flush"]);
    sandbox.ok(&["detach", "disk"]);
    if written != Some(true) {
        skipped("degraded volumes: qemu-io is not installed");
        return None;
    }
    let checkpoint = sandbox.json(&["dump", "disk.img", "checkpoint", "--json"]);
    let file = File::options().write(true).open(sandbox.path("disk.img")).expect("it is there");
    let places = table_blocks(&checkpoint);
    assert!(places.len() >= 2, "both copies: {checkpoint}");
    for block in places {
        file.write_all_at(&[0x5a; 100], block * BLOCK_SIZE).expect("it is writable");
    }
    Some(sandbox)
}

/// Where both copies of the segment table lie.
fn table_blocks(checkpoint: &Value) -> Vec<u64> {
    let listed = |name: &str| checkpoint[name].as_array().cloned().unwrap_or_default();
    let copies = listed("second_copies");
    let copies = copies.into_iter().filter(|copy| copy["kind"] == "table_copy");
    listed("table").into_iter().chain(copies).filter_map(|it| it["block"].as_u64()).collect()
}

#[test]
fn a_degraded_volume_is_read_only_and_every_verb_says_so() {
    let Some(sandbox) = damaged() else { return };
    let attach = ["attach", "disk.img", "--via", "nbd-server"];
    let error = sandbox.fails(1, &[&attach[..], &["--degraded", "refuse"]].concat());
    assert!(error.contains("`coulter salvage` takes out what is left"), "{error}");
    // That counts are lost is beyond what may be written to.
    for words in [&[][..], &["--degraded", "rw"]] {
        let output = sandbox.run(&[&attach[..], words].concat());
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("'disk' is degraded: "), "{told}");
        let uri = String::from_utf8(output.stdout).expect("it is text");
        assert_eq!(qemu(&uri, &["write 0 4k"]), Some(false), "it refuses writes");
        assert_eq!(qemu(&uri, &["read -P 0x42 0 8M"]), Some(true), "all of it is there");
        for verb in ["list", "status"] {
            let error = sandbox.fails(1, &[verb]);
            assert!(error.contains("degraded: metadata is damaged beyond repair"), "{error}");
        }
        let error = sandbox.fails(1, &["check", "disk"]);
        assert!(error.contains("all data can be read; unrepaired blocks of metadata"), "{error}");
        assert!(error.contains("nothing need be restored"), "{error}");
        sandbox.ok(&["detach", "disk"]);
    }
    let output = sandbox.run(&["check", "disk.img"]);
    assert_eq!(output.status.code(), Some(1), "it is damaged");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("segment table page 0"), "{told}");
}
