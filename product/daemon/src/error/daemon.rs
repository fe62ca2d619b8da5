//! About attach points and the processes that serve them.

use crate::degraded;
use crate::state::Entry;
use crate::store_fate::StoreFate;
use coulter_terminal::{self as terminal, Report, Size, fault, usage};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// About attach points and the processes that serve them.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what its name says of its variant")]
pub enum DaemonError {
    /// An attach point that this machine cannot give.
    ViaUnavailable { via: &'static str, reason: String },
    /// The attach point could not be set up.
    Attach { store: PathBuf, reason: String },
    /// The volume holds no file system of Coulter's own.
    NoFiles { store: PathBuf, reason: String },
    /// The device is gone, and what hosts had written last may be.
    Unflushed { name: String, device: String, reason: String },
    /// A volume can do less than it was attached for.
    Failed {
        /// Its name.
        name: String,
        /// Why.
        failure: String,
    },
    /// The file system below a store is full.
    WaitsForSpace {
        /// The volume.
        name: String,
        /// In which file.
        store: PathBuf,
    },
    /// Metadata of a volume was damaged beyond repair when it was attached.
    Degraded { name: String, failure: String, remedy: String },
    /// The device does not lead to the volume any more.
    DeviceTaken { name: String, device: String },
    /// Somebody uses the volume.
    Busy { name: String, device: String, holders: Vec<String>, remedy: Option<String> },
    /// The device of a daemon that ended waits, with a file system mounted from it.
    WaitsMounted { name: String, store: PathBuf, mount_point: PathBuf },
    /// The daemon told what went wrong.
    Daemon(Report),
    /// The daemon ended without a word.
    DaemonDied { directory: PathBuf, how: String },
    /// A command that what is served does not understand.
    NotUnderstood { name: String, words: String },
    /// What is served has no blocks to be compared with anything, or has ended.
    NotScrubbed { name: String },
    /// A scrub has come upon damage that it could not repair.
    ScrubFoundDamage { name: String, damaged_bytes: u64, metadata: u64 },
    /// No socket was passed to this process, or too many.
    NoSocketPassed { count: u32 },
    /// Settings cannot be changed.
    Tune { name: String, reason: String },
    /// The replication of a volume cannot be changed while it is attached.
    NotCopied { name: String, reason: String },
    /// A daemon cannot become another program.
    Restart { name: String, reason: String },
    /// A device would outlive a daemon that acknowledges from memory: this one, which waits for one, or one
    /// that was asked for.
    BufferedOutlived { device: Option<String> },
    /// Other machines would reach the server; `has_keys` if its clients could be asked for keys.
    Remote { address: String, has_keys: bool },
    /// A server could not listen.
    Listen { address: String, reason: String, help: Option<String> },
    /// The port for metrics cannot be had.
    Metrics { address: SocketAddr, reason: String, fault: MetricsFault },
    /// The daemon was killed some time ago.
    Killed { name: String, left: String, remedy: String },
    /// The daemon heard what was asked, and ended before it answered: it was killed.
    DaemonEnded { name: String, log: PathBuf },
    /// The daemon answers no more, for it is ending.
    Ending { name: String, pid: u32 },
    /// The daemon does not answer.
    DaemonSilent {
        name: String,
        pid: u32,
        is_stopped: bool,
        /// Whether all that it serves would be gone with it.
        is_store_deleted: bool,
    },
}

/// What is wrong with a port for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFault {
    /// Its address is none of the loopback.
    Remote,
    /// Its address is none of this machine.
    Address,
    /// The port itself, or the system.
    Port,
}

fn waits_for_space(name: &str, store: &Path) -> Report {
    fault(format!("'{name}' waits for space below"))
        .why(format!("the file system of {} is full", store.display()))
        .help(format!(
            "free some of it, and the volume goes on by itself; writes fail with ENOSPC after the \
             time that `coulter tune {name}` shows as space-patience"
        ))
}

fn damaged(name: &str, failure: &str, remedy: &str) -> Report {
    fault(format!("'{name}' is damaged")).why(failure).help(remedy)
}

impl DaemonError {
    /// The daemon of `entry` lives and does not answer.
    pub fn silent(entry: &Entry) -> DaemonError {
        DaemonError::DaemonSilent {
            name: entry.name.clone(),
            pid: entry.process.pid,
            is_stopped: entry.process.is_stopped(),
            is_store_deleted: StoreFate::of(entry) == Some(StoreFate::Deleted),
        }
    }

