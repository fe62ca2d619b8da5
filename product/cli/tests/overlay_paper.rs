//! The script that repeats the sVFS paper on real mounts runs, and tells what the report takes. Its figures are for
//! `make overlay-paper`.

mod sandbox;

use sandbox::{Sandbox, can_mount, mounts_below, skipped};
use std::process::Command;

#[test]
fn the_paper_is_repeated_and_nothing_is_left_behind() {
    let Some(_right) = can_mount("the paper on real mounts") else { return };
    for tool in ["python3", "fio", "mkfs.ext4"] {
        if Command::new(tool).arg("-V").output().is_err() {
            return skipped(&format!("the paper on real mounts: {tool} is not installed"));
        }
    }
    let sandbox = Sandbox::new();
    let directory = sandbox.make_directory("bench").display().to_string();
    let written = sandbox.path("measured.json");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/overlay_paper.py");
    let output = Command::new("python3")
        .args([script, "--quick", "--turns", "1", "--lowers", "ext4", "--disks", "this"])
        .args(["--coulter", env!("CARGO_BIN_EXE_coulter"), "--directory", &directory, "--json"])
        .arg(&written)
        .output()
        .expect("it can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(mounts_below(&sandbox.path("bench")).is_empty(), "what was mounted is gone");
    let left = std::fs::read_dir(directory).expect("it is there").count();
    assert_eq!(left, 0, "no file is left");
    let bytes = std::fs::read(written).expect("it was written");
    let outcomes: serde_json::Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let outcome = &outcomes[0];
    for field in ["id", "title", "paper", "setup", "verdict", "reason"] {
        assert!(outcome[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {outcome}");
    }
    let table = &outcome["tables"][0];
    let columns = table["heading"].as_array().expect("it has a heading").len();
    let row = table["rows"][0].as_array().expect("it has a row");
    assert_eq!((row.len(), columns), (8, 8), "{table}");
    assert_eq!(row[0], "this, ext4");
    for cell in &row[1..6] {
        let ratio = cell.as_str().and_then(|cell| cell.split(' ').next()?.parse::<f64>().ok());
        assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{cell}");
    }
    assert_eq!((&row[6], &row[7]), (&"1.27".into(), &"1.25".into()), "the paper's");
}
