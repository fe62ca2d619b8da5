//! The verbs of an overlay: orphans, when blocks come home, figures.

mod figures;
mod orphans;
mod refused;
mod rights;
mod settling;
mod write_back;
