//! What is run in a guest, by name.

use super::kernel::KernelName;
use std::time::Duration;

/// When a scenario is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Always.
    Short,
    /// When a person asks for it.
    Long,
}

/// What the host does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRole {
    /// It waits for the script to end.
    Script,
    /// It does the same, on a machine of its own whose drive has more namespaces, with something wrong.
    OddNamespaces,
    /// It pulls the plug while the script writes, and starts again.
    PowerCut {
        /// So many times.
        cuts: u32,
    },
}

/// A script of `vm/`, with arguments.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What a person calls it; without commas, which separate names on a command line.
    pub name: &'static str,
    /// The script and its arguments.
    pub script: &'static str,
    /// It needs the ublk driver.
    pub needs_ublk: bool,
    /// It needs file systems with atomic writes of several of their blocks.
    pub needs_atomic_files: bool,
    /// When it is run.
    pub set: Set,
    /// Seconds that it may take under emulation, on a busy host.
    pub limit_s: u64,
    /// What the host does.
    pub kind: HostRole,
}

impl Scenario {
    /// Whether it is of any use on a kernel.
    pub fn fits(&self, kernel: KernelName) -> bool {
        let has_drivers = kernel.has_ublk() || !self.needs_ublk;
        has_drivers && (kernel.has_atomic_files() || !self.needs_atomic_files)
    }

    /// How long it may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s)
    }
}

const fn ublk(name: &'static str, script: &'static str, set: Set, limit_s: u64) -> Scenario {
    let (needs_ublk, needs_atomic_files, kind) = (true, false, HostRole::Script);
    Scenario { name, script, needs_ublk, needs_atomic_files, set, limit_s, kind }
}

const fn any(name: &'static str, script: &'static str, set: Set, limit_s: u64) -> Scenario {
    Scenario { needs_ublk: false, ..ublk(name, script, set, limit_s) }
}

const fn odd(name: &'static str, script: &'static str, set: Set, limit_s: u64) -> Scenario {
    Scenario { kind: HostRole::OddNamespaces, ..any(name, script, set, limit_s) }
}

const fn cuts(name: &'static str, script: &'static str, set: Set, cuts: u32) -> Scenario {
    let kind = HostRole::PowerCut { cuts };
    Scenario { kind, ..ublk(name, script, set, 120) }
}

const fn pages(name: &'static str, script: &'static str, set: Set, count: u32) -> Scenario {
    Scenario { needs_ublk: false, needs_atomic_files: true, ..cuts(name, script, set, count) }
}

