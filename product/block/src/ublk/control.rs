//! Orders to the driver: `/dev/ublk-control`, through a small ring of its own.

use super::abi::{
    CMD_ADD_DEV, CMD_DEL_DEV, CMD_DEL_DEV_ASYNC, CMD_END_USER_RECOVERY, CMD_GET_DEV_INFO,
    CMD_GET_FEATURES, CMD_GET_PARAMS, CMD_SET_PARAMS, CMD_START_DEV, CMD_START_USER_RECOVERY,
    CMD_STOP_DEV, ControlCommand, DeviceInfo, Parameters,
};
use super::error::UblkError;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const PATH: &str = "/dev/ublk-control";
/// Stands for "no device yet" and, cut to 16 bits, for "no queue".
const NONE: u32 = u32::MAX;

/// The driver's ear.
pub(super) struct Control {
    device: OwnedFd,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// [`UblkError::NoDriver`], [`UblkError::NoPermission`], [`UblkError::NoRing`].
    pub(super) fn open() -> Result<Control, UblkError> {
        let device = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let device = device.map_err(|error| UblkError::of_open(error.into()))?;
        let ring = IoUring::builder().build(4).map_err(UblkError::NoRing)?;
        Ok(Control { device, ring })
    }

    /// What the driver can do, in bits.
    ///
    /// # Errors
    /// As the system says; drivers before Linux 6.5 do not know the question.
    pub(super) fn features(&mut self) -> io::Result<u64> {
        let mut features = 0u64;
        let command = about(NONE, &mut features);
        self.order(CMD_GET_FEATURES, command)?;
        Ok(features)
    }

    /// Makes a device; `info` says what kind, and becomes what it is.
    pub(super) fn add(&mut self, info: &mut DeviceInfo) -> io::Result<()> {
        let command = about(info.id, info);
        self.order(CMD_ADD_DEV, command)
    }

    /// What is known of a device.
    pub(super) fn info(&mut self, id: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        let command = about(id, &mut info);
        self.order(CMD_GET_DEV_INFO, command)?;
        Ok(info)
    }

    pub(super) fn set_parameters(&mut self, id: u32, mut to: Parameters) -> io::Result<()> {
        let command = about(id, &mut to);
        self.order(CMD_SET_PARAMS, command)
    }

    pub(super) fn parameters(&mut self, id: u32) -> io::Result<Parameters> {
        let length = size_of::<Parameters>() as u32;
        let mut parameters = Parameters { length, ..Parameters::default() };
        let command = about(id, &mut parameters);
        self.order(CMD_GET_PARAMS, command)?;
        Ok(parameters)
    }

    /// Makes the block device, once every request slot was offered. Its partitions are read
    /// before this returns, so somebody has to serve meanwhile.
    pub(super) fn start(&mut self, id: u32) -> io::Result<()> {
        self.order(CMD_START_DEV, with_own_pid(id))
    }

    /// Takes the block device away, whoever uses it, once what was asked of it is answered; then
    /// takes back the request slots.
    pub(super) fn stop(&mut self, id: u32) -> io::Result<()> {
        self.order(CMD_STOP_DEV, plain(id))
    }

    /// Forgets a device. Where the kernel can, this does not wait for those who still have it open.
    pub(super) fn delete(&mut self, id: u32) -> io::Result<()> {
        match self.order(CMD_DEL_DEV_ASYNC, plain(id)) {
            // Before Linux 6.7 there is only the other one.
            Err(error) if is_unknown(&error) => self.order(CMD_DEL_DEV, plain(id)),
            outcome => outcome,
        }
    }

    pub(super) fn start_recovery(&mut self, id: u32) -> io::Result<()> {
        self.order(CMD_START_USER_RECOVERY, plain(id))
    }

    /// Ends it once every request slot was offered; requests that waited are issued again.
    pub(super) fn end_recovery(&mut self, id: u32) -> io::Result<()> {
        self.order(CMD_END_USER_RECOVERY, with_own_pid(id))
    }

    /// Gives an order and waits until it is carried out.
    fn order(&mut self, operation: u32, command: ControlCommand) -> io::Result<()> {
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, operation).cmd(command.encoded()).build();
        // SAFETY: what the command points to is borrowed by the caller, and outlives the order,
        // since this does not return before the answer.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there is one order at a time");
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
            if let Some(answer) = self.ring.completion().next() {
                return match answer.result() {
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// Whether the driver does not know a command.
pub(super) fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY))
}

fn plain(id: u32) -> ControlCommand {
    ControlCommand { device: id, queue: NONE as u16, ..ControlCommand::default() }
}

fn with_own_pid(id: u32) -> ControlCommand {
    ControlCommand { value: u64::from(std::process::id()), ..plain(id) }
}

/// A command with something that the kernel reads or writes.
fn about<T>(id: u32, value: &mut T) -> ControlCommand {
    let length = u16::try_from(size_of::<T>()).expect("what the kernel is handed is small");
    ControlCommand { length, address: std::ptr::from_mut(value) as u64, ..plain(id) }
}
