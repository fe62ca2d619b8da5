//! `coulter_systems::sandbox` with the program of this package.

#![allow(unused_imports, reason = "each test program uses a part of this")]

pub(crate) use coulter_systems::sandbox::{
    PATIENCE, can_mount, is_running, mounts_below, names, send, skipped, wait_until, write_and_sync,
};
use std::ops::{Deref, DerefMut};
use std::path::Path;

pub(crate) struct Sandbox(coulter_systems::sandbox::Sandbox);

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        let product = Path::new(env!("CARGO_BIN_EXE_coulter"));
        Sandbox(coulter_systems::sandbox::Sandbox::new(product, None))
    }
}

impl Deref for Sandbox {
    type Target = coulter_systems::sandbox::Sandbox;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Sandbox {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
