//! What a volume is doing, as its daemon tells it and `status --json` prints it.

use crate::state::Entry;
use serde::{Deserialize, Serialize};

/// The facts of one moment. Counters run from the opening of the store. Documented in
/// `docs/cli.md`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    #[serde(flatten)]
    pub(crate) entry: Entry,
    pub(crate) write_amplification: f64,
}
