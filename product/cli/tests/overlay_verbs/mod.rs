//! The verbs of an overlay: orphans, when blocks come home, figures.

mod figures;
mod left_dead;
mod orphans;
mod planted;
mod refused;
mod rights;
mod settling;
mod write_back;
