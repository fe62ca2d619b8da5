//! `coulter fs`: file systems of Coulter's own, which lie on a volume without a block device between.

mod daemon_mount;
mod options;
mod salvage;

use crate::answering;
use crate::error::{CliError, DoorError, Error};
use crate::format_store::{self, Target};
use crate::mount_point::{no_directory, not_a_directory, taken};
use crate::new_store::Shape;
use crate::opening::{CopyOptions, OpeningOptions};
use crate::room;
use crate::store;
use crate::terminal::{self, GREEN};
use crate::verbs::attach::Options;
use crate::via::ViaChoice;
use clap::{Args, Subcommand, ValueEnum};
use coulter::{LocalVolume, OpenOptions};
use coulter_check::files::{self, Report};
use coulter_daemon::opening::{Acknowledge, DeviceChoice, Trim};
use coulter_daemon::setting::{self, Setting};
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::{launch, service};
use coulter_files::{CreateOptions, Time};
use coulter_format::files::superblock::MAGIC;
use coulter_system::{dead_mounts, mounts};
use coulter_terminal::{Report as Told, Size};
pub(crate) use daemon_mount::{DaemonMount, command_line};
use rustix::process::{getegid, geteuid};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of a block.
const BLOCK_SIZE: usize = coulter::service::BLOCK_SIZE as usize;
/// Bytes of metadata that a mount keeps in memory at least.
const CACHE_SIZE_MIN: u64 = 1 << 20;
/// How long a mount waits for the daemon of one that was unmounted to close the store.
pub(super) const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(60);
pub(super) const PREDECESSOR_PAUSE: Duration = Duration::from_millis(20);

/// Make, mount and check a Coulter file system.
///
/// It needs no block device and no other file system: names, attributes and data lie on the volume
/// itself. After a crash the tree is the state after one of the latest operations, and all synced
/// data is there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter fs create disk.img --size 10G    make a store with an empty file system
  coulter fs mount disk.img /mnt           mount it
  coulter umount /mnt                      unmount it, and wait until all of it is in the store")]
pub(crate) struct Fs {
    /// What to do.
    #[command(subcommand)]
    verb: FsVerb,
}

#[derive(Debug, Subcommand)]
enum FsVerb {
    Create(Create),
    Mount(FsMount),
    Check(Check),
    Dump(Dump),
    Salvage(salvage::Salvage),
}

/// Make a store with an empty file system.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter fs create disk.img --size 10G
  coulter fs create /dev/sdb --segment-size 64M")]
struct Create {
    /// File or disk to format
    path: PathBuf,

    #[command(flatten)]
    shape: Shape,

    /// Format even if the target holds data, and erase its signatures
    #[arg(long)]
    force: bool,
}

/// Mount the file system of a store.
///
/// A daemon serves it until it is unmounted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter fs mount disk.img /mnt
  coulter fs mount disk.img /mnt --cache back --options nosuid,nodev")]
pub(super) struct FsMount {
    /// Store with the file system
    path: PathBuf,

    /// Directory to mount it on
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// How the kernel's page cache writes: through, at once; back, later
    #[arg(long, value_enum, default_value = "through", value_name = "HOW")]
    cache: Cache,

    /// Memory for names, attributes and places of data, 1M at least [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    cache_size: Option<Size>,

    /// Mount options: ro, nosuid, nodev, noexec
    #[arg(long, short, value_name = "LIST")]
    options: Option<String>,

    /// Name for `status` [default: made from the file name]
    #[arg(long)]
    name: Option<String>,

    /// Limit of the map's memory [default: the limit given at `create`]
    #[arg(long, value_name = "SIZE")]
    map_memory: Option<Size>,

    /// Also fill flash pages of which only some blocks are dead, writing the others there again. Refused unless
    /// the store has a page size, and the device says that it writes pages whole or not at all over power
    /// cuts: no file or disk does
    #[arg(long)]
    pad_pages: bool,

    /// Start with this setting of `coulter tune`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting::at_opening)]
    tune: Vec<Setting>,

    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9640; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = crate::metrics_address::parse)]
    metrics: Option<SocketAddr>,

    /// Stay in the foreground until it is unmounted
    #[arg(long)]
    foreground: bool,

    /// Print the entry that `list --json` would show
    #[arg(long)]
    json: bool,
}

