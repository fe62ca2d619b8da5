//! What every device must do, as tests. Each device and each wrapper passes all of them.
//!
//! A crate that has a device of its own enables the feature `conformance`, writes a [`Fixture`]
//! (a closure will do), and names it to [`conformance_suite!`](crate::conformance_suite):
//!
//! ```
//! use coulter_device::conformance::{Access, SIZE_MIN};
//! use coulter_device::{Device, MemoryStore, OpenError, conformance_suite};
//!
//! fn fixture() -> impl Fn(Access) -> Result<Box<dyn Device>, OpenError> {
//!     let store = MemoryStore::new(SIZE_MIN);
//!     move |access| {
//!         Ok(match access {
//!             Access::ReadWrite => Box::new(store.open()?),
//!             Access::ReadOnly => Box::new(store.open_read_only()?),
//!         })
//!     }
//! }
//!
//! conformance_suite!(my_device, fixture());
//! # fn main() {}
//! ```
//!
//! What it does not do: cut power; a device that survives this process is not asked about it.

mod elsewhere;
mod lifetime;
mod refusals;
mod rig;
mod sleeping;
mod transfers;

use crate::contract::Device;
use crate::open_error::OpenError;

/// Makes the devices that a check works on, all of them on the same content.
///
/// The content is at least [`SIZE_MIN`] bytes and zero at first. It lasts as long as the fixture.
pub trait Fixture {
    /// A device on the content.
    ///
    /// # Errors
    /// When the content has a device already, among others.
    fn open(&self, access: Access) -> Result<Box<dyn Device>, OpenError>;
}

impl<F: Fn(Access) -> Result<Box<dyn Device>, OpenError>> Fixture for F {
    fn open(&self, access: Access) -> Result<Box<dyn Device>, OpenError> {
        self(access)
    }
}

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    ReadWrite,
    /// Reading; writes are refused.
    ReadOnly,
}

/// The least size of the content, in bytes.
pub const SIZE_MIN: u64 = 8 << 20;

/// One thing that a device must do.
pub type Check = fn(&dyn Fixture);

/// The checks, and the lists and macros that name them.
macro_rules! checks {
    ($($module:ident :: $check:ident),* $(,)?) => {
        $(pub use $module::$check;)*

        /// Every check with its name.
        pub const CHECKS: &[(&str, Check)] = &[$((stringify!($check), $check)),*];
    };
}

checks!(
    transfers::what_was_written_is_read,
    transfers::the_whole_device_is_written_and_read_at_once,
    transfers::registered_and_other_memory_are_both_taken,
    transfers::a_discarded_range_is_zero_or_old_until_written,
    transfers::more_commands_than_the_queue_is_deep_all_complete,
    transfers::equal_tags_come_back_as_often_as_they_were_given,
    transfers::a_flush_completes_with_nothing_written,
    refusals::what_is_not_whole_sectors_is_refused,
    refusals::what_ends_past_the_device_is_refused,
    refusals::a_read_only_device_refuses_change_and_reads,
    refusals::a_refusal_leaves_the_device_usable,
    sleeping::a_wait_ends_when_its_time_is_over,
    sleeping::no_wait_means_no_sleep,
    sleeping::a_waker_ends_a_sleep_from_another_thread,
    sleeping::a_wake_before_the_sleep_is_not_lost,
    sleeping::wakes_and_completions_do_not_hide_each_other,
    sleeping::a_waker_may_outlive_its_device,
    elsewhere::a_descriptor_tells_of_completions,
    elsewhere::a_descriptor_is_quiet_when_there_is_nothing,
    elsewhere::a_waker_is_heard_through_the_descriptor,
    elsewhere::wakes_and_completions_come_through_one_descriptor,
    lifetime::properties_are_consistent,
    lifetime::another_device_sees_the_content,
    lifetime::content_in_use_is_refused_and_free_after_the_drop,
    lifetime::a_device_is_used_on_another_thread_than_it_was_made,
    lifetime::a_device_is_dropped_with_commands_in_flight,
    lifetime::an_unused_device_is_dropped_with_commands_queued,
);

/// Runs every check, for fixtures that are too costly to make for each; says which one runs.
pub fn run_all(make: &dyn Fn() -> Box<dyn Fixture>) {
    for (name, check) in CHECKS {
        println!("check {name}");
        check(&*make());
    }
}

/// A module of tests, one for each check, on the fixture that the expression makes.
#[macro_export]
macro_rules! conformance_suite {
    ($name:ident, $fixture:expr) => {
        $crate::conformance_suite!(@tests $name, $fixture,
            what_was_written_is_read
            the_whole_device_is_written_and_read_at_once
            registered_and_other_memory_are_both_taken
            a_discarded_range_is_zero_or_old_until_written
            more_commands_than_the_queue_is_deep_all_complete
            equal_tags_come_back_as_often_as_they_were_given
            a_flush_completes_with_nothing_written
            what_is_not_whole_sectors_is_refused
            what_ends_past_the_device_is_refused
            a_read_only_device_refuses_change_and_reads
            a_refusal_leaves_the_device_usable
            a_wait_ends_when_its_time_is_over
            no_wait_means_no_sleep
            a_waker_ends_a_sleep_from_another_thread
            a_wake_before_the_sleep_is_not_lost
            wakes_and_completions_do_not_hide_each_other
            a_waker_may_outlive_its_device
            a_descriptor_tells_of_completions
            a_descriptor_is_quiet_when_there_is_nothing
            a_waker_is_heard_through_the_descriptor
            wakes_and_completions_come_through_one_descriptor
            properties_are_consistent
            another_device_sees_the_content
            content_in_use_is_refused_and_free_after_the_drop
            a_device_is_used_on_another_thread_than_it_was_made
            a_device_is_dropped_with_commands_in_flight
            an_unused_device_is_dropped_with_commands_queued
        );
    };
    (@tests $name:ident, $fixture:expr, $($check:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "a fixture may need nothing of the place it stands in")]
            use super::*;

            #[test]
            fn no_check_is_left_out() {
                let named = [$(stringify!($check)),*];
                assert!(named.iter().eq($crate::conformance::CHECKS.iter().map(|check| &check.0)));
            }

            $(
                #[test]
                fn $check() {
                    let fixture = $fixture;
                    $crate::conformance::$check(&fixture);
                }
            )*
        }
    };
}
