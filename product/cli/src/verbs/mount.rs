//! `coulter mount`: from a path to a mounted file system in one step.
//!
//! What this command itself has set up is undone when a later step fails, the file of a store that it made
//! included: nothing is in it.
//!
//! A store is made only when `--create` asks for it. Otherwise a mistyped name, or a directory whose disk is
//! not mounted, would give a database an empty volume.

use crate::error::{CliError, DaemonError, DoorError, Error, MountError, OpenError, StateError};
use crate::file_system::{self, FileSystem};
use crate::format_store::{self, Target};
use crate::mount_point::{no_directory, not_a_directory, taken};
use crate::named_store;
use crate::new_store::{Made, Shape};
use crate::opening::OpeningOptions;
use crate::room;
use crate::store;
use crate::terminal;
use crate::verbs::attach::{Options, note_cautions};
use crate::verbs::fs::FsMount;
use crate::via::ViaChoice;
use clap::Args;
use coulter_daemon::attach_point;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::detach::detach;
use coulter_daemon::launch;
use coulter_daemon::opening::{Acknowledge, Trim};
use coulter_daemon::points;
use coulter_daemon::signatures;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_system::mounts;
use coulter_terminal::Size;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Mount the file system of a volume.
///
/// Attaches the store first if necessary. --mkfs makes a file system if the volume is blank. A Coulter
/// file system is mounted as `coulter fs mount` does.
/// --create makes the store if the file does not exist or is blank. `coulter umount` unmounts and
/// detaches.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  coulter mount disk.img /mnt --create --size 10G --mkfs ext4   a new store and file system
  coulter mount disk.img /mnt                          the same one again
  coulter mount /dev/sdb /srv --options noatime,discard")]
pub(crate) struct Mount {
    /// Store with the volume to mount; or, with --cache, the URL of a copy
    #[arg(value_parser = named_store::parser())]
    pub(crate) path: PathBuf,

    /// Directory to mount it on
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Make the store if there is none; needs --size for a file that does not exist
    #[arg(long)]
    pub(crate) create: bool,

    /// Make this file system if the volume is blank
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) mkfs: Option<FileSystem>,

    /// Mount options, as for `mount -o`
    #[arg(long, short, value_name = "LIST")]
    pub(crate) options: Option<String>,

    #[command(flatten)]
    pub(crate) opening: OpeningOptions,

    /// Print the entry that `list --json` would show
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten, next_help_heading = "Options for a store that does not exist yet")]
    pub(crate) shape: Shape,
}

