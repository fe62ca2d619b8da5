//! How a store is opened: the options that `attach`, `mount` and `serve` share.

use crate::setting::{self, Setting};
use crate::size::Size;
use clap::{Args, ValueEnum};
use coulter::tuning::Retuning;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::SocketAddr;

/// How to open a store. None of it changes what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct Opening {
    /// Name for `detach` and `status` [default: made from the file name]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Most memory that the map may take; pages that do not fit are read when they are needed. Less than
    /// was decided at `create` is refused [default: what was decided then]
    #[arg(long, value_name = "SIZE")]
    pub(crate) map_memory: Option<Size>,

    /// Whether to discard segments that were freed: auto does so on disks, not in files
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) trim: Trim,

    /// When to answer writes that ask for nothing more: written, once the device has them; or
    /// buffered, from memory: faster, but what was not flushed is lost if the daemon is killed, too
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) acknowledge: Acknowledge,

    /// Refuse writes, and leave the store as it is
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Begin with this setting of `coulter tune`, such as reclaim=hole-fill; once for each setting
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting::at_opening)]
    pub(crate) tune: Vec<Setting>,

    /// Offer metrics for Prometheus at this address, such as 127.0.0.1:9640; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,

    /// Record addresses over time, for the picture of the demonstration
    #[arg(long, hide = true)]
    pub(crate) trace: bool,
}

/// When to discard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Trim {
    #[default]
    Auto,
    Yes,
    No,
}

/// When to answer writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Acknowledge {
    #[default]
    Written,
    Buffered,
}

impl From<Acknowledge> for coulter::Acknowledge {
    fn from(acknowledge: Acknowledge) -> coulter::Acknowledge {
        match acknowledge {
            Acknowledge::Written => coulter::Acknowledge::Written,
            Acknowledge::Buffered => coulter::Acknowledge::Buffered,
        }
    }
}

impl Opening {
    /// What is changed from the beginning.
    pub(crate) fn tuning(&self) -> Retuning {
        setting::retuning(&self.tune).expect("settings are checked when they are read")
    }

    /// The words that make this on a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if let Some(name) = &self.name {
            words.push(format!("--name={name}").into());
        }
        if let Some(size) = self.map_memory {
            words.push(format!("--map-memory={}", size.0).into());
        }
        match self.trim {
            Trim::Auto => {}
            Trim::Yes => words.push("--trim=yes".into()),
            Trim::No => words.push("--trim=no".into()),
        }
        if self.acknowledge == Acknowledge::Buffered {
            words.push("--acknowledge=buffered".into());
        }
        if self.read_only {
            words.push("--read-only".into());
        }
        words.extend(self.tune.iter().map(|setting| format!("--tune={setting}").into()));
        if let Some(address) = self.metrics {
            words.push(format!("--metrics={address}").into());
        }
        if self.trace {
            words.push("--trace".into());
        }
        words
    }
}
