//! About attach points and the processes that serve them.

use crate::life::degraded;
use crate::life::state::Entry;
use crate::life::store_fate::StoreFate;
use coulter_terminal::{self as terminal, Report, Size, fault, usage};
use std::net::SocketAddr;
use std::path::PathBuf;

/// When metrics cannot be offered at an address.
const OTHER_ADDRESS: &str =
    "choose another address: one of the loopback that this machine has, such as 127.0.0.1";

coulter_terminal::reports! {
    /// About attach points and the processes that serve them.
    pub enum DaemonError {
        /// An attach point that this machine cannot give.
        ViaUnavailable { via: &'static str, reason: String } =>
            fault("--via {via} cannot be had here")
            .why("{reason}")
            .help("let --via auto choose");
        /// The attach point could not be set up.
        Attach { store: PathBuf, reason: String } =>
            fault("cannot serve {}", store.display())
            .why("{reason}");
        /// The volume holds no file system of Coulter's own.
        NoFiles { store: PathBuf, reason: String } =>
            fault("cannot mount {}", store.display())
            .why("its volume holds no Coulter file system ({reason})")
            .help("if it holds another one, `coulter mount {} DIR` mounts that; `coulter fs \
                create` makes a new store with a Coulter file system", terminal::word(store));
        /// The device is gone, and what hosts had written last may be.
        Unflushed { name: String, device: String, reason: String } =>
            fault("'{name}' is detached, but its last writes are not durable")
            .why("{device} could not be flushed: {reason}")
            .help("whoever asked for them by fsync was told; free space below the store, or see \
                its log, and run `coulter check` before it is used again");
        /// A volume can do less than it was attached for.
        Failed { name: String, failure: String } =>
            fault("'{name}' has failed")
            .why("{failure}")
            .help("what was flushed before is safe; mend that, then `coulter detach {name}` and \
                attach it again");
        /// The store was cut short while it was attached.
        CutShort { name: String, failure: String, lost_bytes: u64, store: PathBuf } =>
            fault("'{name}' has failed")
            .why("{failure}")
            .help("{} of the store are lost, flushed or not, and writes are refused; copy what \
                can be read, then `coulter detach {name}`; `coulter salvage {}` finds what is left",
                Size(*lost_bytes), terminal::word(store));
        /// The file system below a store is full.
        WaitsForSpace { name: String, store: PathBuf } =>
            fault("'{name}' waits for space below")
            .why("the file system of {} is full", store.display())
            .help("free some of it, and the volume goes on by itself; writes fail with ENOSPC \
                after the time that `coulter tune {name}` shows as space-patience");
        /// Metadata of a volume was damaged beyond repair when it was attached.
        Degraded { name: String, failure: String, remedy: String } =>
            fault("'{name}' is damaged")
            .why("{failure}")
            .help("{remedy}");
        /// The device does not lead to the volume any more.
        DeviceTaken { name: String, device: String } =>
            fault("{device} does not lead to '{name}' any more")
            .why("it was detached by other means than `coulter detach`")
            .help("run `coulter detach {name}`, and attach or mount it again");
        /// Somebody uses the volume.
        Busy { name: String, device: String, holders: Vec<String>, remedy: Option<String> } =>
            fault("'{name}' is in use at {device}")
            .why("{}", holders.join("; "))
            .help("{}", match remedy {
                Some(command) => format!("first run `{command}`"),
                None => format!("end what uses it; or run `coulter detach --force {name}`, which \
                    fails its I/O"),
            });
        /// The device of a daemon that ended waits, with a file system mounted from it.
        WaitsMounted { name: String, store: PathBuf, mount_point: PathBuf } =>
            fault("the daemon of '{name}' has ended, and its device waits for another")
            .why("a file system is mounted from it at {}", mount_point.display())
            .help("first run `coulter attach --recover {}`, which loses nothing; --force fails the \
                I/O that waits", terminal::word(store));
        /// The daemon told what went wrong.
        Daemon { report: Report } =>
            by(report.clone());
        /// The daemon ended without a word.
        DaemonDied { directory: PathBuf, how: String } =>
            fault("the daemon ended before it served")
            .why("{how}")
            .help("its log, if it got so far, is in {}", directory.display());
        /// A command that what is served does not understand.
        NotUnderstood { name: String, words: String } =>
            fault("'{name}' does not understand `{words}`")
            .help("ask the program that attached it");
        /// What is served has no blocks to be compared with anything, or has ended.
        NotScrubbed { name: String } =>
            fault("cannot scrub '{name}'")
            .why("it is no volume that runs");
        /// A scrub has come upon damage that it could not repair.
        ScrubFoundDamage { name: String, damaged_bytes: u64, metadata: u64 } =>
            fault("'{name}' is damaged")
            .why("{}; unrepaired blocks of metadata: {metadata}", match damaged_bytes {
                0 => "all data can be read".to_owned(),
                bytes => format!("{} of data cannot be read", Size(*bytes)),
            })
            .help("{}", match damaged_bytes {
                0 => "nothing need be restored: `coulter scrub` repairs what has a copy while \
                    writes are taken; else take the data out with `coulter salvage`, and create \
                    the store anew",
                _ => "restore the data from a copy: a damaged range can be read again once it has \
                    been overwritten; docs/recovery.md tells more",
            });
        /// No socket was passed to this process, or too many.
        NoSocketPassed { count: u32 } =>
            usage("{count} sockets were passed")
            .why("--nbd systemd takes one, from LISTEN_FDS")
            .help("start it from a systemd socket unit; docs/operation.md has one");
        /// Settings cannot be changed.
        Tune { name: String, reason: String } =>
            fault("cannot tune '{name}'")
            .why("{reason}");
        /// The replication of a volume cannot be changed while it is attached.
        NotCopied { name: String, reason: String } =>
            fault("cannot change how '{name}' is replicated")
            .why("{reason}")
            .help("'{name}' goes on as before; `coulter replicate {name} URL` replicates it to \
                another place");
        /// A daemon cannot become another program.
        Restart { name: String, reason: String } =>
            fault("cannot upgrade '{name}'")
            .why("{reason}")
            .help("'{name}' goes on with the program that it has; mend that, and try again");
        /// A device would outlive a daemon that acknowledges from memory: the named one, which
        /// waits for a daemon, or one that was asked for.
        BufferedOutlived { device: Option<String> } =>
            fault("{}", match device {
                Some(device) => format!("{device} cannot be served with --acknowledge buffered"),
                None => "--via nbd cannot be had with --acknowledge buffered".to_owned(),
            })
            .why("it would outlive its daemon, and go on without what that had acknowledged from \
                memory")
            .help("{}", match device {
                Some(_) => "leave that out, or let go of the device by `coulter detach` first",
                None => "let --via auto choose",
            });
        /// Other machines would reach the server; `has_keys` if its clients could be asked for
        /// keys.
        Remote { address: String, has_keys: bool } =>
            usage("will not listen on {address}")
            .why("other machines could reach it, and no client would need a password")
            .help("choose an address of the loopback, such as tcp:127.0.0.1:0{}; or, on a network \
                where each machine may read and write the volume, add --allow-remote",
                if *has_keys { ", give NVMe hosts keys by --nvme-keys" } else { "" });
        /// A server could not listen.
        Listen { address: String, reason: String, help: Option<String> } =>
            fault("cannot listen on {address}")
            .why("{reason}")
            .maybe_help(help.as_ref());
        /// The port for metrics cannot be had.
        Metrics { address: SocketAddr, reason: String, fault: MetricsFault } =>
            by(metrics(*address, *fault))
            .why("{reason}");
        /// The daemon was killed some time ago.
        Killed { name: String, left: String, remedy: String } =>
            fault("the daemon of '{name}' was killed")
            .why("what was flushed is safe. {left}")
            .help("{remedy}");
        /// The daemon heard what was asked, and ended before it answered: it was killed.
        DaemonEnded { name: String, log: PathBuf } =>
            fault("the daemon of '{name}' ended before it answered")
            .why("it was killed; what was flushed is safe")
            .help("`coulter list` shows what it left, {} what it was at", log.display());
        /// The daemon answers no more, for it is ending.
        Ending { name: String, pid: u32 } =>
            fault("the daemon of '{name}' (process {pid}) is ending")
            .why("it writes out what hosts have written")
            .help("wait until `coulter list` does not show it any more; its log tells more");
        /// The daemon does not answer.
        DaemonSilent {
            name: String,
            pid: u32,
            is_stopped: bool,
            /// Whether all that it serves would be gone with it.
            is_store_deleted: bool,
        } =>
            by(silent(name, *pid, *is_stopped, *is_store_deleted));
    }
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
        Some(match (entry.cut_off_bytes, entry.in_doubt_bytes) {
            (Some(lost_bytes), _) => {
                DaemonError::CutShort { name, failure, lost_bytes, store: entry.store.clone() }
            }
            (None, Some(in_doubt)) => {
                DaemonError::Degraded { name, failure, remedy: degraded::remedy(entry, in_doubt) }
            }
            (None, None) => DaemonError::Failed { name, failure },
        })
    }

    /// The daemon of `entry` is ending, and nobody has stopped it while it does.
    pub fn ending(entry: &Entry) -> DaemonError {
        match entry.process.is_stopped() {
            true => DaemonError::silent(entry),
            false => DaemonError::Ending { name: entry.name.clone(), pid: entry.process.pid },
        }
    }
}

fn metrics(address: SocketAddr, at: MetricsFault) -> Report {
    let what = format!("cannot offer metrics at {address}");
    match at {
        MetricsFault::Remote => usage(what).help(OTHER_ADDRESS),
        MetricsFault::Address => fault(what).help(OTHER_ADDRESS),
        MetricsFault::Port => fault(what).help(
            "choose another port of 127.0.0.1; port 0 takes a free one, and `coulter list --json` \
             shows it",
        ),
    }
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
