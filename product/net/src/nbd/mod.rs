//! Network block device: a server for any NBD client, and the handshake of a client.
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
//! dial        connects to a server; client_handshake negotiates
//! ```

pub mod handshake;
pub mod server;
pub mod wire;

mod client_handshake;
mod connection;
mod dial;
pub mod errno;
mod export;
mod reply;
mod transmission;
mod uri;

pub use crate::{Address, AddressError, CloseReason, Event, ServeError, Statistics};
pub use client_handshake::{Terms, negotiate};
pub use dial::{ClientError, ClientOptions, Connected, handshake_only, open};
pub use export::Export;
pub use server::{Server, ServerOptions};
#[doc(hidden)]
pub use transmission::drive as drive_transmission;
pub use uri::uri;
