//! Shipping: a device that stores what it is given, and sends it on.
//!
//! - [`device`]: the device around another one; [`kept`]: what it need not read back; [`marks`]:
//!   what was not sent yet, across restarts.
//! - [`shipper`]: what goes where and when; a state machine without I/O.
//! - `uploader`: the threads that carry it out, and that look whether the volume is still this
//!   host's.
//! - [`housekeeper`]: the volume's record, and what is deleted.

pub mod device;
pub mod housekeeper;
pub mod kept;
pub mod marks;
pub mod shipper;
mod uploader;
