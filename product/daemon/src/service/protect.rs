//! When a daemon protects itself against the shortage of memory that it might have to end.
//!
//! Only a device or a mount of this very host can be what the kernel writes its dirty pages to; an
//! NBD server is left as it is. And memory is locked only where that cannot fail later: with a
//! limit, each allocation beyond it would be refused, which is worse than being paged out.

use crate::points::Point;
use coulter_attach::harden::harden_process;
use std::fs;

/// The bit of `CAP_IPC_LOCK` in a set of capabilities.
const IPC_LOCK: u64 = 1 << 14;

/// Protects this process if it is to serve `point`; says what was done. To be called before the
/// first thread is started.
pub(crate) fn protect(point: &dyn Point) -> String {
    match point {
        point if !point.kind().is_under_the_kernel() => "not needed".to_owned(),
        _ if memory_may_be_locked() => harden_process().to_string(),
        _ => "none, as the memory that may be locked is limited".to_owned(),
    }
}

/// Whether locking memory knows no limit for this process.
fn memory_may_be_locked() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    has_capability(&status) || is_unlimited(&limits)
}

fn has_capability(status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & IPC_LOCK != 0)
}

fn is_unlimited(limits: &str) -> bool {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    line.is_some_and(|line| line.split_ascii_whitespace().next() == Some("unlimited"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_one_bit_of_the_effective_set() {
        assert!(has_capability("Name:\tx\nCapPrm:\t0\nCapEff:\t000001fffeffffff\n"));
        assert!(has_capability("CapEff:\t0000000000004000\n"));
        assert!(!has_capability("CapPrm:\tffffffffffffffff\nCapEff:\t0000000000003fff\n"));
        assert!(!has_capability(""));
    }

    #[test]
    fn the_limit_is_the_soft_one() {
        assert!(is_unlimited("Max locked memory         unlimited   unlimited   bytes\n"));
        assert!(!is_unlimited("Max locked memory         8388608     unlimited   bytes\n"));
        assert!(!is_unlimited(""));
    }
}
