//! What an operator may change while a store is open: see [`crate::Engine::set_cleaning`]. None of it
//! is stored, and none of it can make the engine unsafe or stand still.

use crate::named::{Named, print_and_parse_by_name};

/// When the cleaner works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CleaningMode {
    /// In step with the host's writes.
    #[default]
    Paced,
    /// Not at all, unless the host would have to wait for segments: then as much as it takes for it
    /// to go on.
    Paused,
    /// As fast as the device allows, until nothing is worth cleaning; then paced again.
    Drain,
}

impl Named for CleaningMode {
    const NAMED: &'static [(&'static str, CleaningMode)] = &[
        ("paced", CleaningMode::Paced),
        ("paused", CleaningMode::Paused),
        ("drain", CleaningMode::Drain),
    ];
}

print_and_parse_by_name!(CleaningMode);
