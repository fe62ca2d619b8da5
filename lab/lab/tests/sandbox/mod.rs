//! `coulter_systems::sandbox` with the program of this package, and the product's.

#![allow(unused_imports, reason = "each test program uses a part of this")]

pub(crate) use coulter_systems::sandbox::{
    PATIENCE, can_mount, is_running, mounts_below, names, send, skipped, wait_until,
};
use std::ops::Deref;
use std::path::Path;

pub(crate) struct Sandbox(coulter_systems::sandbox::Sandbox);

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        let laboratory = Path::new(env!("CARGO_BIN_EXE_coulter-lab"));
        let product = coulter_systems::built::beside(laboratory, "coulter-cli", "coulter");
        Sandbox(coulter_systems::sandbox::Sandbox::new(&product, Some(laboratory)))
    }
}

impl Deref for Sandbox {
    type Target = coulter_systems::sandbox::Sandbox;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
