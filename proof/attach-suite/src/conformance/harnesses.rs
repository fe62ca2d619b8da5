//! The harnesses of the attach points of this crate. Each works in a directory of its caller's.

use super::hosts::{NbdHost, PathHost};
use super::{Harness, Host, Traits};
use crate::nbd_client::Client;
use coulter::buffer::Buffer;
use coulter::service::{BlockService, Operation, REQUEST_SIZE_MAX, Request, Session};
use coulter_attach::point::AttachPoint;
use coulter_block::loop_device::{LoopDevice, LoopOptions};
use coulter_block::nbd_device::{NbdDevice, NbdDeviceOptions};
use coulter_block::ublk::{Copy, UblkDevice, UblkOptions};
use coulter_fuse::{FuseFile, FuseOptions};
use coulter_net::nbd::{Address, ClientOptions, Export, Server, ServerOptions};
use coulter_system::mounts;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Requests of a user that is about to die.
const DOOMED_REQUESTS: u64 = 16;

/// An NBD server, reached by our own client.
pub struct NbdHarness {
    address: Address,
    structured_replies: bool,
}

impl NbdHarness {
    /// On a unix socket in `directory`; with or without structured replies.
    pub fn unix(directory: &Path, structured_replies: bool) -> NbdHarness {
        NbdHarness { address: Address::Unix(directory.join("nbd.sock")), structured_replies }
    }

    /// On a loopback port that is `port`.
    pub fn tcp(port: u16) -> NbdHarness {
        let host = "127.0.0.1".into();
        NbdHarness { address: Address::Tcp { host, port }, structured_replies: true }
    }

    fn client(&self) -> io::Result<Client> {
        let structured_replies = self.structured_replies;
        let options = ClientOptions { structured_replies, ..ClientOptions::default() };
        Client::connect(&self.address, &options).map_err(io::Error::other)
    }
}

impl Harness for NbdHarness {
    fn name(&self) -> &'static str {
        match (&self.address, self.structured_replies) {
            (Address::Unix(_), true) => "nbd, unix",
            (Address::Unix(_), false) => "nbd, unix, simple replies",
            (Address::Tcp { .. }, _) => "nbd, tcp",
        }
    }

    fn traits(&self) -> Traits {
        Traits {
            granularity: 512,
            request_size_max: REQUEST_SIZE_MAX as usize,
            // ENOSPC on the wire, which our client turns into the contract's error.
            write_beyond: libc::EINVAL,
            read_beyond: Some(libc::EINVAL),
            // EPERM on the wire, likewise.
            read_only: Some(libc::EROFS),
            poisoned: libc::EROFS,
            closed: libc::ESHUTDOWN,
        }
    }

    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        let export = Export { read_only, ..Export::new("", service) };
        let server = Server::start(&self.address, vec![export], ServerOptions::default());
        Box::new(server.expect("the server starts"))
    }

    fn connect(&self, _: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        Ok(Box::new(NbdHost(self.client()?)))
    }

    fn die_in_mid_request(&self, _: &dyn AttachPoint) {
        let mut client = self.client().expect("a user can connect");
        for tag in 0..DOOMED_REQUESTS {
            let offset = tag * 65536;
            let buffer = Buffer::zeroed(65536);
            let fua = tag.is_multiple_of(2);
            let operation = if fua { Operation::Write { fua } } else { Operation::Read };
            client.submit(Request { tag, operation, offset, length: 65536, buffer });
        }
        // The socket takes a part of it, which ends somewhere in a payload.
        client.kick();
    }

    fn assert_nothing_left(&self) {
        if let Address::Unix(path) = &self.address {
            assert!(!path.exists(), "a socket is left at {}", path.display());
        }
        assert!(self.client().is_err(), "somebody still listens");
    }
}

/// A file in a FUSE mount. Needs root.
pub struct FileHarness {
    directory: PathBuf,
}

impl FileHarness {
    /// Mounted in a directory within `directory`.
    pub fn new(directory: &Path) -> FileHarness {
        FileHarness { directory: directory.join("file") }
    }
}

impl Harness for FileHarness {
    fn name(&self) -> &'static str {
        "file"
    }

    fn traits(&self) -> Traits {
        Traits {
            granularity: 512,
            request_size_max: 8 << 20,
            write_beyond: libc::ENOSPC,
            read_beyond: None,
            read_only: None,
            poisoned: libc::EROFS,
            closed: libc::ESHUTDOWN,
        }
    }

    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        let options = FuseOptions { read_only, ..FuseOptions::default() };
        let file = FuseFile::mount(&*service, &self.directory, &options);
        Box::new(file.expect("the file can be mounted"))
    }

    fn connect(&self, point: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        Ok(Box::new(PathHost::open(Path::new(&point.address()))?))
    }

    fn die_in_mid_request(&self, point: &dyn AttachPoint) {
        kill_a_reader(&point.address());
    }

    fn assert_nothing_left(&self) {
        assert_no_mount(&self.directory);
    }
}

/// A loop device. Needs root.
pub struct LoopHarness {
    directory: PathBuf,
}

impl LoopHarness {
    /// Over a file mounted in a directory within `directory`.
    pub fn new(directory: &Path) -> LoopHarness {
        LoopHarness { directory: directory.join("loop") }
    }
}

