//! The demonstration that a volume outlives its host: its copy is attached elsewhere after the daemon was killed and the
//! store deleted, and everything that had been flushed is compared.

use super::blocks::Blocks;
use super::crash::{self, Writer};
use super::on_loop::{self, LET_GO, MKFS_OPTIONS, device_of};
use super::plan::{self, announce, failed};
use super::scratch::{Scratch, Undo};
use crate::error::LabError;
use crate::terminal::{BAD, GREEN};
use coulter::service::{BLOCK_SIZE, Session};
use coulter_cli::file_system::{self, FileSystem};
use coulter_cli::format_store::{self, Target};
use coulter_cli::interrupt::Interrupt;
use coulter_cli::new_store::Shape;
use coulter_cli::opening::{CopyOptions, OpeningOptions};
use coulter_cli::verbs::attach::Options;
use coulter_cli::via::ViaChoice;
use coulter_daemon::detach::detach;
use coulter_daemon::launch;
use coulter_daemon::points::{Loop, NbdServer};
use coulter_daemon::state::Entry;
use coulter_object::{Ack, Url};
use coulter_terminal::Size;
use rustix::process::Signal;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const STORE_SIZE: u64 = 512 << 20;
const SEGMENT_SIZE: u64 = 8 << 20;

/// What is written to without a file system.
const BLOCK_COUNT: u64 = (32 << 20) / BLOCK_SIZE;

/// How long hosts write before the loss.
const LOAD: Duration = Duration::from_millis(1500);

/// How long the rest of the volume may take to be fetched.
const FILL: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

/// Bytes that the store, its copy and the cache may take.
pub(crate) const ROOM: u64 = 3 * STORE_SIZE;

/// What came of it. Field names are documented in `docs/json.md`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LostHost {
    /// `ext4-on-loop` or `nbd`.
    mode: &'static str,
    /// What the loss must not take: fsynced files, or flushed writes.
    durable_before_loss: u64,
    /// How many of these were whole on the other host.
    durable_after_loss: u64,
    /// From the start of attaching the copy until the volume could be used.
    seconds_to_attach: f64,
    /// Whether the file system's own checker found nothing; null without a file system.
    file_system_clean: Option<bool>,
    /// Whether `check --data` finds nothing wrong with the store on the other host.
    store_sound: bool,
    /// Whether nothing was lost and nothing is wrong.
    recovered: bool,
}

impl LostHost {
    /// Whether it shows what it is meant to.
    pub(crate) fn is_good(&self) -> bool {
        self.recovered
    }

    /// What is lost, for people.
    pub(crate) fn reason(&self) -> String {
        let (before, after) = (self.durable_before_loss, self.durable_after_loss);
        format!("{after} of {before} durable {} survived the loss of the host", self.what())
    }

    fn what(&self) -> &'static str {
        if self.file_system_clean.is_some() { "files" } else { "writes" }
    }

    /// The line for people.
    pub(crate) fn line(&self) -> String {
        let colour = if self.recovered { GREEN } else { BAD };
        let (before, after) = (self.durable_before_loss, self.durable_after_loss);
        let fsck = match self.file_system_clean {
            Some(true) => ", e2fsck clean",
            Some(false) => ", e2fsck found damage",
            None => "",
        };
        let check = if self.store_sound { "store sound" } else { "store damaged" };
        format!(
            "host lost            usable elsewhere in {:.2} s{fsck}, {check}, \
             {colour}{after} of {before} durable {} whole{colour:#}",
            self.seconds_to_attach,
            self.what()
        )
    }
}

