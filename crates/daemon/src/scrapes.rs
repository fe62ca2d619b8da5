//! Answers Prometheus: a thread with a port on the loopback, nothing but `GET /metrics`.
//!
//! It asks the daemon over the control socket as any command does, so that a slow or silent scraper
//! never keeps the daemon from hearing anything.
//!
//! # Invariants
//! - Only loopback addresses are listened on: there is no password.
//! - One scraper at a time, [`PATIENCE`] for each, [`REQUEST_SIZE_MAX`] of it.

use crate::control::{self, Reply, Request};
use crate::error::{DaemonError, Error, MetricsFault};
use crate::metrics;
use crate::state::{Entry, StateDirectory};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time that a scraper has to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a request at most.
const REQUEST_SIZE_MAX: usize = 8 << 10;

/// Where this process answers. It serves one thing at a time, but may begin again after it failed to
/// become another program.
static ANSWERING: OnceLock<SocketAddr> = OnceLock::new();

/// Whether this process answers at `address` already.
pub(super) fn is_answering(address: SocketAddr) -> bool {
    ANSWERING.get() == Some(&address)
}

/// A port that nobody has asked yet.
pub(super) struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Takes the port at `address`; with port 0 one that is free.
    ///
    /// # Errors
    /// [`DaemonError::Metrics`] when it is in use, or may not be used, or others could reach it.
    pub(super) fn take(address: SocketAddr) -> Result<Port, Error> {
        let failed = |reason: String, fault| DaemonError::Metrics { address, reason, fault };
        if !address.ip().is_loopback() {
            let reason = "others could reach it, and there is no password".to_owned();
            return Err(failed(reason, MetricsFault::Remote).into());
        }
        let bound = TcpListener::bind(address).and_then(|listener| {
            let address = listener.local_addr()?;
            Ok(Port { listener, address })
        });
        bound.map_err(|source| {
            let (reason, fault) = match source.kind() {
                io::ErrorKind::AddrInUse => ("the port is in use".to_owned(), MetricsFault::Port),
                io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported => {
                    ("this machine has no such address".to_owned(), MetricsFault::Address)
                }
                _ => (source.to_string(), MetricsFault::Port),
            };
            failed(reason, fault).into()
        })
    }

    /// Where it is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on, for as long as the process lives.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(super) fn answer(self, state: &StateDirectory, entry: &Entry) -> Result<(), Error> {
        let (state, entry, address) = (state.clone(), entry.clone(), self.address);
        let thread = std::thread::Builder::new().name("coulter-metrics".to_owned());
        let body = move || {
            for stream in self.listener.incoming().flatten() {
                if let Err(error) = serve(stream, &state, &entry) {
                    log::debug!(error:%; "a scraper went away");
                }
            }
        };
        let spawned = thread.spawn(body).map(|_| {
            let _ = ANSWERING.set(address);
        });
        spawned.map_err(|source| {
            let reason = source.to_string();
            DaemonError::Metrics { address, reason, fault: MetricsFault::Port }.into()
        })
    }
}

fn serve(mut stream: TcpStream, state: &StateDirectory, entry: &Entry) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let head = read_head(&mut stream, end)?;
    let (status, content) = match answer_to(&head) {
        Ok(()) => match control::ask(state, entry, &Request::Status) {
            Ok(Reply::Status(facts)) => ("200 OK", metrics::render(&facts)),
            _ => ("503 Service Unavailable", "the volume does not answer\n".to_owned()),
        },
        Err(status) => (status, "only GET /metrics is answered\n".to_owned()),
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = content.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{content}"
    )
}

/// Whether the request is one that is answered; else the status that says it is not.
fn answer_to(head: &[u8]) -> Result<(), &'static str> {
    let head = std::str::from_utf8(head).map_err(|_| "400 Bad Request")?;
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next());
    let path = target.and_then(|target| target.split('?').next());
    match (method, path) {
        (Some("GET"), Some("/metrics")) => Ok(()),
        (Some("GET"), Some(_)) => Err("404 Not Found"),
        (Some(_), Some(_)) => Err("405 Method Not Allowed"),
        _ => Err("400 Bad Request"),
    }
}

/// Reads up to the empty line behind a request's fields.
fn read_head(stream: &mut TcpStream, end: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() >= REQUEST_SIZE_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&buffer[..count]);
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_page_is_there() {
        assert_eq!(answer_to(b"GET /metrics HTTP/1.1\r\n\r\n"), Ok(()));
        assert_eq!(answer_to(b"GET /metrics?x=1 HTTP/1.1\r\n\r\n"), Ok(()));
        assert_eq!(answer_to(b"GET / HTTP/1.1\r\n\r\n"), Err("404 Not Found"));
        assert_eq!(answer_to(b"POST /metrics HTTP/1.1\r\n\r\n"), Err("405 Method Not Allowed"));
        for nonsense in [&b"\r\n\r\n"[..], b"\xff\r\n\r\n", b"GET\r\n\r\n"] {
            assert_eq!(answer_to(nonsense), Err("400 Bad Request"));
        }
    }

    #[test]
    fn a_port_is_taken_once_and_only_on_the_loopback() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let port = Port::take(any).expect("some port is free");
        let again = Port::take(port.address()).err().expect("it is in use");
        assert!(again.to_string().contains("in use"), "{again}");
        let open = "0.0.0.0:0".parse().expect("an address");
        assert_eq!(Port::take(open).err().expect("refused").report().exit_code, 2);
    }

    #[test]
    fn the_advice_is_about_what_is_at_fault() {
        let any = "127.0.0.1:0".parse().expect("an address");
        let port = Port::take(any).expect("some port is free");
        let open = "192.0.2.1:0".parse().expect("an address");
        for (address, advice) in [(port.address(), "another port"), (open, "another address")] {
            let error = Port::take(address).err().expect("it cannot be had").to_string();
            assert!(error.contains(advice), "{error}");
        }
    }
}
