//! What attach points are tested with: one suite for all of them, a block service in memory, and
//! the hosts' sides of the protocols.
//!
//! - [`conformance`]: the suite that every attach point passes.
//! - [`memory`]: a block service in memory, with faults.
//! - [`nbd_client`]: an NBD client that is a session.
//! - [`initiator`]: an NVMe/TCP initiator that is a session.
//! - [`raw_nbd`]: an NBD client that sends what it is told, right or wrong.
//! - [`loopback`]: an NVMe target on a loopback port, and its hosts.
//! - [`fuzz`]: entry points that take any bytes.
//!
//! # Invariants
//! - Crates of the product use this one in tests, examples and benchmarks only.

pub mod conformance;
pub mod fuzz;
pub mod initiator;
pub mod loopback;
pub mod memory;
pub mod nbd_client;
pub mod raw_nbd;
