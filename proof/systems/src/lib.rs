//! Real file systems and databases on volumes whose power is cut.
//!
//! The simulator says whether the engine keeps its promises; this says whether they are the
//! promises that ext4, XFS, Btrfs, SQLite, PostgreSQL and MariaDB need. A [`Machine`] is a disk with a
//! volatile cache, in memory, and a volume on it that is served as a loop device.
//! A [`Workload`] uses the file system on it and keeps a ledger of what it was told is durable. A
//! [`campaign`] lets them meet, cuts the power at random moments, and compares.
//!
//! ```text
//! workload ─ fsync ─► ext4 ─► loop ─► FUSE ─► volume ─► cache ─┤✂├─► memory
//!     └── ledger: what must be there ──────────── compared after replay ◄──┘
//! ```
//!
//! What it does not do: repeat itself. Kernels and databases have clocks and threads; a seed fixes
//! what is drawn here and no more. Faults are to be found here and reproduced in the simulator.
//!
//! # Invariants
//! - Nothing stays behind: mounts, loop devices, processes and files go with their owner, on Ctrl-C and
//!   TERM too, and what a killed process leaves is cleared by the next one ([`Scratch`]).
//! - A failure of the environment (a missing program, no loop device) is never told as a violation,
//!   nor the other way round.

pub mod built;
pub mod campaign;
mod committer;
mod comparison;
pub mod diagnosis;
mod disk;
mod error;
mod file_system;
mod files;
mod interrupted;
mod ledger;
mod liar;
mod machine;
mod mariadb;
mod mounts;
mod pages;
mod postgres;
mod postgres_server;
mod power;
mod prefix;
mod program;
mod programs;
mod protocol;
mod replay;
pub mod requirement;
pub mod sandbox;
mod scratch;
mod side;
mod small_cache;
mod sqlite;
mod stack;
mod tool;
mod transactions;
pub mod vm;
mod workload;

pub use comparison::{Compared, Comparison, SideFigures, compare};
pub use disk::{DiskOptions, serve};
pub use error::SystemsError;
pub use file_system::FileSystem;
pub use files::Files;
pub use machine::{Machine, Running, Shape, Start};
pub use mariadb::MariaDb;
pub use mounts::{Blow, MountFailure, MountOutcome, MountPlan, run_mounts};
pub use pages::{Checked, Pages, Torn};
pub use postgres::Postgres;
pub use postgres_server::{POSTGRES_USER, PostgresServer};
pub use power::Power;
pub use prefix::Prefix;
pub use programs::{AtWork, Program};
pub use protocol::Cut;
pub use replay::{Measured, Replay, Replayed};
pub use scratch::Scratch;
pub use side::{SideOptions, serve_side};
pub use small_cache::{settle, with_a_small_cache};
pub use sqlite::Sqlite;
pub use stack::Layer;
pub use tool::is_on_path;
pub use workload::{Verified, Workload};
