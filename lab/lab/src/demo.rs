//! The demonstration behind `coulter-lab demo`.
//!
//! `on_loop` is its way as root, `over_nbd` the one without; `plan` is what they share. `held_back`
//! compares once more, with `bare` as the other side. `fio`, `crash`, `blocks` and `content` write
//! and verify; `in_memory` tells whether there is a disk at all; `scratch` and `abandoned` see
//! to it that nothing stays behind; `lost_host` is the part with a copy elsewhere; `figures` and `picture` are what comes out.

mod abandoned;
mod blocks;
mod content;
mod crash;
mod figures;
mod fio;
mod held_back;
mod in_memory;
mod lost_host;
mod on_loop;
mod over_nbd;
mod picture;
mod plan;
mod scratch;

pub(crate) use figures::Figures;
pub(crate) use lost_host::LostHost;

use crate::error::LabError;
use crate::terminal;
use coulter_cli::interrupt::Interrupt;
use coulter_cli::output::{Kind, Output};
use plan::Plan;
use scratch::Scratch;
use std::path::Path;

/// Sizes and seconds as the user gave them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// Bytes written to on either side.
    pub(crate) size: u64,
    /// Seconds to measure per side.
    pub(crate) seconds: u64,
    /// Where to work.
    pub(crate) directory: &'a Path,
    /// Where to put the picture.
    pub(crate) picture: &'a Path,
    /// Whether loop devices and mounts may be used.
    pub(crate) as_root: bool,
}

/// Runs the demonstration.
///
/// # Errors
/// Whatever one of its steps cannot do. Whether the figures are good is for the caller to say.
pub(crate) fn run(wish: &Wish<'_>) -> Result<Figures, LabError> {
    // A picture that cannot be written should fail now, not after a minute.
    let picture = Output::check(wish.picture, Kind::SVG)?;
    let interrupt = Interrupt::take_over()?;
    let plan = Plan::new(wish.size, wish.seconds, interrupt);
    if in_memory::is_in_memory(wish.directory) {
        terminal::note(&format!(
            "{} lies in memory: what is measured there is memory, not a disk; name a directory on one with \
             --directory",
            terminal::path(wish.directory)
        ));
    }
    let scratch = Scratch::new(wish.directory, plan.room())?;
    if wish.as_root {
        on_loop::run(&plan, scratch, &picture)
    } else {
        over_nbd::run(&plan, scratch, &picture)
    }
}

/// Runs the part with a copy elsewhere.
///
/// # Errors
/// Whatever one of its steps cannot do.
pub(crate) fn run_lost_host(directory: &Path, as_root: bool) -> Result<LostHost, LabError> {
    let interrupt = Interrupt::take_over()?;
    let scratch = Scratch::new(directory, lost_host::ROOM)?;
    lost_host::run(&interrupt, scratch, as_root)
}
