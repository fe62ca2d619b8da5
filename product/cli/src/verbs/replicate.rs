//! `coulter replicate`: begins, changes and ends the replication of a volume, also while it is in use.

use super::attach::note_cautions;
use super::replica;
use super::restore::CopyName;
use crate::choices::named;
use crate::error::{CliError, CopyError, DaemonError, DoorError, Error, StateError};
use crate::interrupt::{self, Left};
use crate::opening::{ACKS, parse_every, parse_keep_max};
use crate::store;
use crate::terminal::{self, BOLD};
use clap::Args;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::copying::{CopyOrder, Copying};
use coulter_daemon::moving;
use coulter_daemon::replication::ReplicaFacts;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::status::Facts;
use coulter_object::{Ack, Url};
use coulter_terminal::Size;
use std::path::Path;
use std::time::Duration;

/// Begin, change or end the replication of a volume.
///
/// Of an attached volume requests wait while the store is closed and opened again; clients of an NBD server
/// reconnect. ublk, the kernel's NBD client and mounted Coulter file systems must be detached first. If the
/// copy cannot be used, the volume goes on as before. A store that is not attached is shipped to the URL once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter replicate disk s3://bucket/vol             from now on, while it is in use
  coulter replicate disk --ack remote                change a setting
  coulter replicate disk --status                    how far the copy is behind
  coulter replicate disk --verify                    read every object that a state needs
  coulter replicate disk --reseed                    ship all of it anew
  coulter replicate disk --stop                      no longer; the copy stays what it was
  coulter replicate disk.img file:///mnt/backup/vol  once, of a store that is not attached")]
pub(crate) struct Replicate {
    /// Name, store or device of the volume; with --status and --verify also the URL of a copy
    #[arg(value_name = "NAME")]
    pub(crate) volume: String,

    /// Where to keep the copy: s3://BUCKET/VOLUME or file:///DIRECTORY/VOLUME [default: where it is]
    #[arg(value_name = "URL", conflicts_with_all = ["stop", "status", "verify"])]
    pub(crate) url: Option<Url>,

    /// End the replication. The copy stays what it was
    #[arg(long, group = "other")]
    pub(crate) stop: bool,

    /// Show how the copy stands
    #[arg(long, group = "other")]
    pub(crate) status: bool,

    /// Read every object that the newest state and the snapshots need, and compare its checksum
    #[arg(long, group = "other")]
    pub(crate) verify: bool,

    /// Ship the whole store again and make it the valid state; newer commits in the copy are given up
    #[arg(long, conflicts_with = "other")]
    pub(crate) reseed: bool,

    /// When to acknowledge a flush: local, after the store's device; remote, after the copy has
    /// everything before it, too [default: as it is, at first local]
    #[arg(long, value_name = "WHERE", value_parser = named(&ACKS), conflicts_with = "other")]
    pub(crate) ack: Option<Ack>,

    /// Time between two commits to the copy while the store changes [default: as it is, at first 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_every, conflicts_with = "other")]
    pub(crate) every: Option<Duration>,

    /// Limit of bytes that wait to be shipped; at the limit writers wait [default: as it is, at first 1G]
    #[arg(long, value_name = "SIZE", conflicts_with = "other")]
    pub(crate) lag_max: Option<Size>,

    /// Memory for what was written and is not sent yet; what finds no room is read back from the store [default: as
    /// it is, at first 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_keep_max, conflicts_with = "other")]
    pub(crate) keep_max: Option<Size>,

    /// Print the result as JSON, with --status and --verify
    #[arg(long)]
    pub(crate) json: bool,
}

