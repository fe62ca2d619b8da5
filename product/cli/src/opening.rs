//! How a store is opened: the options that `attach`, `mount` and `serve` share.

use crate::choices::named;
use crate::error::{CliError, CopyError};
use crate::terminal;
use clap::Args;
use coulter::Degraded;
use coulter_daemon::Opening;
use coulter_daemon::cache::{self, Caching};
use coulter_daemon::opening::{Acknowledge, DeviceChoice, Trim};
use coulter_daemon::replication::{self, Replication};
use coulter_daemon::setting::{self, Setting};
use coulter_object::{Ack, Settings, Url};
use coulter_terminal::Size;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
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

    /// How to open a store with metadata damaged beyond repair: `ro`, refuse writes; `rw`, take writes where all that is
    /// in doubt is known block by block, else as ro; `refuse`, do not open it. Reads of what is in doubt fail
    #[arg(long, default_value = "ro", value_name = "HOW", value_parser = named(&Degraded::NAMED))]
    pub degraded: Degraded,

    /// Also fill flash pages of which only some blocks are dead, writing the others there again. Refused unless
    /// the store has a page size, and the device says that it writes pages whole or not at all over power
    /// cuts: no file or disk does
    #[arg(long)]
    pub pad_pages: bool,

    /// Start with this setting of `coulter tune`, such as reclaim=hole-fill; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting::at_opening)]
    pub tune: Vec<Setting>,

    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9640; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = crate::metrics_address::parse)]
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
    #[arg(long, value_name = "URL", group = "copied", help_heading = "Replication")]
    pub replicate: Option<Url>,

    /// Attach the volume of a copy, whose URL stands in place of a store: this file keeps what was read or
    /// written, and is filled behind. Commits go to the copy as with --replicate
    #[arg(long, value_name = "FILE", group = "copied", help_heading = "Replication")]
    pub cache: Option<PathBuf>,

    /// Fence the host that has the volume, whether it still runs or not
    #[arg(long, requires = "copied", help_heading = "Replication")]
    pub take_over: bool,

    /// The store is a cache, which was prepared
    #[arg(long, hide = true, requires = "replicate")]
    pub cached: bool,

    /// When to acknowledge a flush: local, after the store's device; remote, after the copy has
    /// everything before it, too
    #[arg(long, value_name = "WHERE", default_value = "local", requires = "copied")]
    #[arg(value_parser = named(&ACKS), help_heading = "Replication")]
    pub ack: Ack,

    /// Time between two commits to the copy while the store changes, such as 200ms or 5s
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "copied")]
    #[arg(value_parser = parse_every, help_heading = "Replication")]
    pub every: Duration,

    /// Limit of bytes that wait to be shipped; at the limit writers wait
    #[arg(long, value_name = "SIZE", default_value = "1G", requires = "copied")]
    #[arg(help_heading = "Replication")]
    pub lag_max: Size,

    /// Memory for what was written and is not sent yet; what finds no room is read back from the store
    #[arg(long, value_name = "SIZE", default_value = "64M", requires = "copied")]
    #[arg(value_parser = parse_keep_max, help_heading = "Replication")]
    pub keep_max: Size,

    /// Ship the whole store again and make it the valid state; newer commits in the copy are given
    /// up
    #[arg(long, requires = "replicate", help_heading = "Replication")]
    pub reseed: bool,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions {
            replicate: None,
            cache: None,
            take_over: false,
            cached: false,
            ack: Ack::Local,
            every: Duration::from_secs(1),
            lag_max: Size(Settings::DEFAULT.lag_max),
            keep_max: Size(Settings::DEFAULT.keep_max),
            reseed: false,
        }
    }
}

/// What a flush may wait for.
pub(crate) const ACKS: [(&str, Ack); 2] = [("local", Ack::Local), ("remote", Ack::Remote)];