impl Harness for LoopHarness {
    fn name(&self) -> &'static str {
        "loop"
    }

    fn traits(&self) -> Traits {
        BLOCK_DEVICE
    }

    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        let options = LoopOptions { read_only, ..LoopOptions::default() };
        let device = LoopDevice::attach(&*service, &self.directory, &options);
        Box::new(device.expect("the device can be attached"))
    }

    fn connect(&self, point: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        let host = PathHost::open(Path::new(&point.address()))?;
        // A loop device that was cleared can be opened, and is empty.
        if host.size() == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(Box::new(host)) }
    }

    fn die_in_mid_request(&self, point: &dyn AttachPoint) {
        kill_a_reader(&point.address());
    }

    fn assert_nothing_left(&self) {
        let of_ours = |file: &Path| file.starts_with(&self.directory);
        let left: Vec<_> = coulter_system::loop_devices::all()
            .into_iter()
            .filter(|(_, file)| of_ours(file))
            .collect();
        assert!(left.is_empty(), "loop devices are left: {left:?}");
        assert_no_mount(&self.directory);
    }
}

/// What a block device of the kernel is like, whoever's driver it is.
const BLOCK_DEVICE: Traits = Traits {
    granularity: 4096,
    request_size_max: 8 << 20,
    write_beyond: libc::ENOSPC,
    read_beyond: None,
    read_only: None,
    // The block layer knows few errors.
    poisoned: libc::EIO,
    closed: libc::EIO,
};

/// A ublk device. Needs root and the driver.
pub struct UblkHarness {
    copy: Option<Copy>,
}

impl UblkHarness {
    /// With data copied by the one or the other, or by the one that is preferred here.
    pub fn new(copy: Option<Copy>) -> UblkHarness {
        UblkHarness { copy }
    }
}

impl Harness for UblkHarness {
    fn name(&self) -> &'static str {
        match self.copy {
            None => "ublk",
            Some(Copy::ByDriver) => "ublk, copied by the driver",
            Some(Copy::ByDaemon) => "ublk, copied by the daemon",
        }
    }

    fn traits(&self) -> Traits {
        BLOCK_DEVICE
    }

    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        let options = UblkOptions { read_only, copy: self.copy, ..UblkOptions::default() };
        let device = UblkDevice::attach(&*service, &options);
        Box::new(device.expect("the device can be attached"))
    }

    fn connect(&self, point: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        Ok(Box::new(PathHost::open(Path::new(&point.address()))?))
    }

    fn die_in_mid_request(&self, point: &dyn AttachPoint) {
        kill_a_reader(&point.address());
    }

    fn assert_nothing_left(&self) {
        let entries = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
        let left: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        assert!(left.is_empty(), "ublk devices are left: {left:?}");
    }
}

/// A device of the kernel's NBD client. Needs root and the module.
pub struct NbdDeviceHarness {
    socket: PathBuf,
}

impl NbdDeviceHarness {
    /// Over a socket in `directory`.
    pub fn new(directory: &Path) -> NbdDeviceHarness {
        NbdDeviceHarness { socket: directory.join("nbd-device.sock") }
    }
}

impl Harness for NbdDeviceHarness {
    fn name(&self) -> &'static str {
        "nbd device"
    }

    fn traits(&self) -> Traits {
        // A write to a read-only server is refused with an error of its own, which it maps too.
        BLOCK_DEVICE
    }

    fn attach(&self, service: Arc<dyn BlockService>, read_only: bool) -> Box<dyn AttachPoint> {
        let export = Export { read_only, ..Export::new("", service) };
        let address = Address::Unix(self.socket.clone());
        let options = NbdDeviceOptions::new(export, address, "coulter:conformance".into());
        let device = NbdDevice::attach(options);
        Box::new(device.expect("the device can be attached"))
    }

    fn connect(&self, point: &dyn AttachPoint) -> io::Result<Box<dyn Host>> {
        let host = PathHost::open(Path::new(&point.address()))?;
        // A device that was disconnected can be opened, and is empty.
        if host.size() == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(Box::new(host)) }
    }

    fn die_in_mid_request(&self, point: &dyn AttachPoint) {
        kill_a_reader(&point.address());
    }

    fn assert_nothing_left(&self) {
        assert!(!self.socket.exists(), "a socket is left at {}", self.socket.display());
        let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let ours = |entry: &std::fs::DirEntry| {
            let identity = std::fs::read_to_string(entry.path().join("backend"));
            identity.is_ok_and(|identity| identity.trim_end() == "coulter:conformance")
        };
        let left: Vec<_> = entries.filter(ours).map(|entry| entry.file_name()).collect();
        assert!(left.is_empty(), "NBD devices are left: {left:?}");
    }
}

fn assert_no_mount(directory: &Path) {
    let left = mounts::mount_at(directory).expect("/proc is readable");
    assert!(left.is_none(), "a mount is left on {}", directory.display());
    assert!(!directory.exists(), "a directory is left at {}", directory.display());
}

/// A process that reads what it can, killed while it does.
fn kill_a_reader(path: &str) {
    let mut reader = Command::new("dd")
        .args([&format!("if={path}"), "of=/dev/null", "bs=1M", "iflag=direct"])
        .stderr(Stdio::null())
        .spawn()
        .expect("dd can be started");
    std::thread::sleep(Duration::from_millis(5));
    // It may be done already; then there was nothing to kill.
    let _ = reader.kill();
    let _ = reader.wait();
}