impl Mount {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let (mut path, opening) = self.opening.located(&self.path)?;
        if let Some(entry) = state.attached_at(&path).filter(|_| !path.exists()) {
            path = entry.store;
        }
        Mount { path, opening, ..self.clone() }.run_located(state)
    }

    fn run_located(&self, state: &StateDirectory) -> Result<(), CliError> {
        let directory = self.mount_point(state)?;
        if !rustix::process::geteuid().is_root() {
            let help = "run it with sudo, or use `coulter serve`, which needs no root";
            return Err(CliError::needs_root("mounting", help));
        }
        let is_to_be_made = self.is_to_be_made()?;
        let is_new = !self.path.exists();
        let mut made = None;
        if is_to_be_made {
            if self.opening.read_only {
                return Err(MountError::ReadOnlyNewStore { store: self.path.clone() }.into());
            }
            // Refused later, it would have been formatted.
            if let Err(replaced @ Error::State(StateError::StoreReplaced { .. })) =
                state.find(&self.path.to_string_lossy())
            {
                return Err(replaced.into());
            }
            let target = Target::prepare(&self.path, &self.shape, false)?;
            made = Some(format_store::format(target, &self.shape, self.opening.map_memory)?);
        }
        let mounted = self.mount_attached(state, &directory, made.is_some());
        match (&mounted, made) {
            (Ok(_), Some(made)) => note_made(&made),
            (Err(_), Some(made)) if is_new => remove_made(state, &made.store),
            _ => {}
        }
        let entry = match mounted? {
            Mounted::Device(entry) => entry,
            Mounted::Files => return Ok(()),
        };
        if !self.json {
            return Ok(());
        }
        terminal::print_json(&entry).inspect_err(|_| {
            let directory = terminal::word(&directory);
            terminal::note(&format!(
                "it is mounted all the same; `coulter umount {directory}` takes it away"
            ));
        })?;
        Ok(())
    }

    /// Attaches the store if it is not, and mounts its file system. What was done is undone when it fails.
    fn mount_attached(
        &self,
        state: &StateDirectory,
        directory: &Path,
        is_made: bool,
    ) -> Result<Mounted, CliError> {
        let (mut entry, mut attached_here) = self.attached(state)?;
        if !is_made {
            self.note_shape_passed_over(&entry);
        }
        let mut mounted = self.mount(state, &entry, directory);
        // Somebody may have begun to detach it since it was asked.
        if mounted.is_err() && !attached_here && is_ending(state, &entry) {
            (entry, attached_here) = self.attached(state)?;
            mounted = self.mount(state, &entry, directory);
        }
        if let (Err(_), true) = (&mounted, attached_here)
            && let Err(error) = detach(state, &entry, false)
        {
            log::warn!(error:%; "cannot take the attachment back");
        }
        match mounted {
            Ok(()) => Ok(Mounted::Device(Box::new(entry))),
            Err(CliError::Door(DoorError::HoldsFiles { .. })) if attached_here => {
                self.as_files(directory)?.run(state)?;
                Ok(Mounted::Files)
            }
            Err(error) => Err(error),
        }
    }

    /// The same for a file system of Coulter's own, which takes no block device.
    fn as_files(&self, directory: &Path) -> Result<FsMount, CliError> {
        let opening = &self.opening;
        let unfit = [
            (opening.copy.replicate.is_some(), "--replicate"),
            (opening.acknowledge != Acknowledge::Written, "--acknowledge"),
            (opening.read_cache.is_some(), "--read-cache"),
            (opening.trim != Trim::Auto, "--trim"),
        ];
        if let Some((_, option)) = unfit.into_iter().find(|(is_given, _)| *is_given) {
            return Err(DoorError::FilesTakeNo { store: self.path.clone(), option }.into());
        }
        if let Some(kind) = self.mkfs {
            let kind = kind.name();
            terminal::note(&format!("it holds a Coulter file system, so without --mkfs {kind}"));
        }
        let read_only = opening.read_only.then_some("ro");
        let options: Vec<&str> = read_only.into_iter().chain(self.options.as_deref()).collect();
        Ok(FsMount::plain(&self.path, directory, options.join(","), opening, self.json))
    }

    /// Whether a store is to be made: none is there, or a file that holds nothing, as it is left when this is
    /// ended between making a file and formatting it. What looks blank is looked at once more, all of it and
    /// locked, before it is formatted.
    ///
    /// # Errors
    /// [`MountError::NothingToMount`] when it would have to be, and nobody has asked for it.
    fn is_to_be_made(&self) -> Result<bool, CliError> {
        let failed = |source| CliError::io("look at", &self.path, source);
        let is_missing = !self.path.exists();
        if is_missing && !self.create {
            let missing = store::missing(&self.path);
            return match missing {
                OpenError::StoreMissing { path, .. } => {
                    Err(MountError::NothingToMount { store: path }.into())
                }
                other => Err(Error::from(other).into()),
            };
        }
        Ok(is_missing || self.create && store::is_blank(&self.path).map_err(failed)?)
    }

    /// Whether nobody is to write to the file system.
    fn is_to_be_read_only(&self) -> bool {
        let mut options = self.options.iter().flat_map(|options| options.split(','));
        self.opening.read_only || options.any(|option| option == "ro")
    }

    /// The directory, absolute, if something may be mounted there.
    fn mount_point(&self, state: &StateDirectory) -> Result<PathBuf, CliError> {
        let directory = self.directory.canonicalize().map_err(|_| no_directory(&self.directory))?;
        if !directory.is_dir() {
            return Err(not_a_directory(&self.directory, &self.path).into());
        }
        let failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        if let Some(mount) = mounts::mount_at(&directory).map_err(failed)? {
            return Err(taken(state, directory, mount).into());
        }
        Ok(directory)
    }

    /// The store's entry, and whether it had to be attached for this.
    fn attached(&self, state: &StateDirectory) -> Result<(Entry, bool), CliError> {
        let text = self.path.to_string_lossy();
        match state.find(&text).and_then(|entry| Ok(self.adopted(state, entry)?)) {
            Ok(entry) => return Ok((entry, false)),
            // The next daemon waits for one that is ending.
            Err(error) if control::is_about_ending(&error) => {}
            Err(error) => return Err(error.into()),
        }
        let options =
            Options { via: ViaChoice::Auto, recover: false, opening: self.opening.clone() };
        let (options, _) = options.resolved()?;
        let entry = launch::launch(state, options.words(&self.path))?;
        note_cautions(state, &entry, options.opening.copy.replicate.is_some());
        options.opening.note_left_copy(&self.path, &entry.name);
        if !self.opening.read_only {
            room::note_if_short(&self.path);
        }
        Ok((entry, true))
    }

    /// The entry of what is attached already, if it can be used as it was asked for.
    fn adopted(&self, state: &StateDirectory, entry: Entry) -> Result<Entry, CliError> {
        attach_point::check_device(state, &entry)?;
        if self.opening.read_only && !entry.read_only {
            // To mount is to write, if only what a journal holds.
            return Err(MountError::AttachedForWriting { name: entry.name }.into());
        }
        if entry.read_only && !self.is_to_be_read_only() {
            // The system would mount it all the same, and only programs would find out.
            let (name, failure) = (entry.name, entry.failure);
            return Err(MountError::AttachedForReading { name, failure }.into());
        }
        self.tune(state, &entry)?;
        let passed_over = self.passed_over(&entry);
        if !passed_over.is_empty() {
            let options = passed_over.join(" and ");
            terminal::note(&format!("attached already, so without {options}"));
        }
        Ok(entry)
    }

    /// Options of attaching that a volume does without which is attached already.
    fn passed_over(&self, entry: &Entry) -> Vec<&'static str> {
        let opening = &self.opening;
        let is_buffered = opening.acknowledge == Acknowledge::Buffered;
        let options = [
            (opening.name.as_ref().is_some_and(|name| *name != entry.name), "--name"),
            (opening.map_memory.is_some(), "--map-memory"),
            (opening.read_cache.is_some(), "--read-cache"),
            (opening.trim != Trim::Auto, "--trim"),
            (is_buffered && entry.acknowledge == Acknowledge::Written, "--acknowledge buffered"),
            (opening.metrics.is_some() && opening.metrics != entry.metrics, "--metrics"),
        ];
        options.into_iter().filter_map(|(is_so, option)| is_so.then_some(option)).collect()
    }

    /// Says which options for a store that does not exist yet do nothing to the one that does. Sizes
    /// that it has anyway are as they were asked for.
    fn note_shape_passed_over(&self, entry: &Entry) {
        let shape = &self.shape;
        let has_size = |size: &Size| fs::metadata(&self.path).is_ok_and(|it| it.len() == size.0);
        let has_volume_size = |size: &Size| size.0 == entry.volume_size_bytes;
        let options = [
            (shape.size.is_some_and(|size| !has_volume_size(&size)), "--size"),
            (shape.store_size.is_some_and(|size| !has_size(&size)), "--store-size"),
            (shape.segment_size.is_some(), "--segment-size"),
            (shape.spare.is_some(), "--over-provisioning"),
            (!shape.label.is_empty(), "--label"),
            (shape.sparse, "--sparse"),
            (shape.capacity.is_some(), "--capacity"),
            (shape.touched_limit.is_some(), "--touched-limit"),
        ];
        let options: Vec<_> =
            options.into_iter().filter_map(|(is_so, option)| is_so.then_some(option)).collect();
        if !options.is_empty() {
            terminal::note(&format!(
                "there is a store already, so without {}",
                options.join(" and ")
            ));
        }
    }

    /// Changes the settings of a volume that is open already.
    fn tune(&self, state: &StateDirectory, entry: &Entry) -> Result<(), CliError> {
        if self.opening.tune.is_empty() {
            return Ok(());
        }
        let request = Request::Tune { settings: self.opening.tune.clone() };
        control::ask(state, entry, &request)?;
        Ok(())
    }

    fn mount(
        &self,
        state: &StateDirectory,
        entry: &Entry,
        directory: &Path,
    ) -> Result<(), CliError> {
        let device = block_device(entry)?;
        let failed = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
        if let Some(mount) = mounts::mounts_of(&device).map_err(failed)?.first() {
            return Err(DaemonError::Busy {
                name: entry.name.clone(),
                device: device.display().to_string(),
                holders: vec![format!("mounted at {}", mount.mount_point.display())],
                remedy: Some(attach_point::unmount_command(mount, &device)),
            }
            .into());
        }
        let kind = match self.kind_on(&device)? {
            Some(kind) => {
                if let Some(asked) = self.mkfs.map(FileSystem::name).filter(|asked| *asked != kind)
                {
                    terminal::note(&format!("it holds {kind} already, so without --mkfs {asked}"));
                }
                kind
            }
            None => self.make_file_system(state, entry, &device)?,
        };
        let read_only = self.opening.read_only.then_some("ro");
        let options: Vec<&str> = read_only.into_iter().chain(self.options.as_deref()).collect();
        let mounted = file_system::mount(kind, &device, directory, &options.join(","));
        mounted.map_err(|error| match without_journal(kind) {
            Some(option) if self.opening.read_only => {
                let (store, cause) = (self.path.clone(), Box::new(error.report()));
                MountError::ReadOnlyRefused { store, cause, option }.into()
            }
            _ => error,
        })
    }

    /// The kind of the file system on the volume, if it holds one.
    fn kind_on(&self, device: &Path) -> Result<Option<&'static str>, CliError> {
        let found = file_system::found_on(device)?;
        let Some(first) = found.first() else { return Ok(None) };
        match first.what {
            signatures::COULTER_FILES => {
                return Err(DoorError::HoldsFiles { store: self.path.clone() }.into());
            }
            signatures::COULTER_OVERLAY => {
                return Err(DoorError::OverlayStore { store: self.path.clone() }.into());
            }
            _ => {}
        }
        match found.iter().find_map(|found| found.mount_type) {
            Some(kind) => Ok(Some(kind)),
            None => Err(MountError::VolumeHoldsData {
                store: self.path.clone(),
                device: device.display().to_string(),
                what: first.what,
            }
            .into()),
        }
    }

    /// Makes a file system where there is nothing at all yet. What carries no known signature may be
    /// somebody's data all the same: a database, or what is encrypted without a header.
    fn make_file_system(
        &self,
        state: &StateDirectory,
        entry: &Entry,
        device: &Path,
    ) -> Result<&'static str, CliError> {
        if let Some(offset) = first_data(state, entry, device)? {
            let (store, device) = (self.path.clone(), device.display().to_string());
            return Err(MountError::VolumeHoldsSomething { store, device, offset }.into());
        }
        let Some(kind) = self.mkfs else {
            let (store, device) = (self.path.clone(), device.display().to_string());
            return Err(MountError::NoFileSystem { store, device }.into());
        };
        if entry.read_only || self.opening.read_only {
            return Err(MountError::ReadOnlyVolume { store: self.path.clone() }.into());
        }
        kind.make(device, &[])?;
        Ok(kind.name())
    }
}

