//! What a server offers: a named block service.

use super::wire::transmission_flag as flag;
use coulter::service::{BlockService, Description};
use std::sync::Arc;

/// A block service under a name.
#[derive(Clone)]
pub struct Export {
    /// What a client asks for. A client that asks for the empty name gets the first export.
    pub name: String,
    /// A text for people, or nothing.
    pub description: String,
    /// Refuse writes whatever the service allows.
    pub read_only: bool,
    /// The blocks.
    pub service: Arc<dyn BlockService>,
}

impl Export {
    /// A writable export, if the service is.
    pub fn new(name: impl Into<String>, service: Arc<dyn BlockService>) -> Export {
        Export { name: name.into(), description: String::new(), read_only: false, service }
    }

    /// Whether writes are refused.
    pub(super) fn refuses_writes(&self) -> bool {
        self.read_only || self.service.read_only()
    }

    /// The transmission flags to advertise.
    pub(super) fn flags(&self, structured_replies: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_TRIM
            | flag::SEND_WRITE_ZEROES
            // Zeros take no space in a log, so they never cost more than a write.
            | flag::SEND_FAST_ZERO
            // The service's flush covers the writes of all sessions.
            | flag::CAN_MULTI_CONN;
        if self.refuses_writes() {
            flags |= flag::READ_ONLY;
        }
        if structured_replies {
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// Least, preferred and greatest length of a request in bytes.
    pub(super) fn block_sizes(&self) -> [u32; 3] {
        let Description { sector_size, block_size, request_size_max, .. } = self.service.describe();
        let fits = |size| u32::try_from(size).expect("requests are far shorter than 4 GiB");
        [sector_size, block_size, request_size_max].map(fits)
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({:?}, {} bytes)", self.name, self.service.size())
    }
}
