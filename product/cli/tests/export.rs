//! An image becomes a volume and a volume an image, byte for byte; what does not fit is refused, and
//! what was begun is taken back.

mod sandbox;

use sandbox::Sandbox;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

const MIB: u64 = 1 << 20;

/// An image of odd size with holes, data at both ends and across a block's border, and zeros that are
/// written.
fn image(sandbox: &Sandbox, name: &str) -> u64 {
    let size = 40 * MIB + 1000;
    let file = fs::File::create(sandbox.path(name)).expect("the directory is writable");
    file.set_len(size).expect("it can be extended");
    let noise: Vec<u8> = (0..3 * MIB).map(|i| ((i * 2_654_435_761) >> 13) as u8 | 1).collect();
    for (at, length) in [(0, 4096), (5 * MIB + 700, 3 * 4096), (20 * MIB, 3 << 20), (size - 9, 9)] {
        file.write_all_at(&noise[..length], at).expect("it is writable");
    }
    file.write_all_at(&vec![0; MIB as usize], 30 * MIB).expect("it is writable");
    size
}

#[test]
fn an_image_becomes_a_volume_and_comes_back_byte_for_byte() {
    let sandbox = Sandbox::new();
    let size = image(&sandbox, "a.raw");
    let made = sandbox.json(&["create", "a.img", "--from", "a.raw", "--json"]);
    let volume = size.next_multiple_of(4096);
    assert_eq!(made["volume_size_bytes"], volume);
    sandbox.ok(&["check", "a.img", "--data"]);
    let exported = sandbox.json(&["export", "a.img", "b.raw", "--json"]);
    assert_eq!(exported["volume_size_bytes"], volume);
    let mapped = exported["mapped_bytes"].as_u64().expect("it is a number");
    assert!((3 * MIB..4 * MIB).contains(&mapped), "zeros and holes are not stored: {mapped}");
    let read = |name: &str| fs::read(sandbox.path(name)).expect("it is there");
    let (before, after) = (read("a.raw"), read("b.raw"));
    assert_eq!(after.len() as u64, volume);
    assert!(before[..] == after[..before.len()], "the content differs");
    assert!(after[before.len()..].iter().all(|byte| *byte == 0));
    let allocated = fs::metadata(sandbox.path("b.raw")).expect("it is there").blocks() * 512;
    assert!(allocated < 6 * MIB, "holes stay holes: {allocated}");
    // Into a larger volume, and out again.
    sandbox.ok(&["create", "c.img", "--size", "100M", "--from", "b.raw"]);
    sandbox.ok(&["export", "c.img", "c.raw"]);
    assert!(read("c.raw")[..after.len()] == after[..]);
    assert_eq!(read("c.raw").len() as u64, 100 * MIB);
}

#[test]
fn what_cannot_be_brought_in_is_refused_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    image(&sandbox, "a.raw");
    fs::write(sandbox.path("empty"), "").expect("the directory is writable");
    for (words, reason) in [
        (&["--from", "empty"][..], "it is empty"),
        (&["--from", "."], "neither a regular file nor a block device"),
        (&["--from", "a.raw", "--size", "8M"], "larger than the volume"),
    ] {
        let said = sandbox.fails(2, &[&["create", "new.img"], words].concat());
        assert!(said.contains(reason), "{said}");
        assert!(!sandbox.path("new.img").exists(), "a file stays behind");
    }
    let said = sandbox.fails(1, &["create", "new.img", "--from", "nowhere"]);
    assert!(said.contains("nowhere"), "{said}");
    let said = sandbox.fails(2, &["create", "a.raw", "--from", "a.raw", "--force"]);
    assert!(said.contains("the store itself"), "{said}");
}

#[test]
fn an_export_replaces_nothing_and_needs_the_volume_for_itself() {
    let sandbox = Sandbox::new();
    image(&sandbox, "a.raw");
    sandbox.ok(&["create", "a.img", "--from", "a.raw"]);
    let before = fs::read(sandbox.path("a.raw")).expect("it is there");
    let said = sandbox.fails(1, &["export", "a.img", "a.raw"]);
    assert!(said.contains("there is something already"), "{said}");
    assert!(fs::read(sandbox.path("a.raw")).expect("it is there") == before);
    let said = sandbox.fails(2, &["export", "a.img", "a.img", "--force"]);
    assert!(said.contains("the store itself"), "{said}");
    let said = sandbox.fails(1, &["export", "a.raw", "b.raw"]);
    assert!(said.contains("cannot open"), "{said}");
    assert!(!sandbox.path("b.raw").exists());
    sandbox.ok(&["attach", "a.img", "--via", "nbd-server"]);
    let said = sandbox.fails(1, &["export", "a.img", "b.raw"]);
    assert!(said.contains("coulter detach a"), "{said}");
    sandbox.ok(&["detach", "a"]);
    sandbox.ok(&["export", "a.img", "a.raw", "--force"]);
    assert!(fs::read(sandbox.path("a.raw")).expect("it is there")[..before.len()] == before[..]);
}
