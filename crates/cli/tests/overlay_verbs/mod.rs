//! The verbs of an overlay: orphans, when blocks come home, figures.

mod figures;
mod orphans;
mod settling;
mod write_back;
