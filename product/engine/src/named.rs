//! Settings that are chosen by name.

use core::fmt;
use core::marker::PhantomData;

/// A setting with a few values, each of which has a name.
pub trait Named: Copy + PartialEq + 'static {
    /// Those that serve a purpose, each with its name.
    const NAMED: &'static [(&'static str, Self)];

    /// Its name; "hidden" if it is not among [`Named::NAMED`].
    fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, value)| *value == self).map_or("hidden", |(name, _)| name)
    }

    /// The value with this name.
    ///
    /// # Errors
    /// `UnknownName` if there is none, which says what there is.
    fn by_name(name: &str) -> Result<Self, UnknownName<Self>> {
        let found = Self::NAMED.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).ok_or(UnknownName(PhantomData))
    }
}

/// A name that is none of those known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName<T>(PhantomData<T>);

impl<T: Named> fmt::Display for UnknownName<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not one of ")?;
        for (index, (name, _)) in T::NAMED.iter().enumerate() {
            write!(formatter, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl<T: Named + fmt::Debug> core::error::Error for UnknownName<T> {}

/// Lets a [`Named`] setting be printed and parsed.
macro_rules! print_and_parse_by_name {
    ($setting:ty) => {
        impl core::fmt::Display for $setting {
            fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                formatter.write_str($crate::named::Named::name(*self))
            }
        }

        impl core::str::FromStr for $setting {
            type Err = $crate::named::UnknownName<$setting>;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::named::Named::by_name(name)
            }
        }
    };
}

pub(crate) use print_and_parse_by_name;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Reclaim;
    use crate::placement::Placement;
    use crate::policy::VictimPolicy;
    use crate::tuning::CleaningMode;
    use alloc::string::ToString;

    fn names_lead_back<T: Named + fmt::Debug>() {
        assert!(!T::NAMED.is_empty(), "there is a choice");
        for (name, value) in T::NAMED {
            assert_eq!((T::by_name(name), value.name()), (Ok(*value), *name));
        }
        assert!(T::by_name("").is_err() && T::by_name("Sideways").is_err());
    }

    #[test]
    fn names_lead_back_to_what_they_name() {
        names_lead_back::<Placement>();
        names_lead_back::<VictimPolicy>();
        names_lead_back::<CleaningMode>();
        names_lead_back::<Reclaim>();
        assert_eq!(Placement::Scattered.to_string(), "hidden");
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        let error = "fast".parse::<CleaningMode>().expect_err("no mode");
        assert_eq!(error.to_string(), "not one of paced, paused, drain");
    }
}
