//! Every JSON field that is printed is documented in `docs/flash.md`.

mod sandbox;

use sandbox::{Sandbox, names};
use std::collections::BTreeSet;

#[test]
fn every_field_of_an_emulated_drive_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flash.md");
    let documentation = std::fs::read_to_string(path).expect("the documentation is there");
    let sandbox = Sandbox::new();
    let mut printed = BTreeSet::new();
    names(&sandbox.json(&["flash", "run", "--profile", "tiny", "--json"]), &mut printed);
    sandbox.ok(&["flash", "attach", "--size", "128M", "--via", "nbd-server", "--name", "drive"]);
    let status = sandbox.json(&["status", "drive", "--json"]);
    names(&status["flash"], &mut printed);
    sandbox.ok(&["detach", "drive"]);
    assert!(printed.len() > 70, "{printed:?}");
    let missing: Vec<&String> =
        printed.iter().filter(|name| !documentation.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/flash.md: {missing:?}");
}
