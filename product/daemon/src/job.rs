//! What a daemon is to do.

use crate::backing::Source;
use crate::opening::Opening;
use crate::points::Point;

/// What a daemon is to do.
pub struct Job {
    /// What is served.
    pub source: Box<dyn Source>,
    /// What the host shall see.
    pub point: Box<dyn Point>,
    /// How to open it.
    pub opening: Opening,
    /// Whether to take over a device that waits for this store's daemon.
    pub recover: bool,
}
