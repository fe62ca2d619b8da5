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
//! server      the exports behind a server of `net`
//! connection  negotiates, then hands over to the transmission phase
//! transmission  requests in, replies out; knows no socket
//!   reply     the forms of an answer
//! handshake   the negotiation; knows no socket
//! wire        bytes <-> values
//! ```

pub mod client;
pub mod handshake;
pub mod server;
pub mod wire;

mod client_handshake;
mod connection;
mod errno;
mod export;
mod reply;
mod transmission;
mod uri;

pub use crate::net::{Address, AddressError, CloseReason, Event, ServeError, Statistics};
pub(crate) use client::handshake_only;
pub use client::{Client, ClientError, ClientOptions};
pub use export::Export;
pub use server::{Server, ServerOptions};
pub(crate) use transmission::drive as drive_transmission;
pub use uri::uri;
