//! Sizes in messages.

use std::fmt;

/// Units and the power of two that each is, in descending order.
const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];

/// From so many on a number is hard to read.
const READABLE_MAX: u64 = 10_000;

/// A number of bytes: in the largest unit that divides it, or else in both that a person reads and that
/// is exact, as it may be what has to be typed.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((bits, unit)) = UNITS.iter().find(|(bits, _)| self.0 >> bits > 0) else {
            return match self.0 {
                1 => write!(f, "1 byte"),
                count => write!(f, "{count} bytes"),
            };
        };
        let exact = UNITS.iter().find(|(bits, _)| self.0.is_multiple_of(1 << bits));
        if let Some((bits, unit)) = exact
            && self.0 >> bits < READABLE_MAX
        {
            return write!(f, "{} {unit}", self.0 >> bits);
        }
        let hundredths = (u128::from(self.0) * 100) >> bits;
        write!(f, "{}.{:02} {unit} ({} bytes)", hundredths / 100, hundredths % 100, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_can_be_read_and_is_exact() {
        let text = |size| Bytes(size).to_string();
        assert_eq!(text(3 << 30), "3 GiB");
        assert_eq!(text(1536 << 20), "1536 MiB");
        assert_eq!(text(4097), "4.00 KiB (4097 bytes)");
        assert_eq!(text(2_870_144), "2.73 MiB (2870144 bytes)");
        assert_eq!(text(953_784 << 10), "931.42 MiB (976674816 bytes)");
        assert_eq!(text(1023), "1023 bytes");
        assert_eq!(text(1), "1 byte");
        assert_eq!(text(0), "0 bytes");
        assert_eq!(text(u64::MAX), "16777215.99 TiB (18446744073709551615 bytes)");
    }
}
