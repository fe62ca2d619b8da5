//! An emulator of NAND flash drives: flash, six flash translation layers, and a drive around them,
//! deterministic and in virtual time.
//!
//! Start at [`Drive`]. A [`Profile`] says what a drive is made of and how fast that is; an
//! [`FtlKind`] names the translation layer. [`Nand`] is the flash, with its rules.
//!
//! # Does not
//! read a clock, use threads or the operating system's randomness, or know anything of Coulter's
//! engine. `device` alone, a feature, knows the contract that a volume writes to, `service` the one
//! that attach points ask, and both in their real-time mode the clock. What the emulation assumes
//! and cannot tell: `docs/flash.md`.
//!
//! # Determinism contract
//! Everything is a function of its arguments: the same commands at the same virtual times give the
//! same results, the same times and the same counters, on every machine. Numbers are integers;
//! ratios are made only where they are printed.
//!
//! # Invariants
//! - The flash asserts NAND's rules; no FTL can break them unnoticed.
//! - Every program and every read is counted under one cause.
//! - A read returns what was last written, or zeros; a drive that keeps tags or bytes can prove it.

#![deny(unsafe_code)]

mod buffer;
mod content;
mod counters;
#[cfg(feature = "device")]
pub mod device;
mod drive;
mod drive_report;
pub mod ftl;
mod geometry;
#[cfg(feature = "device")]
mod held;
pub mod host;
mod latency;
mod nand;
mod profile;
pub mod report;
pub mod run;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "device")]
mod store;
#[cfg(feature = "device")]
mod streams;
mod timing;
mod units;
mod workload;

pub use content::Keep;
pub use counters::{ByCause, Cause, FtlCounters, NandCounters};
#[cfg(feature = "device")]
pub use device::FlashDevice;
pub use drive::{Blocks, CommandError, Drive, DriveCounters, WriteOptions};
pub use drive_report::{CommandLatencies, DriveReport, LatencyByCommand, Wear};
pub use ftl::{Ftl, FtlError, FtlKind, FtlOptions, MapMemory, Placement, VictimPolicy};
pub use geometry::Geometry;
pub use host::{
    Cleaning, FileOperation, Host, HostCounters, HostError, HostKind, LogOptions, RemapOptions,
};
pub use latency::Latency;
pub use nand::{Done, Label, Nand, Oob, PowerCut};
pub use profile::{PROFILES, Profile, ProfileError};
pub use run::{Run, RunError, RunReport, run};
#[cfg(feature = "service")]
pub use service::DriveService;
#[cfg(feature = "device")]
pub use store::{FlashStore, Pacing};
pub use units::{BLOCK_SIZE, EraseBlock, Lpn, Ns, Ppn};
pub use workload::{FileLoad, Workload};
