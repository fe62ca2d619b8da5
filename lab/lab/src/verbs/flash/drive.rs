//! Which drive is emulated: the options that all verbs of `coulter-lab flash` share.

use crate::error::{LabError, TrialError};
use clap::Args;
use coulter_cli::new_store::parse_percent;
use coulter_flash::{FtlKind, FtlOptions, Placement, Profile, ProfileError, VictimPolicy};
use coulter_terminal::Size;
use std::ffi::OsString;
use std::path::Path;

/// A drive and its translation layer.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(crate) struct DriveOptions {
    /// The translation layer: page, dftl, bast, fast, redo or sftl
    #[arg(long, default_value = "page", value_parser = parse::<FtlKind>)]
    pub(crate) ftl: FtlKind,

    /// The drive: sata-tlc, nvme-tlc, qlc-iu16k, sd-card, openssd, tiny, or a file like those in
    /// lab/flash/profiles
    #[arg(long, default_value = "sata-tlc", value_name = "NAME|FILE")]
    pub(crate) profile: String,

    /// Bytes that the drive exports [default: the profile's]
    #[arg(long)]
    pub(crate) size: Option<Size>,

    /// Over-provisioning of the flash, as a share of the exported bytes [default: the profile's]
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) spare: Option<u32>,

    /// Entries of DFTL's map cache [default: the profile's]
    #[arg(long, value_name = "COUNT")]
    pub(crate) map_cache: Option<u32>,

    /// Log or replacement blocks [default: the profile's]
    #[arg(long, value_name = "COUNT")]
    pub(crate) log_blocks: Option<u32>,

    /// Garbage-collection victims of the page map and DFTL: greedy, cost-benefit or oldest
    #[arg(long, default_value = "greedy", value_parser = parse::<VictimPolicy>)]
    pub(crate) victims: VictimPolicy,

    /// Separate first writes and overwrites (page map only)
    #[arg(long)]
    pub(crate) hot_cold: bool,
}

impl DriveOptions {
    /// The drive.
    ///
    /// # Errors
    /// A profile that is not there, or cannot be.
    pub(super) fn profile(&self) -> Result<Profile, LabError> {
        let mut profile = load_profile(&self.profile)?;
        self.adapt(&mut profile).map_err(|error| refused(error.to_string(), true))?;
        Ok(profile)
    }

    /// What its translation layer is told.
    pub(super) fn options(&self) -> FtlOptions {
        let placement = if self.hot_cold { Placement::HotCold } else { Placement::Mixed };
        FtlOptions { victims: self.victims, placement, ..FtlOptions::default() }
    }

    /// The words that make this on a command line that is read in another directory.
    pub(super) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut word = |name: &str, value: &dyn std::fmt::Display| {
            words.push(OsString::from(format!("--{name}={value}")));
        };
        word("ftl", &self.ftl);
        word("victims", &self.victims);
        if let Some(size) = self.size {
            word("size", &size.0);
        }
        if let Some(percent) = self.spare {
            word("spare", &percent);
        }
        if let Some(count) = self.map_cache {
            word("map-cache", &count);
        }
        if let Some(count) = self.log_blocks {
            word("log-blocks", &count);
        }
        if self.hot_cold {
            words.push("--hot-cold".into());
        }
        let mut profile = OsString::from("--profile=");
        match Profile::named(&self.profile) {
            Ok(_) => profile.push(&self.profile),
            Err(_) => {
                let path = Path::new(&self.profile);
                profile.push(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
            }
        }
        words.push(profile);
        words
    }

    fn adapt(&self, profile: &mut Profile) -> Result<(), ProfileError> {
        if let Some(size) = self.size {
            *profile = profile.clone().resized(size.0)?;
        }
        if let Some(percent) = self.spare {
            *profile = profile.clone().with_spare_percent(percent)?;
        }
        profile.map_cache_entries = self.map_cache.unwrap_or(profile.map_cache_entries);
        profile.log_blocks = self.log_blocks.unwrap_or(profile.log_blocks);
        profile.check()
    }
}

/// A parser for arguments, with the error in words.
pub(super) fn parse<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// A profile that comes with the program, or that is in a file.
fn load_profile(name: &str) -> Result<Profile, LabError> {
    let unknown = match Profile::named(name) {
        Ok(profile) => return Ok(profile),
        Err(error) => error,
    };
    let path = Path::new(name);
    if !path.exists() {
        return Err(refused(unknown.to_string(), true));
    }
    let text = std::fs::read_to_string(path).map_err(|error| LabError::io("read", path, error))?;
    Profile::parse(&text).map_err(|error| refused(format!("{name}: {error}"), true))
}

/// Why nothing is emulated.
pub(super) fn refused(reason: String, is_usage: bool) -> LabError {
    TrialError::Bench { name: "the emulated drive", reason, is_usage }.into()
}
