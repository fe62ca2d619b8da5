//! What several tests need.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]

pub mod raw;

use coulter_systems::Scratch;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;

/// A loopback port that nobody listens on right now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Whether this process may mount; says so loudly if not.
pub fn may_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let fuse = std::path::Path::new("/dev/fuse").exists();
    if !root || !fuse {
        skipped(&format!("mounting needs root ({root}) and /dev/fuse ({fuse})"));
    }
    root && fuse
}

/// A directory for mounts: what a killed test left in one is taken away by the next.
pub fn scratch() -> Scratch {
    Scratch::new(std::path::Path::new("/var/tmp")).unwrap()
}

/// Whether a program can be run; says so loudly if not.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skipped(&format!("{program} is not installed"));
    }
    found
}

/// Straight to the terminal, past the capture of test output.
pub fn skipped(reason: &str) {
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {reason} ***");
}
