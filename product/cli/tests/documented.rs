//! Every JSON field that is printed is documented in `docs/json.md`.

mod sandbox;

use sandbox::{Sandbox, names};
use std::collections::BTreeSet;

#[test]
fn every_field_about_copies_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let documentation = std::fs::read_to_string(path).expect("the documentation is there");
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "disk.img", "--store-size", "96M", "--segment-size", "2M"]);
    let url = format!("file://{}", sandbox.path("copy").display());
    let one = format!("{url}@one");
    sandbox.ok(&["replicate", "disk.img", &url]);
    sandbox.ok(&["snapshot", "create", &one]);
    sandbox.ok(&["attach", "disk.img", "--via", "nbd-server", "--replicate", &url]);
    let mut printed = BTreeSet::new();
    let mut status = sandbox.json(&["replicate", "disk", "--status", "--json"]);
    let usage = status.as_object_mut().and_then(|fields| fields.remove("usage"));
    names(&usage.expect("it has one")["data"], &mut printed);
    names(&status, &mut printed);
    sandbox.ok(&["detach", "disk"]);
    for words in [
        &["replica", "status", &url, "--json"][..],
        &["replica", "verify", &url, "--json"],
        &["snapshot", "list", &url, "--json"],
        &["diff", &one, &url, "--json"],
    ] {
        names(&sandbox.json(words), &mut printed);
    }
    assert!(printed.len() > 45, "{printed:?}");
    let missing: Vec<&String> =
        printed.iter().filter(|name| !documentation.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

#[test]
fn every_field_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let documentation = std::fs::read_to_string(path).expect("the documentation is there");
    let sandbox = Sandbox::new();
    let mut printed = BTreeSet::new();
    let create = ["create", "disk.img", "--size", "256M", "--segment-size", "2M", "--json"];
    names(&sandbox.json(&create), &mut printed);
    names(&sandbox.json(&["attach", "disk.img", "--via", "nbd-server", "--json"]), &mut printed);
    names(&sandbox.json(&["status", "--json"]), &mut printed);
    sandbox.ok(&["detach", "disk"]);
    names(&sandbox.json(&["export", "disk.img", "exported.img", "--json"]), &mut printed);
    let mut salvaged = sandbox.json(&["salvage", "disk.img", "volume.img", "--json"]);
    // A report as of `check`, whose counters are documented as a whole.
    salvaged.as_object_mut().and_then(|fields| fields.remove("report")).expect("it has one");
    names(&salvaged, &mut printed);
    assert!(printed.len() > 70, "{printed:?}");
    let missing: Vec<&String> =
        printed.iter().filter(|name| !documentation.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

/// A block of a page that begins like a command is one that a reader may paste.
#[test]
fn every_command_of_the_pages_can_be_pasted_into_a_shell() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let mut wrong = Vec::new();
    for page in std::fs::read_dir(docs).expect("it is readable").flatten() {
        let path = page.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("it is text");
        for block in text.split("```").skip(1).step_by(2) {
            let is_command = |line: &&str| {
                let first = line.trim_start_matches("sudo ").split(' ').next().unwrap_or_default();
                ["coulter", "mount", "umount", "fsck"].contains(&first)
            };
            for line in block.lines().skip(1).filter(is_command) {
                let words = line.trim_end().rsplit_once("   ").map(|(_, words)| words.trim());
                // Words in a column of their own are no arguments.
                if words.is_some_and(|words| !words.starts_with('#') && words.contains(' ')) {
                    wrong.push(format!("{}: {line}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "words without `#`:\n{}", wrong.join("\n"));
}
