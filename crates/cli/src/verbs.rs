//! One file per verb: its arguments, its help, and what it does.

pub mod attach;
pub mod check;
pub(crate) mod clone;
pub mod create;
pub(crate) mod daemon;
pub(crate) mod detach;
pub(crate) mod diff;
pub(crate) mod dump;
pub(crate) mod export;
pub(crate) mod fs;
pub mod generate;
pub(crate) mod grow;
pub(crate) mod list;
pub(crate) mod mount;
pub(crate) mod move_volume;
pub(crate) mod overlay;
pub(crate) mod replica;
pub(crate) mod restart;
pub(crate) mod restore;
pub(crate) mod salvage;
pub mod serve;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod tune;
pub(crate) mod umount;
