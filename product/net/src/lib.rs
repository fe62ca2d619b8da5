//! Servers on sockets. The root has what all of them share: the listener, the threads of
//! connections, the buffers of both directions; it contains no protocol. [`nbd`] is an NBD server.
//!
//! # Invariants
//! - A client that sends nonsense, too much or nothing loses its own connection and nothing else.
//! - Connections and the memory of each are bounded.
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
//! budget               memory that all connections share
//! ```
//! A protocol is a `Protocol`, which negotiates, and an `Exchange`, which decodes and encodes
//! bytes.

mod address;
mod alone;
mod budget;
mod connection;
mod event;
mod guests;
mod listener;
mod malformed;
pub mod nbd;
mod outgoing;
mod peer;
mod receive;
mod serve_error;
mod server;
pub mod socket;

pub use address::{Address, AddressError};
pub use alone::Alone;
pub use budget::{Account, Budget};
pub use connection::{Connection, Exchange};
pub use event::{CloseReason, Event, Statistics};
pub use guests::Standing;
pub use listener::Listener;
pub use malformed::Malformed;
pub use outgoing::{Outgoing, SLICES_MAX, UNSENT_MAX};
pub use receive::Receiver;
pub use serve_error::ServeError;
pub use server::{Conduct, Protocol, SocketServer, Stop};
