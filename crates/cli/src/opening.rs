//! How a store is opened: the options that `attach`, `mount` and `serve` share.

use crate::choices::named;
use clap::Args;
use coulter_daemon::Opening;
use coulter_daemon::opening::{Acknowledge, Trim};
use coulter_daemon::setting::{self, Setting};
use coulter_terminal::Size;
use std::ffi::OsString;
use std::net::SocketAddr;

/// How to open a store. None of it changes what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct OpeningOptions {
    /// Name for `detach` and `status` [default: made from the file name]
    #[arg(long)]
    pub name: Option<String>,

    /// Most memory that the map may take; pages that do not fit are read when they are needed. Less than
    /// was decided at `create` is refused [default: what was decided then]
    #[arg(long, value_name = "SIZE")]
    pub map_memory: Option<Size>,

    /// Whether to discard segments that were freed: auto does so on disks and in sparse files
    #[arg(long, default_value = "auto", value_name = "WHEN", value_parser = named(&Trim::NAMED))]
    pub trim: Trim,

    /// When to acknowledge a write without FUA: `written` (writethrough), after the device completes it; `buffered`
    /// (writeback), from memory: faster, but what was not flushed is lost if the daemon is killed
    #[arg(long, default_value = "written", value_name = "WHEN")]
    #[arg(value_parser = named(&Acknowledge::NAMED))]
    pub acknowledge: Acknowledge,

    /// Refuse writes, and leave the store as it is
    #[arg(long)]
    pub read_only: bool,

    /// Begin with this setting of `coulter tune`, such as reclaim=hole-fill; once for each setting
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting::at_opening)]
    pub tune: Vec<Setting>,

    /// Offer metrics for Prometheus at this address, such as 127.0.0.1:9640; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
}

impl OpeningOptions {
    /// What they ask for.
    pub fn opening(&self) -> Opening {
        Opening {
            name: self.name.clone(),
            map_memory: self.map_memory.map(|size| size.0),
            trim: self.trim,
            acknowledge: self.acknowledge,
            read_only: self.read_only,
            tune: self.tune.clone(),
            metrics: self.metrics,
        }
    }

    /// The words that make this on a command line.
    pub fn words(&self) -> Vec<OsString> {
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
        words
    }
}
