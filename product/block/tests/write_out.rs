//! A device goes away under those who use it: what they kept in memory for it has reached it by then, and
//! they are named. Here all that use it by ways that no mount table shows.

use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_block::write_out::{WrittenOut, write_out};
use coulter_systems::Scratch;
use coulter_systems::requirement;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const SIZE: u64 = 320 << 20;
const CONTENT_SIZE: usize = 24 << 20;

#[track_caller]
fn system(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
}

/// Others may have looked at the device too.
#[track_caller]
fn assert_named(users: &[WrittenOut], user: &str) {
    assert!(users.iter().all(|it| it.outcome.is_ok()), "{users:?}");
    assert!(users.iter().any(|it| it.user.contains(user)), "{users:?}");
}

/// Two volumes, each with a loop device.
struct Pair {
    services: [MemoryService; 2],
    devices: [LoopDevice; 2],
    scratch: Scratch,
    mount: PathBuf,
}

impl Pair {
    fn new() -> Pair {
        let scratch = Scratch::on_disk();
        let mount = scratch.path("fs");
        std::fs::create_dir(&mount).unwrap();
        let services = [(); 2].map(|()| MemoryService::new(MemoryOptions::new(SIZE)));
        let devices = Pair::attach(&services, &scratch);
        Pair { services, devices, scratch, mount }
    }

    fn attach(services: &[MemoryService; 2], scratch: &Scratch) -> [LoopDevice; 2] {
        [0, 1].map(|number| {
            let directory = scratch.path(&format!("point{number}"));
            LoopDevice::attach(&services[number], &directory, &LoopOptions::default()).unwrap()
        })
    }

    fn names(&self) -> [String; 2] {
        [0, 1].map(|number| self.devices[number].address())
    }

    /// Makes the file system, writes a file into it that stays in memory, and takes away both devices, the
    /// second one first. Whoever uses that one is named. Then all is there.
    #[track_caller]
    fn survives(mut self, make: impl Fn(&[String; 2]), options: impl Fn(&[String; 2]) -> String) {
        let names = self.names();
        make(&names);
        let mount = self.mount.to_str().unwrap().to_owned();
        system("mount", &["-o", &options(&names), &names[0], &mount]);
        let content: Vec<u8> = (0..CONTENT_SIZE / 8).flat_map(|i| i.to_le_bytes()).collect();
        std::fs::write(self.mount.join("file"), &content).unwrap();

        let place = format!("mounted on {mount} from {}", names[0]);
        let refusal = self.devices[1].detach(Detach::IfIdle).unwrap_err();
        assert!(matches!(&refusal, DetachError::Busy { .. }), "{refusal:?}");
        assert!(refusal.to_string().contains(&place), "{refusal}");
        for number in [1, 0] {
            let users = write_out(Path::new(&names[number]));
            if number == 1 {
                assert_named(&users, &place);
            }
            self.devices[number].detach(Detach::Always).unwrap();
        }
        system("umount", &["--lazy", &mount]);
        self.devices = Pair::attach(&self.services, &self.scratch);
        let names = self.names();
        // What is gone from a device that somebody still holds is remembered for a while.
        let again = Command::new("mount")
            .args(["-o", &options(&names), &names[0], &mount])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success(), "{error}");
        let found = std::fs::read(self.mount.join("file")).unwrap();
        system("umount", &[&mount]);
        assert!(found == content, "{} bytes", found.len());
    }
}

#[test]
fn btrfs_on_two_devices_loses_neither_of_them_unwritten() {
    if !requirement::may_mount() || !requirement::has_program("mkfs.btrfs") {
        return;
    }
    let make = |names: &[String; 2]| {
        let raid = ["-q", "-f", "-d", "raid0", "-m", "raid1"];
        system("mkfs.btrfs", &[&raid[..], &[&names[0], &names[1]]].concat());
    };
    Pair::new().survives(make, |names| format!("device={}", names[1]));
}

#[test]
fn xfs_with_a_log_elsewhere_is_written_out() {
    if !requirement::may_mount() || !requirement::has_program("mkfs.xfs") {
        return;
    }
    let log = |names: &[String; 2]| format!("logdev={}", names[1]);
    let make = |names: &[String; 2]| {
        let log = format!("{},size=64m,sectsize=4096", log(names));
        system("mkfs.xfs", &["-q", "-f", "-l", &log, &names[0]]);
    };
    Pair::new().survives(make, log);
}

#[test]
fn ext4_with_a_journal_elsewhere_is_written_out() {
    if !requirement::may_mount() || !requirement::has_program("mkfs.ext4") {
        return;
    }
    let make = |names: &[String; 2]| {
        system("mke2fs", &["-q", "-F", "-O", "journal_dev", "-b", "4096", &names[1]]);
        let journal = format!("device={}", names[1]);
        system("mkfs.ext4", &["-q", "-F", "-b", "4096", "-J", &journal, &names[0]]);
    };
    let options = |names: &[String; 2]| format!("journal_path={}", names[1]);
    Pair::new().survives(make, options);
}

#[test]
fn whoever_writes_to_the_device_itself_is_written_out_and_named() {
    if !requirement::may_mount() {
        return;
    }
    let scratch = Scratch::on_disk();
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let attach = || {
        let directory = scratch.path("point");
        LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap()
    };
    let mut device = attach();
    let file = std::fs::File::options().write(true).open(device.device()).unwrap();
    let content = vec![0x5a; 8 << 20];
    file.write_all_at(&content, 4096).unwrap();
    let users = write_out(device.device());
    let own = format!("process {}", std::process::id());
    assert_named(&users, &own);
    device.detach(Detach::Always).unwrap();
    drop(file);
    let device = attach();
    let mut found = vec![0; content.len()];
    std::fs::File::open(device.device()).unwrap().read_exact_at(&mut found, 4096).unwrap();
    assert!(found == content);
}

/// As a file system does that knows other ways to use a device: all that the machine holds is written.
#[test]
fn a_holder_whom_nothing_shows_makes_everything_be_written_out() {
    if !requirement::may_mount() {
        return;
    }
    let scratch = Scratch::on_disk();
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let directory = scratch.path("point");
    let device = LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap();
    let claimed = std::fs::File::options()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(device.device())
        .unwrap();
    let users = write_out(device.device());
    drop(claimed);
    assert_named(&users, "neither /proc nor /sys");
}
