//! The least volume that can be measured on: a store keeps some segments for itself, however
//! large it is, and below some size the spare space that was asked for is less than these.

use crate::error::BenchError;
use crate::figures::bytes;

const MIB: u64 = 1 << 20;

/// The largest size that is looked at: with any spare space worth a name so large a volume fits.
const SIZE_MAX: u64 = 4 << 30;

/// Why no store for a volume of `size` bytes can be made, if one for a larger volume can be, as
/// `fits` says; and how large that would be.
pub(crate) fn too_small(
    size: u64,
    spare_percent: u32,
    fits: impl Fn(u64) -> bool,
) -> Option<BenchError> {
    // From there on all fit. Sizes fit before that too, where a store is rounded up by much.
    let larger = (size / MIB..SIZE_MAX / MIB).rev().map(|count| count * MIB);
    let least = larger.take_while(|size| fits(*size)).last()?;
    Some(BenchError::option(format!(
        "a volume of {} is too small to be cleaned with {spare_percent} % of spare space: it must be \
         {} MiB at least, or have more spare space",
        bytes(size),
        least / MIB
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_named_from_which_on_all_fit() {
        let error = too_small(100 * MIB, 20, |size| size >= 300 * MIB).expect("300 MiB fit");
        let text = error.to_string();
        assert!(text.contains("100.0 MiB is too small") && text.contains("be 300 MiB"), "{text}");
        let gap = |size| (200 * MIB..250 * MIB).contains(&size) || size >= 300 * MIB;
        let error = too_small(100 * MIB, 20, gap).expect("300 MiB fit");
        assert_eq!(error.to_string(), text);
        assert!(too_small(100 * MIB, 20, |_| false).is_none());
    }
}
