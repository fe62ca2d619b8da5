//! Has the kernel tell of a block device once more when its volume is listed. udev's rule looks
//! into the state directory for the name that belongs to a device, and makes `/dev/coulter/NAME` of
//! it; when the device came to be, the name was not there yet.
//!
//! A system without udev, or a process without the right, goes without.

use std::fs;
use std::path::Path;

/// Announces the block device `device`, by its path in `/dev`.
pub(crate) fn announce(device: &str) {
    announce_in(Path::new("/sys/class/block"), device);
}

fn announce_in(class: &Path, device: &str) {
    let Some(name) =
        Path::new(device).strip_prefix("/dev").ok().filter(|it| it.components().count() == 1)
    else {
        return;
    };
    if let Err(error) = fs::write(class.join(name).join("uevent"), "change") {
        log::debug!(device, error:%; "the device cannot be announced");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_announced_and_a_server_is_not() {
        let class = tempfile::tempdir().expect("a temporary directory can be made");
        let file = class.path().join("loop7/uevent");
        fs::create_dir(class.path().join("loop7")).expect("the directory is writable");
        fs::write(&file, "").expect("the directory is writable");
        for other in
            ["nbd+unix:///a?socket=/dev/loop7", "/dev/../loop7", "/dev/mapper/loop7", "/dev"]
        {
            announce_in(class.path(), other);
        }
        assert_eq!(fs::read(&file).expect("it is there"), b"");
        announce_in(class.path(), "/dev/loop7");
        assert_eq!(fs::read(&file).expect("it is there"), b"change");
    }
}