/// All scenarios, in the order in which they are run.
pub const SCENARIOS: &[Scenario] = &[
    ublk("conformance of ublk", "conformance a_ublk_device", Set::Short, 120),
    any("conformance of nbd", "conformance a_device_of_the_nbd", Set::Short, 90),
    ublk("ext4 on ublk", "file-system ext4 ublk", Set::Short, 90),
    ublk("xfs on ublk", "file-system xfs ublk", Set::Short, 90),
    ublk("btrfs on ublk", "file-system btrfs ublk", Set::Short, 90),
    any("ext4 on nbd", "file-system ext4 nbd", Set::Short, 90),
    any("xfs on nbd", "file-system xfs nbd", Set::Long, 90),
    any("btrfs on nbd", "file-system btrfs nbd", Set::Long, 90),
    any("ext4 on loop", "file-system ext4 loop", Set::Long, 90),
    any("xfs on loop", "file-system xfs loop", Set::Long, 90),
    any("btrfs on loop", "file-system btrfs loop", Set::Long, 90),
    ublk("5 kills under load on ublk", "kills ublk 5", Set::Short, 120),
    ublk("100 kills under load on ublk", "kills ublk 100", Set::Long, 1200),
    any("2 kills under load on nbd", "kills nbd 2", Set::Long, 300),
    ublk("want of memory on ublk", "memory ublk 64", Set::Long, 180),
    any("want of memory on nbd", "memory nbd 160", Set::Long, 180),
    any("want of memory on loop", "memory loop 64", Set::Long, 180),
    ublk("removal of ublk", "removal ublk", Set::Short, 60),
    any("removal of nbd", "removal nbd", Set::Long, 90),
    ublk("a device of ublk that waits", "waiting ublk", Set::Short, 60),
    any("a device of nbd that waits", "waiting nbd", Set::Long, 90),
    ublk("a device of ublk that ends with its daemon", "mortal", Set::Long, 90),
    ublk("what lies above ublk", "above ublk", Set::Long, 90),
    ublk("store on null_blk", "null-blk ublk", Set::Short, 60),
    any("what is missing is named", "bad-input", Set::Short, 60),
    any("ratios", "ratios", Set::Long, 300),
    any("nvme commands", "nvme-commands 4096", Set::Short, 120),
    any("nvme commands of 512", "nvme-commands 512", Set::Long, 120),
    any("nvme ext4 with digests", "nvme-file-system ext4 4096 -g -G -i 1", Set::Short, 120),
    any("nvme xfs", "nvme-file-system xfs 4096 -i 4", Set::Long, 120),
    any("nvme btrfs of 512", "nvme-file-system btrfs 512", Set::Long, 120),
    any("nvme 6 kills", "nvme-kills 6", Set::Long, 300),
    any("nvme keys", "nvme-auth", Set::Short, 120),
    any("nvme compared with the kernel's target", "nvme-compare", Set::Long, 1200),
    any("nvme silence", "nvme-silence", Set::Long, 240),
    any("nvme long commands", "nvme-long", Set::Long, 300),
    any("nvme resize", "nvme-resize", Set::Long, 120),
    any("nvme read-only", "nvme-read-only", Set::Long, 90),
    any("nvme queues", "nvme-queues", Set::Long, 240),
    any("nvme device ext4", "file-system ext4 nvme", Set::Short, 120),
    any("nvme device private", "nvme-private", Set::Short, 60),
    any("nvme device that waits", "waiting nvme", Set::Long, 180),
    any("nvme device 5 kills", "kills nvme 5", Set::Long, 300),
    any("nvme device restarted", "nvme-restart", Set::Long, 300),
    any("nvme atomic writes", "nvme-atomic", Set::Short, 60),
    any("nvme passthrough", "nvme-passthrough", Set::Short, 120),
    any("nvme passthrough conforms", "nvme-conformance", Set::Long, 240),
    any("nvme evaluation of the paper on ext4", "nvme-evaluation ext4 8", Set::Long, 900),
    any("nvme evaluation of the paper on xfs", "nvme-evaluation xfs 2", Set::Long, 900),
    any("nvme evaluation of the paper on btrfs", "nvme-evaluation btrfs 2", Set::Long, 900),
    odd("nvme namespaces that are odd", "nvme-namespaces", Set::Long, 900),
    cuts("power cut under ext4 on ublk", "power ext4 ublk", Set::Short, 1),
    cuts("10 power cuts under ext4 on ublk", "power ext4 ublk", Set::Long, 10),
    cuts("10 power cuts under xfs on ublk", "power xfs ublk", Set::Long, 10),
    cuts("10 power cuts under btrfs on ublk", "power btrfs ublk", Set::Long, 10),
    pages("nvme power cut under pages of 16 KiB on xfs", "nvme-pages xfs 16384", Set::Long, 1),
    pages("nvme 10 power cuts under pages of 16 KiB on xfs", "nvme-pages xfs 16384", Set::Long, 10),
    pages("nvme 5 power cuts under pages of 64 KiB on xfs", "nvme-pages xfs 65536", Set::Long, 5),
    pages("nvme 5 power cuts under pages of 16 KiB on ext4", "nvme-pages ext4 16384", Set::Long, 5),
    pages("nvme 5 power cuts under pages of 64 KiB on ext4", "nvme-pages ext4 65536", Set::Long, 5),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_scenario_has_a_name_of_its_own_and_a_script() {
        let names: BTreeSet<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), SCENARIOS.len(), "a name stands for one scenario");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm");
        for scenario in SCENARIOS {
            let name = scenario.script.split(' ').next().unwrap_or_default();
            assert!(scripts.join(name).exists(), "{name} is missing");
            assert!(!scenario.name.contains(','), "{} has a comma", scenario.name);
        }
    }

    #[test]
    fn the_short_set_fits_into_its_time() {
        // Limits are far above what is usual; still, their sum bounds a run that hangs throughout.
        let short = SCENARIOS.iter().filter(|scenario| scenario.set == Set::Short);
        let limit: u64 = short.map(|scenario| scenario.limit_s).sum();
        assert!(limit < 30 * 60, "{limit} s");
    }
}
