//! When a write is acknowledged.

use serde::{Deserialize, Serialize};

/// When to acknowledge a write without FUA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledge {
    /// Once the device has them.
    #[default]
    Written,
    /// From memory: what was not flushed is lost if the daemon is killed, too.
    Buffered,
}

impl Acknowledge {
    /// Each by its name, and by what caches call it.
    pub const NAMED: [(&str, Acknowledge); 4] = [
        ("written", Acknowledge::Written),
        ("buffered", Acknowledge::Buffered),
        ("writethrough", Acknowledge::Written),
        ("writeback", Acknowledge::Buffered),
    ];
}

impl From<Acknowledge> for coulter::Acknowledge {
    fn from(acknowledge: Acknowledge) -> coulter::Acknowledge {
        match acknowledge {
            Acknowledge::Written => coulter::Acknowledge::Written,
            Acknowledge::Buffered => coulter::Acknowledge::Buffered,
        }
    }
}
