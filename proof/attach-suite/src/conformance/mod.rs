//! One suite that every attach point passes: it looks like a disk to its hosts, hands everything
//! on to its service and nothing else, and leaves nothing behind.
//!
//! A [`Harness`] says how to make the attach point and how to be its host; [`run_all`] does the
//! rest over a [`MemoryService`](crate::memory::MemoryService), and panics with the case's name
//! where the contract is broken.

mod cases;
mod harnesses;
mod hosts;
mod nvme;

pub use harnesses::{FileHarness, LoopHarness, NbdDeviceHarness, NbdHarness, UblkHarness};
pub use hosts::{NbdHost, PathHost};
pub use nvme::{NvmeHarness, NvmeHost};

use coulter::service::BlockService;
use coulter_attach::point::AttachPoint;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// A disk as a program sees it. One request at a time; offsets and lengths are multiples of
/// [`Traits::granularity`].
pub trait Host: Send {
    /// Bytes.
    fn size(&self) -> u64;
    /// Fills `out` from `offset` on.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes; with `durable`, so that it survives a power cut.
    fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()>;
    /// Makes everything durable.
    fn flush(&mut self) -> io::Result<()>;
    /// Unmaps.
    fn discard(&mut self, offset: u64, length: u64) -> io::Result<()>;
    /// Zeroes.
    fn write_zeroes(&mut self, offset: u64, length: u64) -> io::Result<()>;
}

/// What differs between kinds of attach points, rightly.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// Requests are multiples of this many bytes.
    pub granularity: u64,
    /// Bytes of the largest request that reaches the service whole or is split on the way.
    pub request_size_max: usize,
    /// A write beyond the end fails with this.
    pub write_beyond: i32,
    /// A read beyond the end fails with this, or is the end of the file.
    pub read_beyond: Option<i32>,
    /// A write to a read-only attach point fails with this, or cannot even be opened for.
    pub read_only: Option<i32>,
    /// A write to a service that became read-only fails with this.
    pub poisoned: i32,
    /// A request to a service that shut down fails with this.
    pub closed: i32,
}

/// How to make an attach point of one kind, and how to use it.
pub trait Harness {
    /// The word for it.
    fn name(&self) -> &'static str;
    /// What is special about it.
    fn traits(&self) -> Traits;
    /// Makes one.
    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint>;
    /// A new, independent user of one.
    fn connect(&self, point: &dyn AttachPoint) -> io::Result<Box<dyn Host>>;
    /// A user that asks for much within the first 2 MiB and dies before it has the answers. Returns
    /// after its death.
    fn die_in_mid_request(&self, point: &dyn AttachPoint);
    /// Panics if anything is left of any attach point that was made.
    fn assert_nothing_left(&self);
}

/// A part of the suite.
pub type Case = fn(&dyn Harness);

/// All parts, by name.
pub const CASES: &[(&str, Case)] = &[
    ("random operations agree with a model", cases::random_operations_agree_with_a_model),
    ("discarded and zeroed ranges read as zeros", cases::cleared_ranges_read_as_zeros),
    ("flush and FUA reach the service", cases::flush_and_fua_reach_the_service),
    ("requests beyond the end are refused", cases::requests_beyond_the_end_are_refused),
    ("users at the same time do not disturb each other", cases::users_do_not_disturb_each_other),
    ("big requests arrive whole", cases::big_requests_arrive_whole),
    ("a read-only attach point refuses writes", cases::read_only_refuses_writes),
    ("errors of the service reach the user", cases::errors_reach_the_user),
    ("a service that shuts down ends its requests", cases::a_closed_service_ends_requests),
    ("detaching waits for users, or does not", cases::detaching_waits_for_users_or_does_not),
    ("a user that dies leaves no trace", cases::a_user_that_dies_leaves_no_trace),
];

/// Runs every case.
///
/// # Panics
/// When the attach point breaks the contract.
pub fn run_all(harness: &dyn Harness) {
    for (name, case) in CASES {
        print!("{}: {name}", harness.name());
        let start = Instant::now();
        case(harness);
        harness.assert_nothing_left();
        println!(" ({} ms)", start.elapsed().as_millis());
    }
}
