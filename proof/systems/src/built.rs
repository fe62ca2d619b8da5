//! Programs of other packages that a test runs.
//!
//! Cargo names a test the programs of its own package only (`CARGO_BIN_EXE_…`). Those of others it has
//! built, if at all, beside them; here they are built if they are not, or are older than their source.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The program `name` of `package`, beside `program`, which cargo has built, and with the same profile.
///
/// # Panics
/// When it cannot be built.
pub fn beside(program: &Path, package: &str, name: &str) -> PathBuf {
    static BUILT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let path = program.with_file_name(name);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.contains(&path) {
        return path;
    }
    // Of a test that is not run by cargo nobody says which sources are its own.
    if let Some(cargo) = std::env::var_os("CARGO") {
        let directory = program.parent().and_then(Path::file_name).expect("it is in a directory");
        let profile = directory.to_str().expect("a profile's name is text");
        let profile = if profile == "debug" { "dev" } else { profile };
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--package", package, "--bin", name, "--profile", profile])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .status();
        let status = status.expect("cargo can be run");
        assert!(status.success(), "{name} cannot be built: {status}");
    }
    assert!(path.exists(), "{} is not there: build {package}", path.display());
    built.push(path.clone());
    path
}
