//! The owner of a copy: the host and the process that ship to it.

use std::path::Path;

/// Bytes of an owner, at most.
const OWNER_SIZE_MAX: usize = 200;

/// The time, for people.
pub fn seconds_since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_secs())
}

/// This host and process, for people and [`has_ended`].
pub fn owner() -> String {
    cut(format!("{}{}", processes_here(), std::process::id()))
}

/// This host and the store at `path`, which has the volume from now on whether a process serves it
/// or not: for people.
pub fn owner_in_file(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    cut(format!("{} with the store {}", host_name(), path.display()))
}

/// As much of an owner as leaves room for the signature of its marks.
fn cut(owner: String) -> String {
    let end = (0..=OWNER_SIZE_MAX.min(owner.len())).rev().find(|end| owner.is_char_boundary(*end));
    let owner = owner[..end.unwrap_or(0)].to_owned();
    assert!(owner.len() <= OWNER_SIZE_MAX, "no room for the signature of its marks");
    owner
}

/// Whether the owner of a copy is a process of this host that has ended. Of other hosts nobody can
/// tell.
pub fn has_ended(owner: &str) -> bool {
    let process = owner.strip_prefix(&processes_here());
    // The signature of the marks stands behind it.
    let process = process.and_then(|process| process.split(',').next()?.parse::<u32>().ok());
    // A process that has ended and is still listed has no program any more.
    let program = |process: &str| std::fs::read_link(format!("/proc/{process}/exe"));
    let is_gone = |process: u32| {
        let found = program(&process.to_string());
        found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    program("self").is_ok() && process.is_some_and(is_gone)
}

/// With what the owners on this host begin.
fn processes_here() -> String {
    format!("{} process ", host_name())
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