/// How it is mounted now.
enum Mounted {
    /// From the block device of this volume.
    Device(Box<Entry>),
    /// As a file system of Coulter's own, which is all said.
    Files,
}

/// Says what was made, so that a mistyped name is noticed.
fn note_made(made: &Made) {
    terminal::note(&format!(
        "made {}: a store of {} for a volume of {}",
        terminal::path(&made.store),
        Size(made.store_size_bytes),
        Size(made.volume_size_bytes)
    ));
}

/// Takes away the file of a store that nobody came to use.
fn remove_made(state: &StateDirectory, store: &Path) {
    let attached = state.attached().unwrap_or_default();
    if attached.iter().any(|entry| entry.is_of(store) == Some(true)) {
        return terminal::note(&format!("the new store {} stays attached", terminal::path(store)));
    }
    if let Err(error) = fs::remove_file(store) {
        let store = terminal::path(store);
        terminal::note(&format!("the new store {store} is left behind: {error}"));
    }
}

/// Whether the daemon of `entry` has ended, or is about to.
fn is_ending(state: &StateDirectory, entry: &Entry) -> bool {
    let asked = control::ask(state, entry, &Request::Status);
    asked.is_err_and(|error| control::is_about_ending(&error))
}

/// The option by which a file system of this kind is mounted from a device that is only read, though its
/// journal was not written out.
fn without_journal(kind: &str) -> Option<&'static str> {
    match kind {
        "ext4" => Some("noload"),
        "xfs" => Some("norecovery"),
        "btrfs" => Some("rescue=nologreplay"),
        _ => None,
    }
}

/// Where the data of the volume at `device` begins, if it holds any.
fn first_data(
    state: &StateDirectory,
    entry: &Entry,
    device: &Path,
) -> Result<Option<u64>, CliError> {
    // What was written to the device may not have got to the volume yet.
    let failed = |source| CliError::io("write out", device, source);
    File::open(device).and_then(|device| device.sync_all()).map_err(failed)?;
    match control::ask(state, entry, &Request::FirstData)? {
        Reply::FirstData { byte } => Ok(byte),
        _ => Err(DaemonError::silent(entry).into()),
    }
}

/// The entry's block device.
///
/// # Errors
/// [`MountError::NotABlockDevice`] for an NBD socket.
fn block_device(entry: &Entry) -> Result<PathBuf, CliError> {
    match &entry.device {
        Some(device) if points::gives_device(entry) => Ok(PathBuf::from(device)),
        device => Err(MountError::NotABlockDevice {
            name: entry.name.clone(),
            device: device.clone().unwrap_or_default(),
        }
        .into()),
    }
}
