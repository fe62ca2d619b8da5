//! How the engine's source is kept: assertions for each hundred lines of code.
//!
//! What is asserted in two places, where it is written and where it is read, on taking and on giving back,
//! is a mistake that cannot hide. So the density may rise, and does not fall.

use std::fs;
use std::path::{Path, PathBuf};

/// Assertions per hundred lines of code, at least. Raise it when the engine has more.
const DENSITY_MIN: f64 = 3.0;

/// Of a file: lines of code, and assertions among them. Tests count for neither, nor do comments.
#[derive(Clone, Copy, Default)]
struct Count {
    lines: usize,
    assertions: usize,
}

impl Count {
    fn of(text: &str) -> Count {
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        lines.fold(Count::default(), |sum, line| Count {
            lines: sum.lines + 1,
            assertions: sum.assertions + usize::from(asserts(line)),
        })
    }

    fn density(self) -> f64 {
        100.0 * self.assertions as f64 / self.lines.max(1) as f64
    }
}

/// Whether an assertion that is there in every build begins on the line. (`debug_assert` is not.)
fn asserts(line: &str) -> bool {
    let begins = |name: &str| line.starts_with(name) || line.contains(&format!(" {name}"));
    begins("assert!(") || begins("assert_eq!(") || begins("assert_ne!(")
}

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

#[test]
fn the_density_of_assertions_does_not_fall() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Count::default();
    for path in sources(&root) {
        // They are nothing but assertions, and not in every build.
        let is_test = path.ends_with("tests.rs");
        if is_test || path.ends_with("verify.rs") || path.ends_with("invariants.rs") {
            continue;
        }
        let count = Count::of(&fs::read_to_string(&path).expect("a source can be read"));
        let name = path.strip_prefix(&root).expect("it is below").display();
        println!("{:>6.2} {:>5} {name}", count.density(), count.lines);
        all.lines += count.lines;
        all.assertions += count.assertions;
    }
    println!("{:>6.2} {:>5} in all: {}", all.density(), all.lines, all.assertions);
    assert!(
        all.density() >= DENSITY_MIN,
        "{:.2} assertions per hundred lines of code are less than {DENSITY_MIN}",
        all.density()
    );
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

/// Lines of one file at most.
const LINES_MAX: usize = 600;

#[test]
fn no_file_is_longer_than_one_concept() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root) {
        let lines = fs::read_to_string(&path).expect("a source can be read").lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn an_assertion_is_told_from_what_looks_like_one() {
    let count = Count::of(
        "//! assert!(in a comment)\nfn f() {\n    assert!(true);\n    debug_assert!(true);\n\
         \x20   assert_eq!(1, 1); // said\n}\nconst _: () = assert!(true);\n\
         \n#[cfg(test)]\nmod tests {\n    assert!(true);\n}\n",
    );
    assert_eq!((count.lines, count.assertions), (6, 3));
}
