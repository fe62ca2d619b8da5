//! That programs can be compared on a volume and beside it; `make programs` does it for long.
//!
//! Needs root, FUSE and loop devices, and says loudly if it has them not.

mod right;

use coulter_systems::{Comparison, FileSystem, Program, Scratch, compare};
use right::{PARENT, may_mount, skipped};
use std::fs;
use std::path::Path;
use std::time::Duration;

#[test]
fn a_program_works_on_a_volume_and_beside_it() {
    let Some(_alone) = may_mount() else { return };
    if !FileSystem::Ext4.is_installed() {
        return skipped("the programs of ext4 are not installed");
    }
    let scratch = Scratch::new(Path::new(PARENT)).expect("a directory can be made");
    let comparison = Comparison {
        executable: env!("CARGO_BIN_EXE_programs").into(),
        size: 256 << 20,
        fill_percent: 10,
        is_held_back: true,
        file_system: FileSystem::Ext4,
        turns: 1,
        turn: Duration::from_secs(1),
    };
    let compared = compare(&comparison, Program::Generated("varmail"), &scratch);
    let compared = compared.unwrap_or_else(|error| panic!("{error}"));
    for side in [compared.plain, compared.volume] {
        assert!(side.operations > 0.0 && side.rate().is_finite(), "{side:?}");
        // What was written was counted where it arrived, and held back.
        assert!(side.device_commands > 0 && side.device_written_bytes > 0, "{side:?}");
        let most = 3000.0 * side.seconds + 1.0;
        assert!(side.device_commands as f64 <= most, "{side:?}");
    }
    let left = fs::read_dir(scratch.directory()).expect("it is there").flatten();
    let devices = left.filter(|file| file.path().extension().is_some_and(|it| it == "img"));
    assert_eq!(devices.count(), 0, "a device is still there");
}