/// A size of the cache that a path fits into, with the paths of other requests.
fn cache_size(text: &str) -> Result<Size, String> {
    let size: Size =
        text.parse().map_err(|error: coulter_terminal::SizeError| error.to_string())?;
    match size.0 >= CACHE_SIZE_MIN {
        true => Ok(size),
        false => Err(format!("it is {} at least", Size(CACHE_SIZE_MIN))),
    }
}

/// How the kernel's page cache writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cache {
    Through,
    Back,
}

/// Check a file system for faults, read-only.
///
/// Every node, name, inode and reference to a block is compared with every other one that speaks of
/// the same thing. Data is read only with --data. It must not be mounted. Ends with 1 if anything
/// is wrong. `coulter check` looks at the store below.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter fs check disk.img                names, attributes and places of data
  coulter fs check disk.img --data         and every block of every file")]
struct Check {
    /// Store with the file system
    path: PathBuf,

    /// Read every block of every file and compare its checksum
    #[arg(long)]
    data: bool,

    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// The output of `check --json`.
#[derive(Serialize)]
struct Findings<'a> {
    findings: Vec<String>,
    findings_omitted: u64,
    counters: &'a files::Counters,
}

/// Print every item of a file system's tree.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter fs dump disk.img | less")]
struct Dump {
    /// Store with the file system
    path: PathBuf,
}

impl Fs {
    pub(crate) fn run(
        &self,
        known: Option<&StateDirectory>,
        state: impl Fn() -> Result<StateDirectory, Error>,
    ) -> Result<(), CliError> {
        match &self.verb {
            FsVerb::Create(create) => create.run(known),
            FsVerb::Mount(mount) => mount.run(&state()?),
            FsVerb::Check(check) => check.run(known),
            FsVerb::Dump(dump) => dump.run(known),
            FsVerb::Salvage(salvage) => salvage.run(known),
        }
    }

    /// Whether it serves in the foreground, and so logs what it does.
    pub(crate) fn is_in_foreground(&self) -> bool {
        matches!(&self.verb, FsVerb::Mount(mount) if mount.foreground)
    }
}

impl Create {
    fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let target = Target::prepare(&self.path, &self.shape, self.force)
            .map_err(|error| store::naming_volume(error.into(), &self.path, state))?;
        store::refuse_attached(&self.path, state)?;
        let made = format_store::format(target, &self.shape, None)?;
        self.write().inspect_err(|_| {
            terminal::note("the store was made all the same, without a file system");
        })?;
        room::note_if_short(&self.path);
        terminal::print(&format!(
            "{}: a store of {} with a file system of {}",
            terminal::path(&self.path),
            Size(made.store_size_bytes),
            Size(made.volume_size_bytes),
        ))
        .inspect_err(|_| terminal::note("the file system was made all the same"))
    }

    /// Writes an empty file system into the store, which is new.
    fn write(&self) -> Result<(), CliError> {
        let device = store::open_locked_device(&self.path)?;
        let failed = |why: String| told("cannot make a file system on", &self.path, why);
        let volume = LocalVolume::open(device, OpenOptions::default())
            .map_err(|error| failed(error.to_string()))?;
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| failed(error.to_string()))?;
        let (uuid, hash_seed) = random.split_at(16);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut label = [0; 64];
        let bytes = self.shape.label.as_bytes();
        label[..bytes.len().min(64)].copy_from_slice(&bytes[..bytes.len().min(64)]);
        let options = CreateOptions {
            block_count: volume.size() / BLOCK_SIZE as u64,
            uuid: uuid.try_into().unwrap_or_default(),
            hash_seed: hash_seed.try_into().unwrap_or_default(),
            label,
            owner: (geteuid().as_raw(), getegid().as_raw()),
            now: Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        };
        let blocks = coulter_files::create(&options).map_err(|error| failed(error.to_string()))?;
        let written = volume.write_at(0, &blocks.concat()).and_then(|()| volume.flush());
        written.map_err(|error| failed(error.to_string()))?;
        volume.close().map_err(|error| failed(error.to_string()))
    }
}