impl Replicate {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let is_url = ["s3://", "file://"].iter().any(|scheme| self.volume.starts_with(scheme));
        if is_url {
            return self.look_at_url();
        }
        let entry = match state.find(&self.volume) {
            Ok(entry) => entry,
            Err(Error::State(StateError::NotAttached { .. })) if self.is_shipped_once() => {
                return self.ship(state);
            }
            Err(error) => return Err(error.into()),
        };
        if self.status || self.verify {
            return self.look_at_copy(state, &entry);
        }
        if let (Some(url), Some(directory)) = (&self.url, entry.directory()) {
            let (name, store, url) = (entry.name.clone(), entry.store.clone(), url.to_string());
            let (directory, again) = (directory.to_owned(), entry.again.unwrap_or_default());
            return Err(DoorError::CopyMounted { name, store, directory, again, url }.into());
        }
        let (why, help) = interrupt::asked_of(&entry.name, "change its replication");
        let _left = Left::take_over(why, help)?;
        match control::ask(state, &entry, &Request::Copy { order: self.order() })? {
            Reply::Copying(copying) => {
                note_cautions(state, &entry, copying.url.is_some());
                self.tell(&entry, &copying)
            }
            _ => Err(DaemonError::silent(&entry).into()),
        }
    }

    /// Whether it is a store that nobody serves.
    fn is_shipped_once(&self) -> bool {
        self.url.is_some() && Path::new(&self.volume).exists()
    }

    fn ship(&self, state: &StateDirectory) -> Result<(), CliError> {
        let url = self.url.as_ref().expect("it was looked at before");
        let path = store::existing(Path::new(&self.volume))?;
        // Before anything is made for the copy.
        store::check_is_store(&path, state)?;
        let why = format!("{url} has a part of {}", terminal::path(&path));
        let _left = Left::take_over(why, "the same command ships what is left".to_owned())?;
        let commit = moving::ship(&path, url, self.reseed)?;
        let path = terminal::path(&path);
        terminal::print(&format!("{BOLD}{url}{BOLD:#} has all of {path}, commit {commit}"))
    }

    /// What is known of a copy without its volume.
    fn look_at_url(&self) -> Result<(), CliError> {
        let url = self.volume.clone();
        let copy = CopyName::parse_newest(&url)
            .map_err(|reason| CopyError::NotAttached { url: url.clone(), reason })?;
        match (self.status, self.verify) {
            (true, _) => replica::status(&copy, self.json),
            (_, true) => replica::verify(&copy, self.json),
            _ => Err(CopyError::UrlOfVolume { url }.into()),
        }
    }

    fn look_at_copy(&self, state: &StateDirectory, entry: &Entry) -> Result<(), CliError> {
        let facts = match control::ask(state, entry, &Request::Status)? {
            Reply::Status(facts) => *facts,
            _ => return Err(DaemonError::silent(entry).into()),
        };
        let replica = match facts {
            Facts::Volume(status) => status.replica,
            Facts::Other(_) => None,
        };
        let name = entry.name.clone();
        let replica = replica
            .ok_or(DaemonError::NotCopied { name, reason: "it is not replicated".to_owned() })?;
        if self.status {
            return match self.json {
                true => terminal::print_json(&replica),
                false => print_replica(&replica),
            };
        }
        let reason = |reason| CopyError::NotAttached { url: replica.url.clone(), reason };
        let copy = CopyName::parse_newest(&replica.url).map_err(reason)?;
        replica::verify(&copy, self.json)
    }

    fn order(&self) -> CopyOrder {
        if self.stop {
            return CopyOrder::Stop;
        }
        CopyOrder::Keep {
            url: self.url.as_ref().map(ToString::to_string),
            waits: self.ack.map(|ack| ack == Ack::Remote),
            every_ms: self.every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            lag_max: self.lag_max.map(|size| size.0),
            keep_max: self.keep_max.map(|size| size.0),
            reseed: self.reseed,
        }
    }

    fn tell(&self, entry: &Entry, copying: &Copying) -> Result<(), CliError> {
        let name = &entry.name;
        if let (Some(url), Some(behind)) = (&copying.url_before, &copying.behind) {
            terminal::note(&format!("the copy at {url} is behind: {behind}"));
        }
        match (&copying.url, &copying.url_before) {
            (Some(url), _) => terminal::print(&format!("'{name}' is replicated to {url}")),
            (None, Some(url)) => terminal::print(&format!(
                "'{name}' is not replicated any more; {url} stays what it was"
            )),
            (None, None) => Ok(()),
        }
    }
}

fn print_replica(replica: &ReplicaFacts) -> Result<(), CliError> {
    terminal::print(replica.to_string().trim_end())
}
