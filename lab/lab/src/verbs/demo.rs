//! `coulter-lab demo`: the main job, start to end, with numbers and a picture.

use crate::demo::{self, Wish};
use crate::error::{LabError, TrialError};
use crate::terminal;
use clap::Args;
use coulter_daemon::points::{Kind, Loop};
use coulter_terminal::{Size, SizeError};
use std::path::PathBuf;

/// Demonstrate Coulter: random writes on a volume and on a plain file, a crash, a picture.
///
/// As root: ext4 on a volume and ext4 on a plain loop device, both over files of equal size on
/// the same disk, take turns under fio with 4 KiB random writes: first on a device that is held
/// back to what a cloud volume may do, then on the disk as it is. Everything is read back and
/// verified. Then the daemon is killed under load, attached again, and every file that was
/// fsynced is compared. Without root the same is done over NBD, without a file system.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab demo
  coulter-lab demo --replicate
  coulter-lab demo --json --size 4G --seconds 30 --directory /mnt/slow-disk")]
pub(crate) struct Demo {
    /// Bytes written to on each side
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub(crate) size: Size,

    /// Seconds to measure per side
    #[arg(long, default_value = "12", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Directory for the stores while it runs; must be on the disk to measure, not in memory
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) directory: PathBuf,

    /// Use NBD even as root
    #[arg(long)]
    pub(crate) no_root: bool,

    /// File to write the picture to
    #[arg(long, value_name = "FILE", default_value = "coulter-demo.svg")]
    pub(crate) picture: PathBuf,

    /// Demonstrate instead, in seconds, that a volume outlives its host: its daemon is killed, its store deleted, its
    /// copy attached as on another host, and every file that was fsynced compared
    #[arg(long, conflicts_with_all = ["size", "seconds", "picture"])]
    pub(crate) replicate: bool,

    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Bytes below which nothing can be measured.
const SIZE_MIN: Size = Size(1 << 20);

/// Bytes above which no machine has room for both sides, and sums of them might overflow.
const SIZE_MAX: Size = Size(1 << 50);

fn parse_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error: SizeError| error.to_string())?;
    match size {
        size if size < SIZE_MIN => Err(format!("the smallest is {SIZE_MIN}")),
        size if size > SIZE_MAX => Err(format!("the largest is {SIZE_MAX}")),
        size => Ok(size),
    }
}

impl Demo {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        let is_root = rustix::process::geteuid().is_root();
        let as_root = !self.no_root && is_root && Loop.check().is_ok();
        if is_root && !as_root && !self.no_root {
            terminal::note("this machine has no FUSE or no loop devices: using NBD instead");
        }
        if self.replicate {
            return self.lose_host(as_root);
        }
        let figures = demo::run(&Wish {
            size: self.size.0.next_multiple_of(1 << 20),
            seconds: self.seconds,
            directory: &self.directory,
            picture: &self.picture,
            as_root,
        })?;
        if self.json {
            terminal::print_json(&figures)?;
        } else {
            terminal::print(&figures.table())?;
        }
        if figures.is_good() {
            return Ok(());
        }
        let reason = format!(
            "{} wrong, {} of {} durable {} survived the crash",
            figures.mismatches,
            figures.durable_after_crash,
            figures.durable_before_crash,
            if as_root { "files" } else { "writes" },
        );
        Err(TrialError::DemoFailed { step: "comparing", reason }.into())
    }

    fn lose_host(&self, as_root: bool) -> Result<(), LabError> {
        let found = demo::run_lost_host(&self.directory, as_root)?;
        if self.json {
            terminal::print_json(&found)?;
        } else {
            terminal::print(&found.line())?;
        }
        if found.is_good() {
            return Ok(());
        }
        Err(TrialError::DemoFailed { step: "comparing", reason: found.reason() }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for text in ["0", "1", "1023K"] {
            let refused = parse_size(text).expect_err("it is too small");
            assert!(refused.contains("1 MiB"), "{refused}");
        }
        assert!(parse_size("8191P").expect_err("it is too large").contains("1 PiB"));
        assert_eq!(parse_size("1M"), Ok(Size(1 << 20)));
        assert_eq!(parse_size("1G"), Ok(Size(1 << 30)));
    }
}