    /// Why the volume of `entry` can do less than it was attached for, if it can.
    pub fn less(entry: &Entry) -> Option<DaemonError> {
        let (name, failure) = (entry.name.clone(), entry.failure.clone()?);
        Some(match entry.in_doubt_bytes {
            Some(in_doubt) => {
                DaemonError::Degraded { name, failure, remedy: degraded::remedy(entry, in_doubt) }
            }
            None => DaemonError::Failed { name, failure },
        })
    }

    /// The daemon of `entry` is ending, and nobody has stopped it while it does.
    pub fn ending(entry: &Entry) -> DaemonError {
        match entry.process.is_stopped() {
            true => DaemonError::silent(entry),
            false => DaemonError::Ending { name: entry.name.clone(), pid: entry.process.pid },
        }
    }

    /// What, why, and what to do.
    pub fn report(&self) -> Report {
        match self {
            DaemonError::ViaUnavailable { via, reason } => {
                fault(format!("--via {via} cannot be had here"))
                    .why(reason.as_str())
                    .help("let --via auto choose")
            }
            DaemonError::Attach { store, reason } => {
                fault(format!("cannot serve {}", store.display())).why(reason.as_str())
            }
            DaemonError::NoFiles { store, reason } => no_files(store, reason),
            DaemonError::Unflushed { name, device, reason } => {
                fault(format!("'{name}' is detached, but its last writes are not durable"))
                    .why(format!("{device} could not be flushed: {reason}"))
                    .help(
                        "whoever asked for them by fsync was told; free space below the store, or \
                         see its log, and run `coulter check` before it is used again",
                    )
            }
            DaemonError::Failed { name, failure } => fault(format!("'{name}' has failed"))
                .why(failure.as_str())
                .help(format!(
                    "what was flushed before is safe; mend that, then `coulter detach {name}` and attach \
                     it again"
                )),
            DaemonError::WaitsForSpace { name, store } => waits_for_space(name, store),
            DaemonError::Degraded { name, failure, remedy } => damaged(name, failure, remedy),
            DaemonError::DeviceTaken { name, device } => {
                fault(format!("{device} does not lead to '{name}' any more"))
                    .why("it was detached by other means than `coulter detach`")
                    .help(format!("run `coulter detach {name}`, and attach or mount it again"))
            }
            DaemonError::Busy { name, device, holders, remedy } => {
                fault(format!("'{name}' is in use at {device}")).why(holders.join("; ")).help(
                    match remedy {
                        Some(command) => format!("first run `{command}`"),
                        None => "end what uses it, or add --force, which fails its I/O".to_owned(),
                    },
                )
            }
            DaemonError::WaitsMounted { name, store, mount_point } => fault(format!(
                "the daemon of '{name}' has ended, and its device waits for another"
            ))
            .why(format!("a file system is mounted from it at {}", mount_point.display()))
            .help(format!(
                "first run `coulter attach --recover {}`, which loses nothing; --force fails \
                         the I/O that waits",
                terminal::word(store)
            )),
            DaemonError::Daemon(report) => report.clone(),
            DaemonError::DaemonDied { directory, how } => {
                fault("the daemon ended before it served")
                    .why(how.as_str())
                    .help(format!("its log, if it got so far, is in {}", directory.display()))
            }
            DaemonError::NotUnderstood { name, words } => {
                fault(format!("'{name}' does not understand `{words}`"))
                    .help("ask the program that attached it")
            }
            DaemonError::NotScrubbed { name } => {
                fault(format!("cannot scrub '{name}'")).why("it is no volume that runs")
            }
            DaemonError::ScrubFoundDamage { name, damaged_bytes: 0, metadata } => {
                fault(format!("'{name}' is damaged"))
                    .why(format!(
                        "all data can be read; unrepaired blocks of metadata: {metadata}"
                    ))
                    .help("nothing need be restored: `coulter scrub` repairs what has a copy while writes are taken; \
                        else take the data out with `coulter salvage`, and create the store anew")
            }
            DaemonError::ScrubFoundDamage { name, damaged_bytes, metadata } => {
                fault(format!("'{name}' is damaged"))
                    .why(format!(
                        "{} of data cannot be read; unrepaired blocks of metadata: {metadata}",
                        Size(*damaged_bytes)
                    ))
                    .help(
                        "restore the data from a copy: a damaged range can be read again once it has been \
                         overwritten; docs/recovery.md tells more",
                    )
            }
            DaemonError::NoSocketPassed { count } => usage(format!("{count} sockets were passed"))
                .why("--nbd systemd takes one, from LISTEN_FDS")
                .help("start it from a systemd socket unit; docs/operation.md has one"),
            DaemonError::Tune { name, reason } => {
                fault(format!("cannot tune '{name}'")).why(reason.as_str())
            }
            DaemonError::NotCopied { name, reason } => {
                fault(format!("cannot change how '{name}' is replicated")).why(reason.as_str())
            }
            DaemonError::Restart { name, reason } => {
                fault(format!("cannot restart '{name}'")).why(reason.as_str())
            }
            DaemonError::BufferedOutlived { device } => {
                let what = match device {
                    Some(device) => {
                        format!("{device} cannot be served with --acknowledge buffered")
                    }
                    None => "--via nbd cannot be had with --acknowledge buffered".to_owned(),
                };
                fault(what)
                    .why(
                        "it would outlive its daemon, and go on without what that had acknowledged \
                         from memory",
                    )
                    .help(match device {
                        Some(_) => {
                            "leave that out, or let go of the device by `coulter detach` first"
                        }
                        None => "let --via auto choose",
                    })
            }
            DaemonError::Remote { address, has_keys } => remote(address, *has_keys),
            DaemonError::Listen { address, reason, help } => {
                fault(format!("cannot listen on {address}"))
                    .why(reason.as_str())
                    .maybe_help(help.as_ref())
            }
            DaemonError::Metrics { address, reason, fault: at } => {
                let what = format!("cannot offer metrics at {address}");
                let report = match at {
                    MetricsFault::Remote => usage(what),
                    MetricsFault::Address | MetricsFault::Port => fault(what),
                };
                report.why(reason.as_str()).help(match at {
                    MetricsFault::Remote | MetricsFault::Address => {
                        "choose another address: one of the loopback that this machine has, such \
                         as 127.0.0.1"
                    }
                    MetricsFault::Port => {
                        "choose another port of 127.0.0.1; port 0 takes a free one, and `coulter \
                         list --json` shows it"
                    }
                })
            }
            DaemonError::Killed { name, left, remedy } => {
                fault(format!("the daemon of '{name}' was killed"))
                    .why(format!("what was flushed is safe. {left}"))
                    .help(remedy.as_str())
            }
            DaemonError::DaemonEnded { name, log } => {
                fault(format!("the daemon of '{name}' ended before it answered"))
                    .why("it was killed; what was flushed is safe")
                    .help(format!(
                        "`coulter list` shows what it left, {} what it was at",
                        log.display()
                    ))
            }
            DaemonError::Ending { name, pid } => {
                fault(format!("the daemon of '{name}' (process {pid}) is ending"))
                    .why("it writes out what hosts have written")
                    .help("wait until `coulter list` does not show it any more; its log tells more")
            }
            DaemonError::DaemonSilent { name, pid, is_stopped, is_store_deleted } => {
                silent(name, *pid, *is_stopped, *is_store_deleted)
            }
        }
    }
}