/// Runs it from start to end.
///
/// # Errors
/// Whatever one of its steps cannot do; what is lost is no error here.
pub(crate) fn run(
    interrupt: &Interrupt,
    mut scratch: Scratch,
    as_root: bool,
) -> Result<LostHost, LabError> {
    let scratch = &mut scratch;
    announce("a volume with a copy in a directory; flushes wait for the copy (--ack remote)");
    let store = make_store(scratch)?;
    let url = Url::Directory(scratch.path("copy"));
    let copied = CopyOptions {
        replicate: Some(url.clone()),
        ack: Ack::Remote,
        every: Duration::from_millis(200),
        ..CopyOptions::default()
    };
    let via = if as_root { ViaChoice::Kind(&Loop) } else { ViaChoice::Kind(&NbdServer) };
    let opening = OpeningOptions { copy: copied, ..OpeningOptions::default() };
    let entry = attach(scratch, &store, &opening, via)?;
    let elsewhere = Elsewhere { url, store, via };
    if as_root {
        with_files(interrupt, scratch, &entry, &elsewhere)
    } else {
        with_blocks(interrupt, scratch, &entry, &elsewhere)
    }
}

/// What the other host knows.
struct Elsewhere {
    url: Url,
    store: PathBuf,
    via: ViaChoice,
}

impl Elsewhere {
    /// Takes the store away, and attaches the copy. Also how long that took, and where its cache is.
    fn attach(&self, scratch: &mut Scratch) -> Result<(Entry, Instant, PathBuf), LabError> {
        fs::remove_file(&self.store).map_err(|e| LabError::io("delete", &self.store, e))?;
        scratch.reclaim_all()?;
        announce("the daemon killed, the store deleted, and the copy attached as on another host");
        let begin = Instant::now();
        let copy = CopyOptions {
            cache: Some(scratch.make_directory("elsewhere")?.join("cache.img")),
            ack: Ack::Remote,
            ..CopyOptions::default()
        };
        let opening = OpeningOptions { copy, ..OpeningOptions::default() };
        let url = self.url.to_string();
        let (path, opening) = opening.located(Path::new(&url))?;
        let entry = attach(scratch, &path, &opening, self.via)?;
        Ok((entry, begin, path))
    }
}

/// Detaches the volume once all of it is here, and checks the store.
fn is_sound(
    interrupt: &Interrupt,
    scratch: &Scratch,
    entry: &Entry,
    store: &Path,
) -> Result<bool, LabError> {
    let until = Instant::now() + FILL;
    let missing = || {
        let replica = plan::status(scratch, entry)?.replica;
        Ok::<u64, LabError>(replica.map_or(0, |replica| replica.missing_bytes))
    };
    while missing()? > 0 {
        interrupt.sleep(PAUSE)?;
        if Instant::now() > until {
            return Err(failed("filling the cache", "it takes too long"));
        }
    }
    detach(scratch.state(), entry, false)?;
    plan::is_sound(store)
}

/// ext4, and files that are fsynced one after the other.
fn with_files(
    interrupt: &Interrupt,
    scratch: &mut Scratch,
    entry: &Entry,
    elsewhere: &Elsewhere,
) -> Result<LostHost, LabError> {
    let device = device_of(entry)?;
    FileSystem::Ext4.make(&device, &MKFS_OPTIONS)?;
    let mount_point = scratch.make_directory("mounted")?;
    file_system::mount("ext4", &device, &mount_point, "")?;
    scratch.note(Undo::Unmount(mount_point.clone()));
    let directory = mount_point.join("fsynced");
    fs::create_dir(&directory).map_err(|e| LabError::io("make", &directory, e))?;
    announce("files written and fsynced");
    let writer = Writer::start(&directory)?;
    let waited = interrupt.sleep(LOAD);
    let killed = kill_daemon(entry);
    let durable = writer.wait_for_failure();
    waited?;
    killed?;
    on_loop::unmount_dead(&mount_point)?;

    let (entry, begin, store) = elsewhere.attach(scratch)?;
    let device = device_of(&entry)?;
    file_system::mount("ext4", &device, &mount_point, "")?;
    let seconds_to_attach = begin.elapsed().as_secs_f64();
    announce("every fsynced file compared");
    let found = crash::survivors(&directory, durable);
    file_system::unmount(&mount_point)?;
    let clean = on_loop::is_clean(&device)?;
    let store_sound = is_sound(interrupt, scratch, &entry, &store)?;
    Ok(LostHost {
        mode: "ext4-on-loop",
        durable_before_loss: durable,
        durable_after_loss: found.whole,
        seconds_to_attach,
        file_system_clean: Some(clean),
        store_sound,
        recovered: clean && store_sound && found.whole == durable && durable > 0,
    })
}

