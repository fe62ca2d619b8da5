//! Coulter as a library: a volume that turns random writes into one sequential log.
//!
//! ```
//! use coulter::{CreateOptions, OpenOptions, Volume, create};
//! use coulter::device::MemoryStore;
//!
//! // Any device: a file or a disk by `coulter::device::open_path`, or memory, as here.
//! let store = MemoryStore::new(64 << 20);
//! let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
//! create(Box::new(store.open()?), &options)?;
//!
//! let volume = Volume::open(Box::new(store.open()?), OpenOptions::default())?;
//! volume.write_at(8192, &[7; 4096])?;
//! volume.flush()?;
//! let mut bytes = [0; 512];
//! volume.read_at(8192 + 512, &mut bytes)?;
//! assert_eq!(bytes, [7; 512]);
//! volume.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Many requests at a time go through a [session](service::Session), which is had from
//! [`service::BlockService`]:
//!
//! ```
//! use coulter::buffer::Buffer;
//! use coulter::service::{BlockService, Operation, Request, Session};
//! # use coulter::{CreateOptions, OpenOptions, Volume, create, device};
//!
//! # let file = tempfile::NamedTempFile::new()?;
//! # let path = file.path();
//! # file.as_file().set_len(64 << 20)?;
//! # let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
//! # create(device::open_path(path, &device::OpenOptions::default())?, &options)?;
//! let device = device::open_path(path, &device::OpenOptions::default())?;
//! let volume = Volume::open(device, OpenOptions::default())?;
//! let mut session = volume.connect();
//! for tag in 0..32 {
//!     let buffer = Buffer::copied_from(&[tag as u8; 4096]);
//!     let operation = Operation::Write { fua: false };
//!     session.submit(Request { tag, operation, offset: tag * 4096, length: 4096, buffer });
//! }
//! session.kick();
//! let mut completions = Vec::new();
//! while session.outstanding() > 0 {
//!     session.complete(&mut completions, None);
//!     for completion in completions.drain(..) {
//!         // After `ReadOnly` reads still work; after `Closed` nothing does.
//!         completion.result.map_err(|error| format!("write {}: {error}", completion.tag))?;
//!     }
//! }
//! volume.flush()?;
//! volume.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//! One thread per volume, which runs the loop, owns the engine, the device and all buffers. Sessions hand it
//! requests in batches and get completions back in batches. The way of a write:
//!
//! ```text
//! session ── batch ──► mailbox ──► driver ──► engine: place it in the record being filled
//!                                     │           └──► pool: copy and checksum, in one pass
//!                                     └──► device: one write for the whole record
//! ```
//! The caller's thread checks the request; the loop's thread does all else.
//!
//! The hand-over between threads can be had or left out:
//!
//! | | who carries requests out | for |
//! |---|---|---|
//! | [`Volume`] | a thread of its own | any number of threads; work goes on by itself. The default |
//! | [`Volume`] with a [guest](service::BlockService::host) | the same, and the guest's code on it | one busy user beside others |
//! | [`LocalVolume`] | the thread that asks | one thread that does its own waiting |

mod abort;
mod allowance;
mod arena;
mod bounce;
pub mod buffer;
mod bytes;
mod calls;
mod close_error;
mod counters;
mod create;
mod create_error;
mod delivery;
mod description;
mod descriptors;
mod direct;
mod driver;
mod event_loop;
mod failures;
mod geometry;
mod governor;
mod grow;
mod histogram;
pub mod intake;
mod local;
mod local_session;
mod loop_thread;
mod mailbox;
mod many;
mod memory;
mod message;
mod open_error;
mod open_options;
mod pool;
pub mod scrub;
pub mod service;
mod session;
mod state;
pub mod statistics;
pub mod tuning;
mod turn;
mod validity;
mod volume;

pub use close_error::CloseError;
/// Files, disks and memory that a volume can lie on.
pub use coulter_device as device;
pub use coulter_engine::Degraded;
pub use counters::{DeviceCounts, RequestCounts};
pub use create::{CreateOptions, STRETCH_SIZE, check_create, create, store_size_for};
pub use create_error::CreateError;
pub use failures::Failures;
pub use geometry::Geometry;
pub use grow::{GrowError, GrowOptions, grow};
pub use histogram::Histogram;
pub use local::LocalVolume;
pub use open_error::{OpenError, OpenErrorKind};
pub use open_options::{Acknowledge, OpenOptions};
pub use state::{ReadOnlyReason, State};
pub use statistics::Statistics;
pub use volume::Volume;