fn remote(address: &str, has_keys: bool) -> Report {
    let keys = if has_keys { ", give NVMe hosts keys by --nvme-keys" } else { "" };
    usage(format!("will not listen on {address}"))
        .why("other machines could reach it, and no client would need a password")
        .help(format!(
            "choose an address of the loopback, such as tcp:127.0.0.1:0{keys}; or, on a network where \
             each machine may read and write the volume, add --allow-remote"
        ))
}

fn no_files(store: &Path, reason: &str) -> Report {
    let word = terminal::word(store);
    fault(format!("cannot mount {}", store.display()))
        .why(format!("its volume holds no Coulter file system ({reason})"))
        .help(format!(
            "if it holds another one, `coulter mount {word} DIR` mounts that; `coulter fs create` \
             makes a new store with a Coulter file system"
        ))
}

fn silent(name: &str, pid: u32, is_stopped: bool, is_store_deleted: bool) -> Report {
    let report = fault(format!("the daemon of '{name}' (process {pid}) does not answer"));
    match (is_stopped, is_store_deleted) {
        (true, _) => report
            .why("it was stopped, by a signal or a debugger")
            .help(format!("let it go on with `kill -CONT {pid}`")),
        (false, true) => report.help(
            "do not end it: its store was deleted, and all that it holds would be gone. Look at its \
             log: it may wait for the disk below, and goes on when that does",
        ),
        (false, false) => report.help(format!(
            "look at its log: it may wait for the disk below, and goes on when that does. Only if it \
             never does: `kill {pid}`, and `kill -9 {pid}` after that; what was flushed is safe"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_kill_a_daemon_that_holds_all_there_is() {
        let advice = |is_store_deleted| {
            let (name, pid, is_stopped) = ("a".to_owned(), 7, false);
            DaemonError::DaemonSilent { name, pid, is_stopped, is_store_deleted }
                .report()
                .to_string()
        };
        assert!(advice(false).contains("kill -9 7"));
        assert!(advice(true).contains("do not end it") && !advice(true).contains("kill"));
    }
}
