//! One virtual machine: started, listened to, and ended, by force if need be.

use super::kernel::Kernel;
use crate::error::SystemsError;
use crate::scratch::end_with_parent;
use crate::tool;
use rustix::io::Errno;
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const MEMORY_MIB: u32 = 1536;
const PROCESSORS: u32 = 2;

/// Who executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// The processor, by KVM.
    Kvm,
    /// QEMU's emulator: anywhere, ten times slower.
    Tcg,
}

impl Accelerator {
    fn arguments(self) -> [&'static str; 4] {
        match self {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "max"],
            // Without `-cx16` most boots of kernels from 6.12 on fail under emulation.
            Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max,-cx16"],
        }
    }
}

/// What a machine is made of.
#[derive(Clone, Debug)]
pub(super) struct GuestShape<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) archive: &'a Path,
    /// Becomes the guest's NVMe disk.
    pub(super) disk: &'a Path,
    /// Becomes a second, small namespace of it, for whoever overwrites all of one.
    pub(super) scratch: &'a Path,
    /// Where the console goes.
    pub(super) log: &'a Path,
    pub(super) accelerator: Accelerator,
    /// Where the files of an emulator are whose disks can place data, and the disk is to.
    pub(super) emulator: Option<&'a Path>,
    /// What is to be behind namespaces that have something wrong with them, if there are to be any.
    pub(super) odd: Option<&'a [PathBuf; ODD_NAMESPACES.len()]>,
}

/// The one with sectors that cannot be read or written.
const FAULTY: &str = "faulty";
/// What is wrong with each namespace from the third one on, and what makes it so.
pub(super) const ODD_NAMESPACES: [(&str, &str); 3] = [
    ("metadata", "logical_block_size=4096,physical_block_size=4096,ms=8"),
    ("large", "logical_block_size=16384,physical_block_size=16384"),
    (FAULTY, "logical_block_size=4096,physical_block_size=4096"),
];
/// Sectors of the faulty one, in the middle of a segment of a store: this one cannot be read ...
const UNREADABLE_SECTOR: u64 = (41 << 11) + 24;
/// ... and this one not be written.
const UNWRITABLE_SECTOR: u64 = (100 << 11) + 1024;

impl GuestShape<'_> {
    /// The emulator, with where it finds its own files.
    fn command(&self) -> Command {
        let Some(root) = self.emulator else { return tool::command("qemu-system-x86_64") };
        let program = root.join("usr/bin/qemu-system-x86_64");
        let mut command = tool::command(&program.display().to_string());
        for directory in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(root.join(directory));
        }
        command
    }

    /// Two namespaces of one controller.
    fn add_disks(&self, command: &mut Command) {
        let (of_controller, of_namespace) = match self.emulator {
            None => ("", ["", ""]),
            Some(_) => {
                // Four handles for the disk, and one for the other namespace.
                let groups = "nvme-subsys,id=places,nqn=places,fdp=on,fdp.nruh=5,fdp.runs=64M";
                command.args(["-device", groups]);
                (",subsys=places", [",shared=off,fdp.ruhs=0-3", ",shared=off"])
            }
        };
        command.arg("-device").arg(format!("nvme,id=nvme,serial=0{of_controller}"));
        let namespaces = [("disk", self.disk), ("scratch", self.scratch)];
        for (nsid, ((name, path), more)) in (1..).zip(namespaces.into_iter().zip(of_namespace)) {
            let drive = format!("if=none,id={name},format=raw,discard=unmap,cache=writeback,file=");
            command.arg("-drive").arg(format!("{drive}{}", path.display()));
            let blocks = "logical_block_size=4096,physical_block_size=4096";
            let namespace = format!("nvme-ns,bus=nvme,drive={name},nsid={nsid},{blocks}{more}");
            command.args(["-device", &namespace]);
        }
        let odd = ODD_NAMESPACES.iter().zip(self.odd.into_iter().flatten());
        for (nsid, (&(name, format), path)) in (3..).zip(odd) {
            command.args(["-blockdev", &odd_node(name, path)]);
            let namespace = format!("nvme-ns,bus=nvme,drive={name},nsid={nsid},{format}");
            command.args(["-device", &namespace]);
        }
    }
}

/// What is behind the odd namespace `name`, as QEMU is told it.
fn odd_node(name: &str, path: &Path) -> String {
    let file = json!({ "driver": "file", "filename": path });
    if name != FAULTY {
        return json!({ "driver": "raw", "node-name": name, "file": file }).to_string();
    }
    let errno = Errno::IO.raw_os_error();
    // Whatever the moment, and each time.
    let fault =
        |kind, sector| json!({ "event": "none", "iotype": kind, "sector": sector, "errno": errno });
    let faults = [fault("read", UNREADABLE_SECTOR), fault("write", UNWRITABLE_SECTOR)];
    json!({ "driver": "blkdebug", "node-name": name, "image": file, "inject-error": faults })
        .to_string()
}

/// A running machine. Dropping it pulls the plug.
pub(super) struct Guest {
    process: Child,
    lines: Receiver<String>,
    log: PathBuf,
}

/// What came of waiting for a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A line.
    Line(String),
    /// Nothing in time.
    Silence,
    /// The machine ended.
    End,
}

impl Guest {
    /// Turns one on.
    ///
    /// # Errors
    /// When QEMU cannot be started.
    pub(super) fn start(shape: &GuestShape<'_>) -> Result<Guest, SystemsError> {
        let failed = |source| SystemsError::io("write", shape.log, source);
        File::create(shape.log).map_err(failed)?;
        let mut command = shape.command();
        command.args(shape.accelerator.arguments());
        command.args(["-smp", &PROCESSORS.to_string(), "-m", &MEMORY_MIB.to_string()]);
        command.args(["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
        command.arg("-kernel").arg(&shape.kernel.image).arg("-initrd").arg(shape.archive);
        // On a busy host the kernel's test of the timer finds too few ticks, and panics.
        let words = "console=ttyS0 no_timer_check quiet panic=-1 nvme_core.io_timeout=255";
        command.args(["-append", words]);
        shape.add_disks(&mut command);
        command.arg("-serial").arg(format!("file:{}", shape.log.display()));
        command.args(["-serial", "stdio"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = end_with_parent(&mut command)
            .spawn()
            .map_err(|error| tool::not_started(&command, "qemu-system-x86", error))?;
        let output = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let (sender, lines) = channel();
        // It ends with the machine, whose end of the pipe closes.
        std::thread::spawn(move || {
            let text = output.lines().map_while(Result::ok);
            let mut text = text.map(|line| line.trim_end_matches('\r').to_owned());
            // Nobody listens any more once the machine is dropped.
            let _ = text.try_for_each(|line| sender.send(line));
        });
        Ok(Guest { process, lines, log: shape.log.to_owned() })
    }

    /// Waits for the next line of the guest's reports.
    pub(super) fn hear(&self, limit: Duration) -> Heard {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Timeout) => Heard::Silence,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// What the console says, from byte `from` on, and its last lines only.
    pub(super) fn console(&self, from: usize, line_count: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[from.min(text.len())..]).replace('\r', "");
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(line_count)..].join("\n")
    }

    /// Bytes that the console has said.
    pub(super) fn console_size(&self) -> usize {
        std::fs::metadata(&self.log).map_or(0, |metadata| metadata.len() as usize)
    }

    /// Pulls the plug.
    pub(super) fn cut(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.cut();
    }
}