/// Writes and flushes over NBD.
fn with_blocks(
    interrupt: &Interrupt,
    scratch: &mut Scratch,
    entry: &Entry,
    elsewhere: &Elsewhere,
) -> Result<LostHost, LabError> {
    let mut volume = plan::connect(scratch.state(), entry)?;
    let mut blocks = Blocks::new(BLOCK_COUNT, 5);
    blocks.fill(&mut volume, interrupt)?;
    announce("writes and flushes");
    let before = blocks.durable();
    let mut kill = || kill_daemon(entry);
    blocks.overwrite_until_crash(&mut volume, interrupt, LOAD, &mut kill)?;
    drop(volume);

    let (entry, begin, store) = elsewhere.attach(scratch)?;
    let mut volume = plan::connect(scratch.state(), &entry)?;
    let seconds_to_attach = begin.elapsed().as_secs_f64();
    announce("every block compared");
    let found = blocks.compare(&mut volume as &mut dyn Session, interrupt, true)?;
    drop(volume);
    let store_sound = is_sound(interrupt, scratch, &entry, &store)?;
    let durable = (blocks.durable() - before) as u64;
    let lost = blocks.durable().saturating_sub(found.prefix) as u64;
    Ok(LostHost {
        mode: "nbd",
        durable_before_loss: durable,
        durable_after_loss: durable.saturating_sub(lost),
        seconds_to_attach,
        file_system_clean: None,
        store_sound,
        recovered: store_sound && lost == 0 && found.mismatches == 0 && durable > 0,
    })
}

fn kill_daemon(entry: &Entry) -> Result<(), LabError> {
    let killed = entry.process.signal(Signal::KILL);
    killed.map_err(|error| failed("killing the daemon", error.to_string()))?;
    if entry.process.wait_for_end(LET_GO) {
        return Ok(());
    }
    Err(failed("killing the daemon", "it does not end"))
}

fn make_store(scratch: &Scratch) -> Result<PathBuf, LabError> {
    let shape = Shape {
        size: None,
        store_size: Some(Size(STORE_SIZE)),
        segment_size: Some(Size(SEGMENT_SIZE)),
        spare: None,
        page_size: None,
        reclaim: None,
        label: "demo".to_owned(),
        sparse: false,
        capacity: None,
        touched_limit: None,
        address_space: None,
    };
    let path = scratch.path("demo.store");
    let target = Target::prepare(&path, &shape, true)?;
    format_store::format(target, &shape, None)?;
    Ok(path)
}

fn attach(
    scratch: &mut Scratch,
    store: &Path,
    opening: &OpeningOptions,
    via: ViaChoice,
) -> Result<Entry, LabError> {
    let name = Some("demo".to_owned());
    let opening = OpeningOptions { name, ..opening.clone() };
    let options = Options { via, recover: false, opening };
    let entry = launch::launch(scratch.state(), options.words(store))?;
    scratch.note(Undo::Daemon(entry.process));
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_documented_and_the_line_says_what_is_lost() {
        let found = LostHost {
            mode: "ext4-on-loop",
            durable_before_loss: 12,
            durable_after_loss: 11,
            seconds_to_attach: 0.25,
            file_system_clean: Some(true),
            store_sound: true,
            recovered: false,
        };
        let documentation = include_str!("../../../../docs/json.md");
        let json = serde_json::to_value(&found).expect("figures are JSON");
        for name in json.as_object().expect("figures are an object").keys() {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
        let line = anstream::adapter::strip_str(&found.line()).to_string();
        assert_eq!(
            line,
            "host lost            usable elsewhere in 0.25 s, e2fsck clean, store sound, 11 of 12 durable files whole"
        );
        assert_eq!(found.reason(), "11 of 12 durable files survived the loss of the host");
    }
}
