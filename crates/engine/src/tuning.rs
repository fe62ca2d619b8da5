//! What an operator may change while a store is open. None of it is stored, and none of it can make
//! the engine unsafe or stand still.

use crate::Engine;
use core::fmt;
use core::str::FromStr;

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

impl CleaningMode {
    /// All of them, each with its name.
    pub const NAMED: [(&'static str, CleaningMode); 3] = [
        ("paced", CleaningMode::Paced),
        ("paused", CleaningMode::Paused),
        ("drain", CleaningMode::Drain),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        CleaningMode::NAMED.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// A name that is none; what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMode;

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cleaning is paced, paused or drain")
    }
}

impl core::error::Error for UnknownMode {}

impl FromStr for CleaningMode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<CleaningMode, UnknownMode> {
        let found = CleaningMode::NAMED.iter().find(|(known, _)| *known == name);
        found.map(|(_, mode)| *mode).ok_or(UnknownMode)
    }
}

impl Engine {
    /// Changes when the cleaner works, from its next step on: what it has begun to copy arrives.
    pub fn set_cleaning(&mut self, mode: CleaningMode) {
        self.cleaning = mode;
    }

    /// When the cleaner works.
    pub fn cleaning(&self) -> CleaningMode {
        self.cleaning
    }

    /// Whether the cleaner should take its next step, if paced cleaning would or would not.
    pub(crate) fn cleaning_is_wanted(&mut self, paced: bool) -> bool {
        match self.cleaning {
            CleaningMode::Paced => paced,
            CleaningMode::Paused => paced && self.pacing.is_scarce(),
            CleaningMode::Drain if self.nothing_is_worth_cleaning() => {
                self.cleaning = CleaningMode::Paced;
                paced
            }
            CleaningMode::Drain => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, mode) in CleaningMode::NAMED {
            assert_eq!((name.parse(), mode.name()), (Ok(mode), name));
        }
        assert_eq!("fast".parse::<CleaningMode>(), Err(UnknownMode));
    }
}
