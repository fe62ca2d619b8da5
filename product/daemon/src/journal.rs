//! The journal of systemd, in its own protocol: one datagram for each entry, of fields, on a socket
//! that is there if the journal is.
//!
//! A daemon in the background tells it what it writes to its own log, which a reboot empties. In
//! the foreground nothing is told: standard error is the journal's already under a unit, and
//! somebody's terminal elsewhere.

use crate::logging::Words;
use log::{Level, Record};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Where the journal listens.
pub(crate) const SOCKET: &str = "/run/systemd/journal/socket";
/// Bytes of one entry; what is longer is cut, for a longer datagram might be refused.
const ENTRY_SIZE_MAX: usize = 64 << 10;

/// The way to the journal.
pub(crate) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
    /// The volume that all entries are about.
    volume: String,
}

impl Journal {
    /// The journal that listens at `path`, if one does, for entries about `volume`.
    pub(crate) fn find(path: &Path, volume: &str) -> Option<Journal> {
        let socket = UnixDatagram::unbound().ok().filter(|_| path.exists())?;
        // A journal that does not read holds up no volume.
        socket.set_nonblocking(true).ok()?;
        Some(Journal { socket, path: path.to_owned(), volume: volume.to_owned() })
    }

    /// Tells it of `record`. What it does not take is lost to it.
    pub(crate) fn tell(&self, record: &Record<'_>) {
        // By path each time: a journal that starts anew listens on another socket.
        let _ = self.socket.send_to(&entry(record, &self.volume), &self.path);
    }
}

/// The fields of an entry.
fn entry(record: &Record<'_>, volume: &str) -> Vec<u8> {
    let mut message = record.args().to_string();
    let _ = record.key_values().visit(&mut Words(&mut message));
    let pid = std::process::id().to_string();
    let mut bytes = Vec::new();
    field(&mut bytes, "MESSAGE", &message);
    field(&mut bytes, "PRIORITY", priority(record.level()));
    field(&mut bytes, "SYSLOG_IDENTIFIER", "coulter");
    field(&mut bytes, "SYSLOG_PID", &pid);
    field(&mut bytes, "COULTER_VOLUME", volume);
    field(&mut bytes, "COULTER_MODULE", record.target());
    bytes
}

/// One field: on a line, or, with a line end in it, behind its length.
fn field(bytes: &mut Vec<u8>, name: &str, value: &str) {
    assert!(!name.contains(['\n', '=']), "{name}: no name of a field");
    let mut end = value.len().min(ENTRY_SIZE_MAX);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let value = &value.as_bytes()[..end];
    bytes.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value);
    bytes.push(b'\n');
}

/// As syslog numbers them.
fn priority(level: Level) -> &'static str {
    match level {
        Level::Error => "3",
        Level::Warn => "4",
        Level::Info => "6",
        Level::Debug | Level::Trace => "7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::kv::Value;

    #[test]
    fn an_entry_comes_to_the_journal_field_by_field() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("socket");
        assert!(Journal::find(&path, "disk").is_none(), "there is none");
        let listener = UnixDatagram::bind(&path).expect("the directory is writable");
        let journal = Journal::find(&path, "disk").expect("it is there");
        let pairs: [(&str, Value<'_>); 1] = [("error", "no room".into())];
        let mut record = Record::builder();
        record.level(Level::Error).target("coulter::serving").key_values(&pairs);
        journal.tell(&record.args(format_args!("two\nlines")).build());
        let mut bytes = [0; 1024];
        let size = listener.recv(&mut bytes).expect("it was sent");
        let text = b"MESSAGE\n\x17\0\0\0\0\0\0\0two\nlines error=no room\nPRIORITY=3\n";
        assert!(bytes[..size].starts_with(text), "{:?}", String::from_utf8_lossy(&bytes[..size]));
        let rest = String::from_utf8_lossy(&bytes[..size]).into_owned();
        for field in ["SYSLOG_IDENTIFIER=coulter\n", "COULTER_VOLUME=disk\n"] {
            assert!(rest.contains(field), "{rest}");
        }
    }

    #[test]
    fn a_journal_that_does_not_read_holds_up_nobody() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("socket");
        let listener = UnixDatagram::bind(&path).expect("the directory is writable");
        let journal = Journal::find(&path, "disk").expect("it is there");
        let record = Record::builder().args(format_args!("words")).build();
        (0..10_000).for_each(|_| journal.tell(&record));
        drop(listener);
        journal.tell(&record);
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        let mut bytes = Vec::new();
        field(&mut bytes, "MESSAGE", &"ä".repeat(ENTRY_SIZE_MAX));
        assert!(bytes.len() <= ENTRY_SIZE_MAX + 16);
        assert!(std::str::from_utf8(&bytes).is_ok());
    }
}