impl FsMount {
    /// One that was asked for by `coulter mount`.
    pub(super) fn plain(
        path: &Path,
        directory: &Path,
        options: String,
        opening: &OpeningOptions,
        json: bool,
    ) -> FsMount {
        FsMount {
            path: path.to_owned(),
            directory: directory.to_owned(),
            cache: Cache::Through,
            cache_size: None,
            options: Some(options),
            name: opening.name.clone(),
            map_memory: opening.map_memory,
            pad_pages: opening.pad_pages,
            tune: opening.tune.clone(),
            metrics: opening.metrics,
            foreground: false,
            json,
        }
    }

    pub(super) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let list = self.options.clone().unwrap_or_default();
        options::check(&list)?;
        answering::check(state, &self.directory)?;
        let directory = self.mount_point(state)?;
        if !geteuid().is_root() {
            return Err(CliError::needs_root("mounting", "run it with sudo"));
        }
        if state.attached_at(&self.path).is_none() {
            store::existing_to_serve_or_make(&self.path, "coulter fs create")?;
        }
        // A name of what is attached is told as the store that it is of.
        let path = &store::find(&self.path, Some(state))?;
        let opening = OpeningOptions {
            name: self.name.clone(),
            map_memory: self.map_memory,
            read_cache: None,
            device: DeviceChoice::Auto,
            trim: Trim::Auto,
            // What a program did not sync may go with the mount, as with any file system.
            acknowledge: Acknowledge::Buffered,
            read_only: list.split(',').any(|option| option == "ro"),
            degraded: coulter::Degraded::ReadOnly,
            pad_pages: self.pad_pages,
            tune: self.tune.clone(),
            metrics: self.metrics,
            copy: CopyOptions::default(),
        };
        let mount = DaemonMount {
            fs_again: self.again(path, &directory, &opening),
            fs_directory: Some(directory),
            fs_back: self.cache == Cache::Back,
            fs_cache_size: self.cache_size,
            fs_options: list,
            fs_overlay: Vec::new(),
        };
        let options = Options { via: ViaChoice::Auto, recover: false, opening };
        if self.foreground {
            let job = options.job(path)?;
            let job = mount.put_into(job);
            service::run(state, job, &mut |entry| Ok(self.tell(entry)?))?;
            return Ok(());
        }
        let mut words = options.words(path);
        words.splice(1..1, mount.words());
        let entry = launch::launch(state, words)?;
        self.tell(&entry)
    }

    /// The command line that mounts it like this.
    fn again(&self, path: &Path, directory: &Path, opening: &OpeningOptions) -> String {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let places = format!("{} {}", terminal::word(&path), terminal::word(directory));
        let back = (self.cache == Cache::Back).then(|| "--cache=back".to_owned());
        let size = self.cache_size.map(|size| format!("--cache-size={}", size.0));
        let options = self.options.iter().filter(|list| !list.is_empty());
        let own = back.into_iter().chain(size);
        let own = own.chain(options.map(|list| format!("--options={list}")));
        command_line(format!("coulter fs mount {places}"), own, opening)
    }

    /// The directory, absolute, if something may be mounted there. The dead mount of this very
    /// store may be there: the new daemon takes it away.
    fn mount_point(&self, state: &StateDirectory) -> Result<PathBuf, CliError> {
        let failed = |source| CliError::io("find", &self.directory, source);
        let directory = match std::fs::metadata(&self.directory) {
            Ok(metadata) if !metadata.is_dir() => {
                return Err(not_a_directory(&self.directory, &self.path).into());
            }
            Ok(_) => self.directory.canonicalize().map_err(failed)?,
            Err(error) if dead_mounts::is_dead(&error) => {
                let directory = std::path::absolute(&self.directory).map_err(failed)?;
                return self.own_dead_mount(state, directory);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(no_directory(&self.directory).into());
            }
            Err(error) => return Err(failed(error)),
        };
        let failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        if let Some(mount) = mounts::mount_at(&directory).map_err(failed)? {
            return Err(taken(state, directory, mount).into());
        }
        Ok(directory)
    }

    /// `directory`, if what is mounted there, and dead, is of this store.
    fn own_dead_mount(
        &self,
        state: &StateDirectory,
        directory: PathBuf,
    ) -> Result<PathBuf, CliError> {
        let failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        let store = self.path.canonicalize().ok();
        match mounts::mount_at(&directory).map_err(failed)? {
            Some(mount) if store.is_none_or(|store| store != mount.source) => {
                Err(taken(state, directory, mount).into())
            }
            _ => Ok(directory),
        }
    }

    fn tell(&self, entry: &Entry) -> Result<(), CliError> {
        if self.json { terminal::print_json(entry) } else { Ok(()) }
    }
}

