//! Scenarios, one after the other, on as few machines as can be.

use super::image::{Contents, archive_directory, pack};
use super::kernel::{Kernel, KernelName, fetch_emulator, make};
use super::machine::{Accelerator, Guest, GuestShape, Heard, ODD_NAMESPACES};
use super::power_cut;
use super::scenario::{HostRole, Scenario};
use crate::error::SystemsError;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of the guest's disk; sparse on the host.
const DISK_SIZE: u64 = 3 << 30;
/// Bytes of the second namespace.
const SCRATCH_SIZE: u64 = 16 << 20;
/// Bytes of each namespace with something wrong; a store must fit.
const ODD_SIZE: u64 = 128 << 20;
/// How long a guest may take until it listens.
const BOOT_LIMIT: Duration = Duration::from_secs(240);
/// The same where the accelerator is only tried.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// Times that a guest is started whose kernel does not come as far as its first process.
const BOOTS_MAX: u32 = 3;
/// Lines of the console that a failure shows.
const CONSOLE_LINES: usize = 60;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where kernels, images, disks and logs go.
    pub directory: PathBuf,
    /// The scripts.
    pub scripts: PathBuf,
    /// Programs that go into the image, by name.
    pub programs: Vec<(String, PathBuf)>,
    /// Who executes; KVM if it works, if `None`.
    pub accelerator: Option<Accelerator>,
    /// Give the disk handles for the placement of data (FDP), which needs a newer emulator, fetched.
    pub placement: bool,
}

/// What came of one scenario.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// Its name.
    pub scenario: &'static str,
    /// The kernel's name.
    pub kernel: &'static str,
    /// The kernel's release.
    pub release: String,
    /// Seconds that it took, without booting.
    pub seconds: f64,
    /// What it measured.
    pub figures: Vec<(String, f64)>,
    /// What went wrong, with the end of the console; `None` if nothing did.
    pub failure: Option<String>,
}

