//! What several tests need.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]

pub mod nvme;
pub mod raw;

pub use coulter_systems::requirement::skipped;

use coulter_systems::Scratch;
use coulter_systems::requirement::{Need, has as has_needs};
use std::net::TcpListener;
use std::process::Command;

/// A loopback port that nobody listens on right now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Whether this process may mount; says so loudly if not.
pub fn may_mount() -> bool {
    has_needs("mounting", &[Need::Root, Need::Fuse])
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
