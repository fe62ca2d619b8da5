//! How a store is opened: the options that `attach`, `mount` and `serve` share.

use crate::choices::named;
use clap::Args;
use coulter_daemon::Opening;
use coulter_daemon::opening::{Acknowledge, DeviceChoice, Trim};
use coulter_daemon::replication::Replication;
use coulter_daemon::setting::{self, Setting};
use coulter_object::{Ack, Url};
use coulter_terminal::Size;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

/// How to open a store. None of it changes what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct OpeningOptions {
    /// Name for `detach` and `status` [default: made from the file name]
    #[arg(long)]
    pub name: Option<String>,

    /// Limit of the map's memory; pages that do not fit are read when they are needed. Less than
    /// the limit given at `create` is refused [default: that limit]
    #[arg(long, value_name = "SIZE")]
    pub map_memory: Option<Size>,

    /// Memory for reads by the threads of clients, 16 bytes for each block that is read or written often; 0
    /// for none: the volume's thread carries out all reads [default: 8M]
    #[arg(long, value_name = "SIZE")]
    pub read_cache: Option<Size>,

    /// How commands get to the drive: `auto`, through the kernel's block layer; `nvme-passthrough`, as NVMe commands
    /// of our own to a namespace, where kernel and drive allow that: else as auto, and the log says why
    #[arg(long, default_value = "auto", value_name = "HOW", value_parser = named(&DeviceChoice::NAMED))]
    pub device: DeviceChoice,

    /// Whether to discard freed segments: auto does so on disks and in sparse files
    #[arg(long, default_value = "auto", value_name = "WHEN", value_parser = named(&Trim::NAMED))]
    pub trim: Trim,

    /// When to acknowledge a write without FUA: `written` (writethrough), after the device completes it; `buffered`
    /// (writeback), from memory: faster, but what was not flushed is lost if the daemon is killed
    #[arg(long, default_value = "written", value_name = "WHEN")]
    #[arg(value_parser = named(&Acknowledge::NAMED))]
    pub acknowledge: Acknowledge,

    /// Refuse writes, and do not change the store
    #[arg(long)]
    pub read_only: bool,

    /// Start with this setting of `coulter tune`, such as reclaim=hole-fill; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting::at_opening)]
    pub tune: Vec<Setting>,

    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9640; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,

    #[command(flatten)]
    /// Whether, and how, to keep a copy elsewhere.
    pub copy: CopyOptions,
}

/// How to keep a copy elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct CopyOptions {
    /// Keep a copy at s3://BUCKET/VOLUME or file:///DIRECTORY/VOLUME. The copy is always a prefix
    /// of the writes. `coulter restore` restores it
    #[arg(long, value_name = "URL", help_heading = "Replication")]
    pub replicate: Option<Url>,

    /// When to acknowledge a flush: local, after the store's device; remote, after the copy has
    /// everything before it, too
    #[arg(long, value_name = "WHERE", default_value = "local", requires = "replicate")]
    #[arg(value_parser = named(&ACKS), help_heading = "Replication")]
    pub ack: Ack,

    /// Time between two commits to the copy while the store changes, such as 200ms or 5s
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "replicate")]
    #[arg(value_parser = parse_every, help_heading = "Replication")]
    pub every: Duration,

    /// Limit of bytes that wait to be shipped; at the limit writers wait
    #[arg(long, value_name = "SIZE", default_value = "1G", requires = "replicate")]
    #[arg(help_heading = "Replication")]
    pub lag_max: Size,

    /// Ship the whole store again and make it the valid state; newer commits in the copy are given
    /// up
    #[arg(long, requires = "replicate", help_heading = "Replication")]
    pub reseed: bool,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions {
            replicate: None,
            ack: Ack::Local,
            every: Duration::from_secs(1),
            lag_max: Size(1 << 30),
            reseed: false,
        }
    }
}

/// What a flush may wait for.
const ACKS: [(&str, Ack); 2] = [("local", Ack::Local), ("remote", Ack::Remote)];

/// A time between commits: 10 ms to an hour.
fn parse_every(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let bounds = Duration::from_millis(10)..=Duration::from_secs(3600);
    if bounds.contains(&every) { Ok(every) } else { Err("from 10ms to 1h".to_string()) }
}

impl CopyOptions {
    fn replication(&self) -> Option<Replication> {
        let url = self.replicate.clone()?;
        let (every, lag_max, reseed) = (self.every, self.lag_max.0, self.reseed);
        Some(Replication { url, ack: self.ack, every, lag_max, reseed })
    }

    /// The words that make its replication.
    fn add_words(&self, words: &mut Vec<OsString>) {
        let Some(replication) = self.replication() else { return };
        words.push(format!("--replicate={}", replication.url).into());
        let is_ours = |(_, ack): &&(&str, Ack)| *ack == replication.ack;
        let (name, _) = ACKS.iter().find(is_ours).expect("each has a name");
        words.push(format!("--ack={name}").into());
        words.push(format!("--every={}ms", replication.every.as_millis()).into());
        words.push(format!("--lag-max={}", replication.lag_max).into());
        if replication.reseed {
            words.push("--reseed".into());
        }
    }
}

impl OpeningOptions {
    /// What they ask for.
    pub fn opening(&self) -> Opening {
        Opening {
            name: self.name.clone(),
            map_memory: self.map_memory.map(|size| size.0),
            read_cache: self.read_cache.map(|size| size.0),
            device: self.device,
            trim: self.trim,
            acknowledge: self.acknowledge,
            read_only: self.read_only,
            tune: self.tune.clone(),
            metrics: self.metrics,
            replicate: self.copy.replication(),
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
        if let Some(size) = self.read_cache {
            words.push(format!("--read-cache={}", size.0).into());
        }
        if self.device == DeviceChoice::NvmePassthrough {
            words.push("--device=nvme-passthrough".into());
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
        self.copy.add_words(&mut words);
        words
    }
}
