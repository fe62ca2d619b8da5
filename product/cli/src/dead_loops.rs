//! Loop devices whose backing file answers no more, because the process that served it is gone.
//!
//! They stand in the way of tools that look at other devices than their own: to learn whether its
//! device is in use, `mkfs.btrfs` compares it with the backing file of every loop device that
//! something is mounted from, and gives up at the first that it cannot look at, whoever's it is.
//!
//! This explains a failure; it takes nothing away, since the devices may be anybody's.

use coulter_block::loop_device;
use coulter_system::mounts;
use coulter_terminal as terminal;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What such tools say, in the language that `tool::command` makes them speak.
const SYMPTOM: &str = "Transport endpoint is not connected";

/// A loop device on a dead volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLoop {
    /// `/dev/loopN`.
    pub device: PathBuf,
    /// The file that answers no more.
    pub file: PathBuf,
    /// Where file systems are still mounted from the device.
    pub mount_points: Vec<PathBuf>,
}

impl DeadLoop {
    /// The commands that take it away, in order.
    pub fn remedy(&self) -> String {
        let unmounts =
            self.mount_points.iter().map(|path| format!("umount {}", terminal::word(path)));
        let detach = format!("losetup --detach {}", self.device.display());
        let below = self.file.parent().map(|path| format!("umount {}", terminal::word(path)));
        unmounts.chain([detach]).chain(below).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for DeadLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.device.display(), self.file.display())
    }
}

/// The dead loop devices, if what a tool said is what it says when it meets one.
pub fn blamed_by(output: &str) -> Vec<DeadLoop> {
    if output.contains(SYMPTOM) { dead_loops() } else { Vec::new() }
}

/// All dead loop devices of this machine, by name.
fn dead_loops() -> Vec<DeadLoop> {
    let dead = loop_device::all().into_iter().filter(|(_, file)| is_dead(file));
    dead.map(|(device, file)| {
        let mounts = mounts::mounts_of(&device).unwrap_or_default();
        let mount_points = mounts.into_iter().map(|mount| mount.mount_point).collect();
        DeadLoop { device, file, mount_points }
    })
    .collect()
}

fn is_dead(file: &Path) -> bool {
    let gone = |error: io::Error| error.raw_os_error() == Some(libc::ENOTCONN);
    fs::metadata(file).is_err_and(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_goes_down_from_the_top() {
        let dead = DeadLoop {
            device: "/dev/loop7".into(),
            file: "/run/coulter/disk.mount/volume".into(),
            mount_points: vec!["/srv".into()],
        };
        assert_eq!(dead.to_string(), "/dev/loop7 on /run/coulter/disk.mount/volume");
        let expected = "umount /srv; losetup --detach /dev/loop7; umount /run/coulter/disk.mount";
        assert_eq!(dead.remedy(), expected);
    }

    #[test]
    fn other_failures_blame_nobody() {
        assert_eq!(blamed_by("mkfs.btrfs: no room"), []);
        assert!(!is_dead(Path::new("/no/such/file")));
    }
}
