//! `coulter export`: what a volume holds, as an image that needs no Coulter.

use crate::contents;
use crate::error::CliError;
use crate::image::Image;
use crate::interrupt::Interrupt;
use crate::store;
use crate::terminal;
use clap::Args;
use coulter::{OpenOptions, Volume};
use coulter_daemon::StateDirectory;
use coulter_terminal::Size;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Copy the data of a volume to an image or a disk; the store is not changed.
///
/// IMAGE becomes a copy of the volume, byte for byte. Mount it with loop, write it to a disk, or
/// import it into another store with `coulter create --from`. Blocks that were never written are
/// holes in a file, and zeros on a disk. The volume must not be attached. For a damaged store use
/// `coulter salvage`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter export disk.img volume.img       an image as large as the volume, sparse
  coulter export disk.img /dev/sdc --force onto a disk, whose content is lost")]
pub(crate) struct Export {
    /// Store to read, or the name of a volume
    #[arg(value_name = "STORE|NAME")]
    path: PathBuf,

    /// File to make, or disk to overwrite
    image: PathBuf,

    /// Overwrite IMAGE even if it holds data
    #[arg(long)]
    force: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints; documented in `docs/json.md`.
#[derive(Serialize)]
struct Exported<'a> {
    store: &'a Path,
    image: &'a Path,
    volume_size_bytes: u64,
    mapped_bytes: u64,
}

impl Export {
    pub(crate) fn run(&self, state: Option<&StateDirectory>) -> Result<(), CliError> {
        // Before the volume's thread is started.
        let interrupt = Interrupt::take_over()?;
        let path = store::find(&self.path, state)?;
        let device = store::open_device(&path, true)
            .map_err(|error| store::naming_volume(error, &path, state))?;
        store::refuse_attached(&path, state)?;
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let volume = Volume::open(device, options)
            .map_err(|error| store::refused(path.clone(), &error.kind))?;
        let size = volume.size();
        let mut image = Image::make(&self.image, &path, size, self.force, interrupt)?;
        let mapped = contents::take_out(&volume, &path, &mut image)?;
        image.keep()?;
        let (store, image) = (&*path, &*self.image);
        let exported = Exported { store, image, volume_size_bytes: size, mapped_bytes: mapped };
        self.tell(&exported).inspect_err(|_| terminal::note("the image was made all the same"))
    }

    fn tell(&self, exported: &Exported<'_>) -> Result<(), CliError> {
        if self.json {
            return terminal::print_json(exported);
        }
        terminal::print(&format!(
            "{}: {} of a volume of {}",
            terminal::path(&self.image),
            Size(exported.mapped_bytes),
            Size(exported.volume_size_bytes)
        ))
    }
}
