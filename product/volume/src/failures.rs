//! What has failed since a volume was opened, told without asking its thread: a loop that waits for a bad
//! device may not answer.

/// Failures since the opening, with the last of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failures {
    /// Commands that the device failed.
    pub device_commands: u64,
    /// The operating system's error number of the last of them; 0 if there is none.
    pub device_errno: i32,
    /// The first byte of the last request that failed for that. Cleaning and the map read without one.
    pub device_offset: Option<u64>,
    /// Blocks that did not have their checksum when they were read, for hosts or for cleaning.
    pub corrupt_blocks: u64,
    /// The first byte of the last of them that a request met.
    pub corrupt_offset: Option<u64>,
}
