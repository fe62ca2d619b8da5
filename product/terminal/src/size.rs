//! Sizes as people write them: `10G`, `32M`, `1.5T`; always binary units.
//!
//! `10G` and `10GiB` are the same. `10GB` is refused: half the world reads it as 10^9, and a store
//! that is 7 % smaller than its owner believes is worse than a question.

use std::fmt;
use std::str::FromStr;

/// Unit letters in ascending order; each is 1024 times the one before.
const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// A number of bytes that was typed on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(
    /// Bytes.
    pub u64,
);

/// Why a text is not a size.
#[derive(Debug, PartialEq, Eq)]
pub enum SizeError {
    /// There is no number in front.
    NoNumber,
    /// It is below zero.
    Negative,
    /// What follows the number is not a unit.
    UnknownUnit(String),
    /// `KB`, `MB`, … which mean powers of 1000 to some and of 1024 to others.
    DecimalUnit(char),
    /// A fraction that is not a whole number of bytes.
    NotWhole,
    /// More than 2^63 bytes.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::NoNumber => write!(f, "a size is digits and a unit, such as 10G or 1.5G"),
            SizeError::Negative => write!(f, "a size cannot be below zero"),
            SizeError::UnknownUnit(unit) => {
                write!(f, "'{unit}' is not a unit; use B, K, M, G, T or P")
            }
            SizeError::DecimalUnit(unit) => {
                write!(f, "'{unit}B' is ambiguous; write {unit} or {unit}iB, a power of 1024")
            }
            SizeError::NotWhole => write!(f, "not a whole number of bytes"),
            SizeError::TooLarge => write!(f, "larger than 8 EiB"),
        }
    }
}

impl std::error::Error for SizeError {}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let text = text.trim();
        if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        {
            return Err(SizeError::Negative);
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        // No letter can follow a number that is written in another way, such as `1,5G`.
        if number.is_empty() || unit.trim().starts_with(|c: char| !c.is_alphabetic()) {
            return Err(SizeError::NoNumber);
        }
        let shift = shift_of(unit.trim())?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') {
            return Err(SizeError::NoNumber);
        }
        let whole: u128 = whole.parse().map_err(|_| SizeError::TooLarge)?;
        let fraction = fraction_of(fraction, shift)?;
        let bytes = whole
            .checked_mul(1 << shift)
            .and_then(|bytes| bytes.checked_add(fraction))
            .ok_or(SizeError::TooLarge)?;
        match u64::try_from(bytes) {
            Ok(bytes) if bytes <= 1 << 63 => Ok(Size(bytes)),
            _ => Err(SizeError::TooLarge),
        }
    }
}

/// The power of two that a unit stands for.
fn shift_of(unit: &str) -> Result<u32, SizeError> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else { return Ok(0) };
    let rest = letters.as_str().to_ascii_lowercase();
    let first = first.to_ascii_uppercase();
    if first == 'B' && rest.is_empty() {
        return Ok(0);
    }
    let known = UNITS.iter().find(|(letter, _)| *letter == first);
    match (known, rest.as_str()) {
        (Some((_, shift)), "" | "i" | "ib") => Ok(*shift),
        (Some((letter, _)), "b") => Err(SizeError::DecimalUnit(*letter)),
        _ => Err(SizeError::UnknownUnit(unit.to_owned())),
    }
}

/// The digits behind the point, in bytes.
fn fraction_of(digits: &str, shift: u32) -> Result<u128, SizeError> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if digits.len() > 18 {
        return Err(SizeError::NotWhole);
    }
    let numerator = digits.parse::<u128>().map_err(|_| SizeError::NoNumber)? << shift;
    let denominator = 10_u128.pow(digits.len() as u32);
    if numerator.is_multiple_of(denominator) {
        Ok(numerator / denominator)
    } else {
        Err(SizeError::NotWhole)
    }
}

impl fmt::Display for Size {
    /// Exact when the size is a multiple of its unit, else with two decimals: `10 GiB`, `1.46 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((letter, shift)) = UNITS.iter().rev().find(|(_, shift)| self.0 >> shift > 0)
        else {
            return write!(f, "{} B", self.0);
        };
        if self.0.is_multiple_of(1 << shift) {
            return write!(f, "{} {letter}iB", self.0 >> shift);
        }
        let hundredths = (u128::from(self.0) * 100) >> shift;
        write!(f, "{}.{:02} {letter}iB", hundredths / 100, hundredths % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, SizeError> {
        text.parse::<Size>().map(|size| size.0)
    }

    #[test]
    fn units_are_binary_and_case_does_not_matter() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("512B"), Ok(512));
        assert_eq!(parse("4k"), Ok(4096));
        assert_eq!(parse("32M"), Ok(32 << 20));
        assert_eq!(parse("10GiB"), Ok(10 << 30));
        assert_eq!(parse("10Gi"), Ok(10 << 30));
        assert_eq!(parse(" 2 T "), Ok(2 << 40));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("0.25K"), Ok(256));
    }

    #[test]
    fn what_is_not_a_size_says_why() {
        assert_eq!(parse(""), Err(SizeError::NoNumber));
        assert_eq!(parse("G"), Err(SizeError::NoNumber));
        assert_eq!(parse("-1G"), Err(SizeError::Negative));
        assert_eq!(parse("1.2.3G"), Err(SizeError::NoNumber));
        assert_eq!(parse("10X"), Err(SizeError::UnknownUnit("X".into())));
        assert_eq!(parse("10GB"), Err(SizeError::DecimalUnit('G')));
        assert_eq!(parse("1.1B"), Err(SizeError::NotWhole));
        assert_eq!(parse("0.1K"), Err(SizeError::NotWhole));
        assert_eq!(parse("9P"), Ok(9 << 50));
        assert_eq!(parse("9000P"), Err(SizeError::TooLarge));
        assert_eq!(parse("99999999999999999999999999999999999999999P"), Err(SizeError::TooLarge));
    }

    #[test]
    fn printing_is_exact_or_has_two_decimals() {
        let print = |bytes| Size(bytes).to_string();
        assert_eq!(print(0), "0 B");
        assert_eq!(print(1023), "1023 B");
        assert_eq!(print(4096), "4 KiB");
        assert_eq!(print(10 << 30), "10 GiB");
        assert_eq!(print((1 << 30) + (1 << 29)), "1.50 GiB");
        assert_eq!(print(u64::MAX), "16383.99 PiB");
    }

    #[test]
    fn what_is_printed_without_decimals_parses_back() {
        for bytes in [0, 1, 512, 4096, 32 << 20, 10 << 30, 3 << 40, 1 << 50] {
            assert_eq!(parse(&Size(bytes).to_string()), Ok(bytes));
        }
    }
}
