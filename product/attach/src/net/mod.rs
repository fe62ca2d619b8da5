//! The network parts that all servers share: the listener, the threads of connections, the buffers
//! of both directions. They contain no protocol.
//!
//! # Layers
//! ```text
//! server      listens, counts connections, shuts down
//!   listener  the socket, and its file
//!   peer, guests  who clients are, and who makes room
//! connection  one thread: socket and exchange, asleep in one poll
//!   receive, outgoing  bytes and buffers on their way in and out
//! address, socket      where, and how to wait
//! alone                whether a client sends one request at a time
//! ```
//! A protocol is a `Protocol`, which negotiates, and an `Exchange`, which decodes and encodes
//! bytes.

mod address;
mod alone;
mod connection;
mod event;
mod guests;
mod listener;
mod malformed;
mod outgoing;
mod peer;
mod receive;
mod serve_error;
mod server;
pub mod socket;

pub use address::{Address, AddressError};
pub use alone::Alone;
pub use connection::{Connection, Exchange};
pub use event::{CloseReason, Event, Statistics};
pub use guests::Standing;
pub use listener::Listener;
pub use malformed::Malformed;
pub use outgoing::{Outgoing, SLICES_MAX, UNSENT_MAX};
pub use receive::Receiver;
pub use serve_error::ServeError;
pub use server::{Conduct, Protocol, SocketServer, Stop};
