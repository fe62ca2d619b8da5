//! Told once and for all: a device's content is not this host's any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the content of a device has become another host's. Clones are handles on the same one.
///
/// A device that fails its commands is not enough then: a volume answers some requests from memory.
#[derive(Clone, Debug, Default)]
pub struct Revocation(Arc<AtomicBool>);

impl Revocation {
    /// From now on nothing is answered any more.
    pub fn revoke(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// True from then on.
    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