/// A volume that is only read.
fn open(path: &Path, state: Option<&StateDirectory>) -> Result<LocalVolume, CliError> {
    let path = &store::find(path, state)?;
    store::refuse_attached(path, state)?;
    let device =
        store::open_device(path, true).map_err(|error| store::naming_volume(error, path, state))?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    LocalVolume::open(device, options)
        .map_err(|error| store::refused(path.to_owned(), &error.kind).into())
}

fn read_block(volume: &LocalVolume, block: u64) -> Result<[u8; BLOCK_SIZE], ()> {
    let mut bytes = [0; BLOCK_SIZE];
    volume.read_at(block * BLOCK_SIZE as u64, &mut bytes).map_err(|_| ())?;
    Ok(bytes)
}

/// The same of one that holds a file system, be it a damaged one.
fn open_files(path: &Path, state: Option<&StateDirectory>) -> Result<LocalVolume, CliError> {
    let volume = open(path, state)?;
    let begins = read_block(&volume, 0).map(|block| block.starts_with(&MAGIC));
    // What cannot be read may have been one.
    if begins == Ok(false) {
        return Err(DoorError::NoFiles { path: path.to_owned() }.into());
    }
    Ok(volume)
}

impl Check {
    fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let volume = open_files(&self.path, state)?;
        let blocks = volume.size() / BLOCK_SIZE as u64;
        let bar = terminal::progress_of_reads("checking the file system");
        let mut read = |block| {
            bar.inc(BLOCK_SIZE as u64);
            read_block(&volume, block)
        };
        let mut report = files::check(&mut read, blocks);
        bar.finish_and_clear();
        if self.data {
            let bytes = report.counters.data_blocks * BLOCK_SIZE as u64;
            let bar = terminal::progress("checking data", bytes);
            let mut read = |block| read_block(&volume, block);
            files::check_data(&mut read, &mut report, &mut || bar.inc(BLOCK_SIZE as u64));
            bar.finish_and_clear();
        }
        self.print(&report)?;
        if report.is_sound() {
            return Ok(());
        }
        let count = report.findings.len() as u64 + report.findings_omitted;
        Err(told("found faults in the file system of", &self.path, format!("{count} in all")))
    }

    fn print(&self, report: &Report) -> Result<(), CliError> {
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        if self.json {
            let (findings_omitted, counters) = (report.findings_omitted, &report.counters);
            return terminal::print_json(&Findings { findings, findings_omitted, counters });
        }
        for finding in &findings {
            terminal::print(finding)?;
        }
        if report.findings_omitted > 0 {
            terminal::print(&format!("… and {} more", report.findings_omitted))?;
        }
        if report.is_sound() { self.tell_sound(report) } else { Ok(()) }
    }

    fn tell_sound(&self, report: &Report) -> Result<(), CliError> {
        let counters = &report.counters;
        let data = match self.data {
            true => format!("{} data blocks compared", counters.data_blocks_read),
            false => "data not read (--data does that)".to_owned(),
        };
        terminal::print(&format!(
            "{GREEN}sound{GREEN:#}: {} inodes, {} of them directories, {} names, {} in files, \
             {} free, {data}",
            counters.inodes,
            counters.directories,
            counters.names,
            Size(counters.data_blocks * BLOCK_SIZE as u64),
            Size(counters.free_blocks * BLOCK_SIZE as u64),
        ))
    }
}

impl Dump {
    fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        let volume = open_files(&self.path, state)?;
        let mut printed = Ok(());
        files::dump(&mut |block| read_block(&volume, block), &mut |line| {
            printed = terminal::print(line);
            printed.is_ok()
        });
        printed
    }
}

pub(super) fn told(what: &str, path: &Path, why: String) -> CliError {
    let what = format!("{what} {}", path.display());
    Error::Told(Told { what, why: Some(why), help: None, exit_code: 1 }).into()
}

/// The same with what to do.
pub(super) fn told_with_help(what: &str, path: &Path, why: String, help: String) -> CliError {
    let what = format!("{what} {}", path.display());
    Error::Told(Told { what, why: Some(why), help: Some(help), exit_code: 1 }).into()
}
