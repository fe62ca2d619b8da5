//! What a check is asked to do, and how far it is.

/// A stage of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Superblocks, checkpoint, segment table, records after the checkpoint. In blocks.
    Metadata,
    /// Root pages, leaf pages and runs. In root pages.
    Map,
    /// Record headers and, if asked for, data. In segments.
    Log,
    /// A closer look at the segments in which map and log disagree. In segments.
    Detail,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Phase::Metadata => "metadata",
            Phase::Map => "map",
            Phase::Log => "log",
            Phase::Detail => "detail",
        })
    }
}

/// How far a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The phase.
    pub phase: Phase,
    /// Units done; see [`Phase`].
    pub done: u64,
    /// Units in all.
    pub total: u64,
}

/// What to check.
pub struct Options<'a> {
    /// Whether to read every mapped block and compare its checksum.
    pub data: bool,
    /// Findings that the report lists at most; the rest is only counted.
    pub findings_max: usize,
    /// Called now and then.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { data: false, findings_max: 1000, progress: None }
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("data", &self.data)
            .field("findings_max", &self.findings_max)
            .finish_non_exhaustive()
    }
}

impl Options<'_> {
    pub(crate) fn report(&mut self, phase: Phase, done: u64, total: u64) {
        if let Some(progress) = &mut self.progress {
            progress(Progress { phase, done, total });
        }
    }
}
