//! The kernel's side: connecting by `/dev/nvme-fabrics`, and what sysfs tells of controllers.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const FABRICS: &str = "/dev/nvme-fabrics";
const CONTROLLERS: &str = "/sys/class/nvme";
const UNPRIVILEGED_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// Bytes of a sector, in which sysfs counts.
const SYSFS_SECTOR: u64 = 512;

/// A controller that the kernel has of a target of ours, whether or not the target is there.
#[derive(Clone, Debug)]
pub struct WaitingController {
    /// Where sysfs has it.
    pub path: PathBuf,
    /// The port that it connects to.
    pub port: u16,
}

impl WaitingController {
    /// The block device of its only namespace.
    pub fn device(&self) -> Option<PathBuf> {
        let name = self.namespace()?;
        Some(Path::new("/dev").join(name))
    }

    /// Bytes of its namespace.
    pub fn size(&self) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(self.namespace()?).join("size")).ok()?;
        text.trim_end().parse::<u64>().ok()?.checked_mul(SYSFS_SECTOR)
    }

    /// Has the kernel delete it. One that is gone already is as good as deleted.
    ///
    /// # Errors
    /// As the system says.
    pub fn delete(&self) -> io::Result<()> {
        match fs::write(self.path.join("delete_controller"), "1") {
            Err(error) if self.path.exists() => Err(error),
            _ => Ok(()),
        }
    }

    fn namespace(&self) -> Option<String> {
        let controller = self.path.file_name()?.to_str()?.to_owned();
        let mut names = fs::read_dir(&self.path).ok()?.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix(&controller)?.strip_prefix('n')?.parse::<u32>().ok()?;
            Some(name)
        });
        names.next()
    }
}

/// Whether the kernel's initiator is there.
pub(super) fn check() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(FABRICS)?;
    // The device is there with any transport; this one has a module of its own, or is built in.
    let has_tcp = ["/sys/module/nvme_tcp", "/sys/bus/platform/drivers/nvme-tcp"];
    match has_tcp.iter().any(|path| Path::new(path).exists()) {
        true => Ok(()),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Makes a controller.
pub(super) fn connect(words: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(FABRICS)?;
    file.write_all(words.as_bytes())?;
    // Its number; what is looked for is found by the name of the subsystem.
    let mut answer = [0; 256];
    file.read(&mut answer).map(drop)
}

/// The controller of the subsystem of this name that is reached over the loopback.
pub fn find(subsystem: &str) -> Option<WaitingController> {
    let entries = fs::read_dir(CONTROLLERS).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        let read = |name: &str| fs::read_to_string(path.join(name)).ok();
        if read("subsysnqn")?.trim_end() != subsystem || read("transport")?.trim_end() != "tcp" {
            return None;
        }
        let port = port_of(read("address")?.trim_end())?;
        Some(WaitingController { path: path.clone(), port })
    })
}

/// Ports of the loopback that controllers connect to, or will again: another target there would be found,
/// and take their place.
pub(super) fn ports_in_use() -> Vec<u16> {
    let entries = fs::read_dir(CONTROLLERS).into_iter().flatten().flatten();
    let addresses =
        entries.filter_map(|entry| fs::read_to_string(entry.path().join("address")).ok());
    addresses.filter_map(|address| port_of(address.trim_end())).collect()
}

/// The first port at which every user may listen.
pub(super) fn unprivileged_ports() -> u16 {
    let setting = fs::read_to_string(UNPRIVILEGED_PORTS).ok();
    // Kernels before 4.11 have no such setting.
    setting.map_or(1024, |text| first_port(&text))
}

/// The number in the setting; no port is safe if it makes no sense.
fn first_port(setting: &str) -> u16 {
    setting.trim_end().parse().unwrap_or(0)
}

/// The port in `traddr=127.0.0.1,trsvcid=4420,…`, if the address is the loopback's.
fn port_of(address: &str) -> Option<u16> {
    let word =
        |key: &str| address.split(',').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    (word("traddr")? == "127.0.0.1").then(|| word("trsvcid")?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_makes_no_sense_leaves_no_port() {
        assert_eq!(first_port("1024\n"), 1024);
        assert_eq!(first_port("80\n"), 80);
        assert_eq!(first_port("nonsense"), 0);
    }

    #[test]
    fn a_port_is_taken_from_an_address_of_the_loopback_only() {
        assert_eq!(port_of("traddr=127.0.0.1,trsvcid=4421,src_addr=127.0.0.1"), Some(4421));
        assert_eq!(port_of("traddr=192.0.2.1,trsvcid=4421"), None);
        assert_eq!(port_of("traddr=127.0.0.1"), None);
    }
}
