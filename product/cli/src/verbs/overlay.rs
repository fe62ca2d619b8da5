//! `coulter overlay`: remapping above the file system that a directory is on.

mod detaching;
mod guarded;
mod hidden;
mod marks;
mod orphans;
mod place;
mod serving;
mod settling;
mod telling;

use crate::answering;
use crate::error::{CliError, Error};
use crate::format_store::{self, Target};
use crate::new_store::Shape;
use crate::store;
use crate::terminal;
use crate::verbs::fs::{PREDECESSOR_PATIENCE, PREDECESSOR_PAUSE, told, told_with_help};
use crate::verbs::umount::mounted_yet;
use clap::{Args, Subcommand, ValueEnum};
use coulter::{LocalVolume, OpenOptions};
use coulter_daemon::points;
use coulter_daemon::reclaim;
use coulter_daemon::setting::{self, Setting};
use coulter_daemon::state::{Entry, StateDirectory, name_of_store};
use coulter_format::BLOCK_SIZE;
use coulter_fuse::files::overlay;
use coulter_overlay::{Directory, Lower, Remap};
use coulter_system::dead_mounts;
use coulter_system::mounts::{self, Mount};
use coulter_terminal::Size;
use detaching::Detach;
use hidden::{Hidden, Noted};
use orphans::{AdoptOrphan, ListOrphans};
pub(crate) use settling::{before_unmount, settle_all, settle_or_tell, tell_of_store};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;
use telling::{Check, Status};

/// How many times what can be stored a store has addresses: files are remapped in windows of 2 MiB, of which
/// few blocks may be there.
const ADDRESSES_PER_BYTE: u64 = 16;
/// Links that a path may lead through.
const LINKS_MAX: usize = 40;

/// Have random overwrites of a directory's files written in sequence.
///
/// The directory keeps its names, attributes and data. Blocks that are overwritten at random go to a store, a
/// file in the directory or elsewhere, and come home in order with `settle`. After `detach` the directory is
/// as if nothing had ever been over it. Needs root.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  coulter overlay /srv/data                      remap what is overwritten at random in it
  coulter overlay /srv/data --store-size 16G --settle idle
  coulter overlay status /srv/data               how much is in the store
  coulter overlay detach /srv/data               bring all of it home, and go"
)]
pub(crate) struct Overlay {
    #[command(subcommand)]
    verb: Option<OverlayVerb>,

    #[command(flatten)]
    attach: Option<Attach>,
}

#[derive(Debug, Subcommand)]
enum OverlayVerb {
    Status(Status),
    Settle(Settle),
    Check(Check),
    ListOrphans(ListOrphans),
    AdoptOrphan(AdoptOrphan),
    Remap(SetRemap),
    Detach(Detach),
}

/// See above.
#[derive(Debug, Args)]
struct Attach {
    /// Directory to mount it over
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Store, made if it does not exist [default: a hidden file in DIR]
    #[arg(long, value_name = "PATH")]
    store: Option<PathBuf>,

    /// Size of a new store [default: an eighth of the free space, 8G at most]
    #[arg(long, value_name = "SIZE")]
    store_size: Option<Size>,

    /// What to send to the store: random overwrites, all writes, or no further write
    #[arg(long, value_enum, default_value = "random", value_name = "WHAT")]
    remap: RemapChoice,

    /// When to bring blocks home: `idle`, after ten seconds without a request; `unmount`, when the directory is
    /// unmounted; `never`, only when a command asks for it or the store is full
    #[arg(long, value_enum, default_value = "unmount", value_name = "WHEN")]
    settle: SettleChoice,

    /// How the kernel's page cache writes: through, at once; back, later
    #[arg(long, value_enum, default_value = "through", value_name = "HOW")]
    cache: CacheChoice,

