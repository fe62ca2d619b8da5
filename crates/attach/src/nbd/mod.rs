//! Network block device: a server for any NBD client, and a small client of our own.
//!
//! The protocol is that of the NBD project's `doc/proto.md`: fixed newstyle negotiation,
//! structured replies, `base:allocation` block status.
//!
//! It does not do TLS, extended (64-bit) headers, resizing or caching hints; each is refused in
//! the way the protocol provides.
//!
//! # Layers
//! ```text
//! server      listens, counts connections, shuts down
//! connection  one thread: socket and session, asleep in one poll
//! transmission  requests in, replies out; knows no socket
//!   receive, reply, outgoing  bytes and buffers on their way in and out
//! handshake   the negotiation; knows no socket
//! wire        bytes <-> values
//! ```

pub mod address;
pub mod client;
pub mod handshake;
pub mod server;
pub mod wire;

mod client_handshake;
mod connection;
mod errno;
mod export;
mod listener;
mod outgoing;
mod receive;
mod reply;
mod socket;
mod transmission;

pub use address::{Address, AddressError};
pub(crate) use client::handshake_only;
pub use client::{Client, ClientError, ClientOptions};
pub use export::Export;
pub use server::{CloseReason, Event, ServeError, Server, ServerOptions, Statistics};
pub(crate) use transmission::drive as drive_transmission;