/// Runs `scenarios` on a kernel, and tells each report as it comes.
///
/// # Errors
/// When machines cannot be had at all. That a scenario fails is a report.
pub fn run(
    options: &Options,
    kernel: KernelName,
    scenarios: &[&'static Scenario],
    tell: &mut dyn FnMut(Report),
) -> Result<(), SystemsError> {
    make(&options.directory)?;
    let mut lab = Lab::new(options, kernel)?;
    for role in [HostRole::Script, HostRole::OddNamespaces] {
        let scripts = scenarios.iter().copied().filter(|scenario| scenario.kind == role);
        let scripts: Vec<_> = scripts.collect();
        lab.has_odd_namespaces = role == HostRole::OddNamespaces;
        let mut left = &scripts[..];
        while !left.is_empty() {
            let done = lab.run_some(left, tell)?;
            assert!(done > 0, "every machine deals with one scenario at least");
            left = &left[done..];
        }
    }
    lab.has_odd_namespaces = false;
    for scenario in scenarios {
        let HostRole::PowerCut { cuts } = scenario.kind else { continue };
        let start = Instant::now();
        let outcome = power_cut::run(&mut lab, scenario, cuts);
        let failure = outcome.as_ref().err().cloned();
        tell(lab.report(scenario, start, outcome.unwrap_or_default(), failure));
    }
    Ok(())
}

/// Everything to start machines with one kernel.
pub(super) struct Lab {
    kernel: Kernel,
    accelerator: Accelerator,
    /// Where the files of an emulator are that can place data, if one is wanted.
    emulator: Option<PathBuf>,
    base: PathBuf,
    directory: PathBuf,
    machine_count: u32,
    /// Whether the drive of the next machine has namespaces with something wrong.
    has_odd_namespaces: bool,
}

impl Lab {
    fn new(options: &Options, name: KernelName) -> Result<Lab, SystemsError> {
        let kernel = Kernel::fetch(name, &options.directory)?;
        let directory = options.directory.join(name.word());
        make(&directory)?;
        let base = directory.join("base.cpio");
        let contents =
            Contents { programs: options.programs.clone(), scripts: options.scripts.clone() };
        pack(&kernel, &contents, &directory.join("root"), &base)?;
        let accelerator = options.accelerator.unwrap_or(Accelerator::Tcg);
        let emulator = options.placement.then(|| fetch_emulator(&options.directory)).transpose()?;
        let (machine_count, has_odd_namespaces) = (0, false);
        let mut lab = Lab {
            kernel,
            accelerator,
            emulator,
            base,
            directory,
            machine_count,
            has_odd_namespaces,
        };
        if options.accelerator.is_none() && lab.has_kvm()? {
            lab.accelerator = Accelerator::Kvm;
        }
        Ok(lab)
    }

    /// Whether a guest comes up under KVM. That the device is there says little where this machine
    /// is a guest itself.
    fn has_kvm(&mut self) -> Result<bool, SystemsError> {
        let device = Path::new("/dev/kvm");
        if fs::OpenOptions::new().read(true).write(true).open(device).is_err() {
            return Ok(false);
        }
        self.accelerator = Accelerator::Kvm;
        let machine = self.start("", &self.new_disk()?)?;
        self.accelerator = Accelerator::Tcg;
        Ok(machine.hear(PROBE_LIMIT) == Heard::Line("ready".to_owned()))
    }

    /// A new, empty disk.
    pub(super) fn new_disk(&self) -> Result<PathBuf, SystemsError> {
        self.new_image("disk", DISK_SIZE)
    }

    /// A file of so many bytes that were never written.
    fn new_image(&self, name: &str, size: u64) -> Result<PathBuf, SystemsError> {
        let path = self.directory.join(format!("{name}.img"));
        let failed = |source| SystemsError::io("make", &path, source);
        let _ = fs::remove_file(&path);
        fs::File::create(&path).and_then(|file| file.set_len(size)).map_err(failed)?;
        Ok(path)
    }

    /// Starts a machine that carries out `plan`: a scenario in each line, script and arguments.
    pub(super) fn start(&mut self, plan: &str, disk: &Path) -> Result<Guest, SystemsError> {
        self.machine_count += 1;
        let extra = self.directory.join("plan");
        make(&extra.join("etc"))?;
        let file = extra.join("etc/plan");
        fs::write(&file, plan).map_err(|source| SystemsError::io("write", &file, source))?;
        let plan_archive = self.directory.join("plan.cpio");
        archive_directory(&extra, &plan_archive)?;
        // The kernel unpacks archives that follow each other one over the other.
        let archive = self.directory.join("image.cpio");
        let failed = |source| SystemsError::io("write", &archive, source);
        fs::copy(&self.base, &archive).map_err(failed)?;
        let mut whole = fs::OpenOptions::new().append(true).open(&archive).map_err(failed)?;
        let mut part = fs::File::open(&plan_archive).map_err(failed)?;
        std::io::copy(&mut part, &mut whole).map_err(failed)?;
        let log = self.directory.join(format!("console-{}.log", self.machine_count));
        let (kernel, accelerator) = (&self.kernel, self.accelerator);
        let scratch = &self.new_image("scratch", SCRATCH_SIZE)?;
        let odd = ODD_NAMESPACES.map(|(name, _)| name);
        let odd = self.has_odd_namespaces.then(|| odd.map(|name| self.new_image(name, ODD_SIZE)));
        let odd = match odd {
            Some([a, b, c]) => Some([a?, b?, c?]),
            None => None,
        };
        let (archive, log) = (&archive, &log);
        let emulator = self.emulator.as_deref();
        let odd = odd.as_ref();
        let shape = GuestShape { kernel, archive, disk, scratch, log, accelerator, emulator, odd };
        Guest::start(&shape)
    }

    /// Starts a machine and waits until it listens. One whose kernel dies before its first process has
    /// said a word is started again, and that is told: nothing of ours has run in it, and under
    /// emulation kernels trip over the breakpoints by which they change their own code.
    pub(super) fn boot(&mut self, plan: &str, disk: &Path) -> Result<Guest, SystemsError> {
        let mut boots = 0;
        loop {
            boots += 1;
            let machine = self.start(plan, disk)?;
            let (release, heard) = (&self.kernel.release, machine.hear(BOOT_LIMIT));
            match heard {
                Heard::Line(line) if line == "ready" => return Ok(machine),
                Heard::End if boots < BOOTS_MAX => {
                    eprintln!(
                        "a guest with Linux {release} died while it started; starting another"
                    );
                }
                heard => {
                    return Err(SystemsError::Program {
                        command: format!("a guest with Linux {release}"),
                        output: format!("did not come up ({heard:?}):\n{}", machine.console(0, 40)),
                    });
                }
            }
        }
    }

    /// Runs scenarios on one machine until one of them ends it; how many were dealt with.
    fn run_some(
        &mut self,
        scenarios: &[&'static Scenario],
        tell: &mut dyn FnMut(Report),
    ) -> Result<usize, SystemsError> {
        let plan: String =
            scenarios.iter().map(|scenario| format!("{}\n", scenario.script)).collect();
        let machine = self.boot(&plan, &self.new_disk()?)?;
        for (index, scenario) in scenarios.iter().enumerate() {
            let (start, console) = (Instant::now(), machine.console_size());
            let heard = hear_out(&machine, scenario.limit());
            let failure = heard
                .failure
                .map(|failure| format!("{failure}\n{}", machine.console(console, CONSOLE_LINES)));
            let failed = failure.is_some();
            tell(self.report(scenario, start, heard.figures, failure));
            if failed {
                // What it left behind is not to be the next one's fault.
                return Ok(index + 1);
            }
        }
        Ok(scenarios.len())
    }

    fn report(
        &self,
        scenario: &'static Scenario,
        start: Instant,
        figures: Vec<(String, f64)>,
        failure: Option<String>,
    ) -> Report {
        Report {
            scenario: scenario.name,
            kernel: self.kernel.name.word(),
            release: self.kernel.release.clone(),
            seconds: start.elapsed().as_secs_f64(),
            figures,
            failure,
        }
    }
}

/// What a guest said of one scenario.
struct HeardOut {
    figures: Vec<(String, f64)>,
    failure: Option<String>,
}

/// Listens until a scenario ends: `figure VALUE NAME`, then `end STATUS`.
fn hear_out(machine: &Guest, limit: Duration) -> HeardOut {
    let deadline = Instant::now() + limit;
    let mut figures = Vec::new();
    let failure = loop {
        match machine.hear(deadline.saturating_duration_since(Instant::now())) {
            Heard::Line(line) => match words(&line) {
                ("end", "0", _) => break None,
                ("end", status, why) => {
                    break Some(format!("the script ended with {status} {why}"));
                }
                ("figure", value, name) => {
                    figures.push((name.to_owned(), value.parse().unwrap_or(f64::NAN)));
                }
                _ => {}
            },
            Heard::Silence => break Some(format!("no end within {} s", limit.as_secs())),
            Heard::End => break Some("the machine ended".to_owned()),
        }
    };
    HeardOut { figures, failure }
}

/// The first two words of a line, and the rest.
fn words(line: &str) -> (&str, &str, &str) {
    let mut words = line.splitn(3, ' ');
    let mut next = || words.next().unwrap_or_default();
    (next(), next(), next())
}