    /// Name for `status` [default: made from the directory's]
    #[arg(long)]
    name: Option<String>,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RemapChoice {
    Random,
    All,
    Off,
}

impl RemapChoice {
    fn remap(self) -> Remap {
        match self {
            RemapChoice::Random => Remap::Random,
            RemapChoice::All => Remap::All,
            RemapChoice::Off => Remap::Off,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SettleChoice {
    Idle,
    Unmount,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheChoice {
    Through,
    Back,
}

/// Bring home what is in the store; the directory stays in use meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay settle /srv/data")]
struct Settle {
    /// Directory that it is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Change what goes to the store from now on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter overlay remap /srv/data off")]
struct SetRemap {
    /// Directory that it is over
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Overwrites at random, every write, or nothing more
    #[arg(value_enum, value_name = "WHAT")]
    remap: RemapChoice,
}

impl Overlay {
    pub(crate) fn run(
        &self,
        state: impl Fn() -> Result<StateDirectory, Error>,
    ) -> Result<(), CliError> {
        if !rustix::process::geteuid().is_root() {
            return Err(CliError::needs_root("an overlay", "run it with sudo"));
        }
        answering::check(&state()?, self.directory())?;
        match (&self.verb, &self.attach) {
            (Some(OverlayVerb::Status(status)), _) => status.run(),
            (Some(OverlayVerb::Settle(settle)), _) => {
                let directory = served(&settle.directory)?;
                let _left = mounted_yet(&directory)?;
                settle_or_tell(&directory)
            }
            (Some(OverlayVerb::Check(check)), _) => check.run(),
            (Some(OverlayVerb::ListOrphans(list)), _) => list.run(),
            (Some(OverlayVerb::AdoptOrphan(adopt)), _) => adopt.run(),
            (Some(OverlayVerb::Remap(remap)), _) => remap.run(),
            (Some(OverlayVerb::Detach(detach)), _) => detach.run(&state()?),
            (None, Some(attach)) => attach.run(&state()?),
            (None, None) => unreachable!("a directory or a verb is required"),
        }
    }

    /// The directory that one is to be put over.
    pub(crate) fn place(&self) -> Option<&Path> {
        self.attach.as_ref().map(|attach| &*attach.directory)
    }

    /// The directory that it is about.
    fn directory(&self) -> &Path {
        match (&self.verb, &self.attach) {
            (Some(OverlayVerb::Status(it)), _) => it.directory(),
            (Some(OverlayVerb::Settle(it)), _) => &it.directory,
            (Some(OverlayVerb::Check(it)), _) => it.directory(),
            (Some(OverlayVerb::ListOrphans(it)), _) => it.directory(),
            (Some(OverlayVerb::AdoptOrphan(it)), _) => it.directory(),
            (Some(OverlayVerb::Remap(it)), _) => &it.directory,
            (Some(OverlayVerb::Detach(it)), _) => it.directory(),
            (None, Some(attach)) => &attach.directory,
            (None, None) => unreachable!("a directory or a verb is required"),
        }
    }

    /// Whether it serves in the foreground, and so logs what it does.
    pub(crate) fn is_in_foreground(&self) -> bool {
        self.attach.as_ref().is_some_and(|attach| attach.foreground)
    }
}

impl Attach {
    /// Over a directory that has a store, and nothing else said.
    fn again(directory: &Path) -> Attach {
        Attach {
            directory: directory.to_owned(),
            store: None,
            store_size: None,
            remap: RemapChoice::Off,
            settle: SettleChoice::Unmount,
            cache: CacheChoice::Through,
            name: None,
            tune: Vec::new(),
            metrics: None,
            foreground: false,
            json: false,
        }
    }

    fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let (directory, dead) = self.free_directory(state)?;
        self.put_over(state, &directory).inspect_err(|_| {
            if let Some(dead) = dead.filter(|_| mount_at(&directory).is_ok_and(|it| it.is_none())) {
                // Programs that used the directory when its daemon was killed must not go on in
                // what lies below. The first error is the one to tell.
                let _ = dead_mounts::put_back(&directory, &dead.source);
            }
        })
    }

    fn put_over(&self, state: &StateDirectory, directory: &Path) -> Result<(), CliError> {
        if directory == Path::new("/") {
            let help = "put it over a directory in it, such as /srv/data".to_owned();
            return Err(unfit(directory, "it is the root of everything".to_owned(), help));
        }
        if let Some(below) = mounts::first_below(directory).ok().flatten() {
            let why =
                format!("{} is mounted in it; an overlay is over one file system", below.display());
            let below = terminal::word(&below);
            let help = format!("run `umount {below}`, or take another directory");
            return Err(unfit(directory, why, help));
        }
        let lower = Directory::open(directory).map_err(|error| {
            let help = "take a directory on ext4, XFS or Btrfs that root may write to".to_owned();
            unfit(directory, error.to_string(), help)
        })?;
        let name = self.name_for(directory, state);
        state.check_name(&name)?;
        let (store, is_new) = self.find_store(directory, &lower)?;
        drop(lower);
        self.serve(state, directory, &store, name).inspect_err(|_| {
            if is_new && is_unused(state, directory) {
                // The first error is the one to tell.
                let _ = Hidden::of(directory).remove(&store);
            }
        })
    }

    /// The name that was asked for, or one that is made of the directory's.
    fn name_for(&self, directory: &Path, state: &StateDirectory) -> String {
        let own = || directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = self.name.clone().unwrap_or_else(own);
        match state.check_name(&name) {
            Err(_) if self.name.is_none() => name_of_store(directory),
            _ => name,
        }
    }

    /// The store of the directory, which is made if there is none; whether it was.
    fn find_store(&self, directory: &Path, lower: &Directory) -> Result<(PathBuf, bool), CliError> {
        let failed = |source| CliError::io("lock", directory, source);
        let file = File::open(directory).map_err(failed)?;
        // Two commands at once would each take the other's store for one that was never used.
        file.lock().map_err(failed)?;
        check_free(directory)?;
        let hidden = Hidden::of(directory);
        match hidden.noted()? {
            Some(noted) => {
                if self.store_size.is_some() {
                    terminal::note("its store is there already, so without --store-size");
                }
                Ok((self.agreed(directory, noted)?, false))
            }
            None => Ok((self.make_store(directory, &hidden, lower)?, true)),
        }
    }

    /// The directory, absolute, with nothing of ours mounted on it. What a killed daemon left
    /// goes, if there is a store to serve in its place; it is given back.
    fn free_directory(&self, state: &StateDirectory) -> Result<(PathBuf, Option<Mount>), CliError> {
        let failed = |source| CliError::io("find", &self.directory, source);
        let directory = real_path(&self.directory).map_err(failed)?;
        let dead = mount_at(&directory)?.filter(is_dead_mount);
        if dead.is_some()
            && let Some(noted) = Hidden::of(&directory).noted_below()?
        {
            self.agreed(&directory, noted)?;
        }
        await_predecessor(state, &directory)?;
        let directory = self.directory.canonicalize().map_err(failed)?;
        if !directory.is_dir() {
            let help = "name a directory on ext4, XFS or Btrfs".to_owned();
            return Err(unfit(&directory, "it is not a directory".to_owned(), help));
        }
        check_free(&directory)?;
        Ok((directory, dead))
    }

    /// The store that the directory says it has, if that is the one that was asked for, and there.
    fn agreed(&self, directory: &Path, noted: Noted) -> Result<PathBuf, CliError> {
        let Noted { path: store, is_there } = noted;
        let refuse = |why: String| Err(told("cannot put an overlay over", directory, why));
        let asked = self.store.as_ref().and_then(|asked| std::path::absolute(asked).ok());
        if let Some(asked) = asked.filter(|asked| *asked != store) {
            return refuse(format!(
                "blocks of its files are in {}, not in {}; bring them home first",
                store.display(),
                asked.display()
            ));
        }
        if !is_there {
            let why = format!(
                "blocks of its files are in {}, which is not there; without it they are older than they \
                 should be",
                store.display()
            );
            let unmount = match mount_at(directory)?.is_some_and(|mount| is_ours(&mount)) {
                true => format!("run `coulter umount {}` and ", terminal::word(directory)),
                false => String::new(),
            };
            let help = format!(
                "bring the store back; if it is lost, {unmount}remove {} to use the files as they are",
                terminal::word(&directory.join(coulter_overlay::HIDDEN))
            );
            return Err(unfit(directory, why, help));
        }
        Ok(store)
    }

    /// Makes the store and the note of it. If that fails nothing of them stays in the directory.
    fn make_store(
        &self,
        directory: &Path,
        hidden: &Hidden,
        lower: &Directory,
    ) -> Result<PathBuf, CliError> {
        hidden.make()?;
        self.fill_store(directory, hidden, lower).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = hidden.remove(&hidden.own_store());
        })
    }

    fn fill_store(
        &self,
        directory: &Path,
        hidden: &Hidden,
        lower: &Directory,
    ) -> Result<PathBuf, CliError> {
        let path = match &self.store {
            Some(path) => std::path::absolute(path).map_err(|e| CliError::io("find", path, e))?,
            None => hidden.own_store(),
        };
        if self.store.is_some() && place::lies_in(&path, directory) {
            let why = format!("its store {} lies in it, among the files", path.display());
            let help = "name another place with --store, or none: then it is hidden".to_owned();
            return Err(unfit(directory, why, help));
        }
        if self.store.is_none() {
            // Without the note that comes last it was never used.
            hidden.remove_store()?;
        }
        self.store_size.map_or(Ok(()), |size| place::check_size(directory, size.0))?;
        let is_disk = std::fs::metadata(&path).is_ok_and(|found| !found.is_file());
        let size = match self.store_size {
            Some(size) => Some(size.0),
            None if is_disk => None,
            None => Some(place::default_size(directory)?),
        };
        let space = size.map_or_else(|| place::disk_size(&path), Ok)? * ADDRESSES_PER_BYTE;
        let shape = Shape {
            size: None,
            store_size: size.map(Size),
            segment_size: None,
            spare: None,
            page_size: None,
            reclaim: None,
            label: String::new(),
            sparse: false,
            capacity: None,
            touched_limit: None,
            address_space: Some(space.next_multiple_of(1 << 30)),
        };
        // What an earlier command had begun to make, and was killed at.
        let goes_on = hidden.was_begun(&path)? && !holds_blocks(&path);
        let target = Target::prepare(&path, &shape, goes_on)?;
        hidden.begin(&path)?;
        format_store::format(target, &shape, None)?;
        let identity = write_superblock(&path, lower)?;
        hidden.note(&path, identity)?;
        Ok(path)
    }
}

/// Whether no daemon has, or may have, an overlay over the directory.
fn is_unused(state: &StateDirectory, directory: &Path) -> bool {
    let is_mounted = mount_at(directory).is_ok_and(|mount| mount.is_none_or(|it| !is_ours(&it)));
    let entries = state.entries().unwrap_or_default();
    is_mounted && !entries.iter().any(|entry| points::is_at(entry, directory))
}

fn is_ours(mount: &Mount) -> bool {
    mount.kind == "fuse.coulter"
}

/// Writes what makes the new store one of this directory; gives back its identity.
fn write_superblock(path: &Path, lower: &Directory) -> Result<[u8; 16], CliError> {
    let failed = |why: String| told("cannot make an overlay's store of", path, why);
    let volume = LocalVolume::open(store::open_locked_device(path)?, OpenOptions::default())
        .map_err(|error| failed(error.to_string()))?;
    let mut identity = [0; 16];
    getrandom::fill(&mut identity).map_err(|error| failed(error.to_string()))?;
    let blocks = volume.size() / BLOCK_SIZE as u64;
    let capacity = volume.geometry().capacity_bytes / BLOCK_SIZE as u64;
    let superblock = coulter_overlay::create(identity, lower.root(), blocks, capacity);
    let mut block = [0; BLOCK_SIZE];
    superblock.encode(&mut block);
    volume.write_at(0, &block).map_err(|error| failed(error.to_string()))?;
    volume.flush().map_err(|error| failed(error.to_string()))?;
    volume.close().map_err(|error| failed(error.to_string()))?;
    Ok(identity)
}

/// Whether there is a store that can be opened and was written to.
fn holds_blocks(path: &Path) -> bool {
    let Ok(device) = store::open_locked_device(path) else { return true };
    let Ok(volume) = LocalVolume::open(device, OpenOptions::default()) else { return false };
    let mut block = [0; BLOCK_SIZE];
    volume.read_at(0, &mut block).is_err() || block != [0; BLOCK_SIZE]
}

/// The topmost mount on the directory.
fn mount_at(directory: &Path) -> Result<Option<Mount>, CliError> {
    let read = |source| CliError::io("read", Path::new("/proc/self/mountinfo"), source);
    mounts::mount_at(directory).map_err(read)
}

/// Waits for the daemon of an overlay over the directory that was unmounted or is being killed: it still has
/// the store. What a killed one left goes.
fn await_predecessor(state: &StateDirectory, directory: &Path) -> Result<(), CliError> {
    let is_it = |entry: &Entry| points::is_at(entry, directory);
    let limit = Instant::now() + PREDECESSOR_PATIENCE;
    while let Some(entry) = state.entries()?.into_iter().find(is_it) {
        if !state.is_alive(&entry) {
            reclaim::reclaim(state, &state.lock()?, &entry)?;
            break;
        }
        let is_over = mount_at(directory)?.is_none()
            || overlay::report(directory).is_err_and(|error| dead_mounts::is_dead(&error));
        if !is_over || Instant::now() >= limit {
            break;
        }
        std::thread::sleep(PREDECESSOR_PAUSE);
    }
    take_dead_away(state, directory)
}

/// Takes away the mount of a daemon that was killed before it had an entry, if it is that of the directory's own
/// store, whose place the mount itself tells.
fn take_dead_away(state: &StateDirectory, directory: &Path) -> Result<(), CliError> {
    let Some(mount) = mount_at(directory)?.filter(is_dead_mount) else { return Ok(()) };
    let has_daemon = state.entries()?.iter().any(|entry| points::is_at(entry, directory));
    let is_own = |noted: Noted| noted.path == mount.source;
    if has_daemon || !Hidden::of(directory).noted_below()?.is_some_and(is_own) {
        return Ok(());
    }
    dead_mounts::take_away(directory).map_err(|e| CliError::io("unmount", directory, e))
}

/// That no mount of ours is on the directory.
fn check_free(directory: &Path) -> Result<(), CliError> {
    match mount_at(directory)? {
        Some(mount) if is_ours(&mount) => {
            let (why, help) = place::why_taken(directory);
            Err(unfit(directory, why.to_owned(), help))
        }
        _ => Ok(()),
    }
}

fn unfit(directory: &Path, why: String, help: String) -> CliError {
    told_with_help("cannot put an overlay over", directory, why, help)
}

/// The directory, absolute and without links, whether what is mounted on it answers or not.
fn real_path(directory: &Path) -> io::Result<PathBuf> {
    let dead = match directory.canonicalize() {
        Err(error) if dead_mounts::is_dead(&error) => error,
        found => return found,
    };
    let mut path = std::path::absolute(directory)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        let parent = parent.canonicalize()?;
        match std::fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(parent.join(name)),
        }
    }
    Err(dead)
}

/// The directory, if an overlay is over it that answers.
fn served(directory: &Path) -> Result<PathBuf, CliError> {
    let path = real_path(directory).map_err(|e| CliError::io("find", directory, e))?;
    let (why, help) = match overlay::report(&path) {
        Ok(_) => return Ok(path),
        Err(error) if dead_mounts::is_dead(&error) => {
            ("its daemon was killed", "goes on where it was")
        }
        Err(_) if mount_at(&path)?.is_some_and(|mount| is_ours(&mount)) => {
            let why =
                "no overlay is over it, but a Coulter file system is mounted there".to_owned();
            let help = format!("`coulter status {}` shows what that does", terminal::word(&path));
            return Err(told_with_help("cannot ask", &path, why, help));
        }
        Err(_) if !path.is_dir() => {
            let help = "name the directory that the overlay is over".to_owned();
            let why = "it is not a directory".to_owned();
            return Err(told_with_help("cannot ask", &path, why, help));
        }
        Err(_) => ("no overlay is over it", "puts one over it"),
    };
    let help = format!("`coulter overlay {}` {help}", terminal::word(&path));
    Err(told_with_help("cannot ask", &path, why.to_owned(), help))
}

fn report(directory: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&overlay::report(directory).ok()?).ok()
}

/// Whether it is a mount of ours whose daemon was killed.
pub(super) fn is_dead_mount(mount: &Mount) -> bool {
    is_ours(mount)
        && overlay::report(&mount.mount_point).is_err_and(|error| dead_mounts::is_dead(&error))
}

impl SetRemap {
    fn run(&self) -> Result<(), CliError> {
        let directory = served(&self.directory)?;
        overlay::set_remap(&directory, self.remap.remap())
            .map_err(|source| CliError::io("change the overlay over", &directory, source))
    }
}
