//! The engine's ways to reclaim space stand behind one door. `coulter-tidy` keeps the other rules.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the source is there");
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("it can be listed").path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Files that know the ways to reclaim space by name.
const RECLAIM_FILES: [&str; 2] = ["reclaim.rs", "named.rs"];

/// Files that know how records lie in holes, and that they do.
const HOLE_FILES: [&str; 6] =
    ["holes.rs", "log.rs", "log/patches.rs", "log/place.rs", "log/verify.rs", "segments.rs"];

#[test]
fn hole_filling_and_threaded_logging_stand_behind_one_door() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root) {
        let text = fs::read_to_string(&path).expect("a source can be read");
        let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let name = path.strip_prefix(&root).expect("it is below").display().to_string();
        let is_test = name.ends_with("tests.rs");
        for word in ["Reclaim::CopyOut", "Reclaim::HoleFill", "Reclaim::Threaded"] {
            let knows = is_test || RECLAIM_FILES.contains(&name.as_str());
            assert!(knows || !code.contains(word), "{name} asks for {word}");
        }
        for word in ["Place::Holes", "segment.patched", "entry.patched", ".patches"] {
            let knows = HOLE_FILES.contains(&name.as_str()) || name.starts_with("segments/");
            assert!(knows || !code.contains(word), "{name} asks for {word}");
        }
    }
}