/// A time between commits: 10 ms to an hour.
pub(crate) fn parse_every(text: &str) -> Result<Duration, String> {
    let every = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let bounds = Duration::from_millis(10)..=Duration::from_secs(3600);
    if bounds.contains(&every) { Ok(every) } else { Err("from 10ms to 1h".to_string()) }
}

/// Memory for what is not sent yet: it is allocated at the opening.
pub(crate) fn parse_keep_max(text: &str) -> Result<Size, String> {
    let size = text.parse::<Size>().map_err(|error| error.to_string())?;
    if size.0 <= 16 << 30 { Ok(size) } else { Err("from 0 to 16G".to_string()) }
}

impl CopyOptions {
    fn replication(&self) -> Option<Replication> {
        let url = self.replicate.clone()?;
        let (every, reseed) = (self.every, self.reseed);
        let (lag_max, keep_max) = (self.lag_max.0, self.keep_max.0);
        let cache = self.cached.then_some(Caching { take_over: self.take_over });
        Some(Replication { url, ack: self.ack, every, lag_max, keep_max, reseed, cache })
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
        words.push(format!("--keep-max={}", replication.keep_max).into());
        if replication.reseed {
            words.push("--reseed".into());
        }
        if self.cached {
            words.push("--cached".into());
        }
        if self.take_over {
            words.push("--take-over".into());
        }
    }
}

impl OpeningOptions {
    /// The store that `path` stands for, and how it is opened: in place of a store it may name a copy, whose cache is
    /// made here if it is not there.
    ///
    /// # Errors
    /// A URL without `--cache`, `--cache` without a URL, and what [`cache::prepare`] refuses.
    pub fn located(&self, path: &Path) -> Result<(PathBuf, OpeningOptions), CliError> {
        let text =
            path.to_str().filter(|text| ["s3://", "file://"].iter().any(|it| text.starts_with(it)));
        let file = match (text, &self.copy.cache) {
            (None, None) => return Ok((path.to_owned(), self.clone())),
            (None, Some(_)) => return Err(CopyError::CacheOfStore { path: path.to_owned() }.into()),
            (Some(url), None) => return Err(CopyError::NoCache { url: url.to_owned() }.into()),
            (Some(_), Some(file)) => file,
        };
        let text = text.expect("it was matched above");
        let refused = |reason: String| CopyError::NotAttached { url: text.to_owned(), reason };
        let url: Url = text
            .parse()
            .map_err(|error: coulter_object::url::UrlError| refused(error.to_string()))?;
        if self.read_only {
            return Err(
                refused("a cache is written to, if only with what it fetches".to_owned()).into()
            );
        }
        let file = std::path::absolute(file).map_err(|error| CliError::io("find", file, error))?;
        cache::prepare(&url, &file)?;
        let mut opening = self.clone();
        opening.copy.cache = None;
        opening.copy.cached = true;
        opening.copy.replicate = Some(url);
        Ok((file, opening))
    }

    /// Tells of a store, attached as `name`, whose copy does not follow it: no words of the command
    /// line ask for that.
    pub(crate) fn note_left_copy(&self, path: &Path, name: &str) {
        if self.copy.replicate.is_some() || self.read_only {
            return;
        }
        if let Some(words) = replication::remembered(path) {
            terminal::note(&format!(
                "'{name}' has a copy, which does not follow it from now on: to have it follow, \
                 detach it and add {words}"
            ));
        }
    }

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
            degraded: self.degraded,
            pad_pages: self.pad_pages,
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
        match self.degraded {
            Degraded::ReadOnly => {}
            Degraded::ReadWrite => words.push("--degraded=rw".into()),
            Degraded::Refused => words.push("--degraded=refuse".into()),
        }
        if self.pad_pages {
            words.push("--pad-pages".into());
        }
        words.extend(self.tune.iter().map(|setting| format!("--tune={setting}").into()));
        if let Some(address) = self.metrics {
            words.push(format!("--metrics={address}").into());
        }
        self.copy.add_words(&mut words);
        words
    }
}
