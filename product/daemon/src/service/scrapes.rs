//! Answers Prometheus: a thread with a port on the loopback, nothing but `GET /metrics`.
//!
//! It asks the daemon over the control socket as any command does, so that a slow or silent scraper
//! never keeps the daemon from hearing anything.
//!
//! # Invariants
//! - Only loopback addresses are listened on: there is no password.
//! - A scraper that is slow to ask, or to take the answer, keeps no other one waiting: nothing is
//!   read that is not there yet, nothing is sent that there is no room for.
//! - At most [`SCRAPERS_MAX`] scrapers, each for [`PATIENCE`] to ask and [`PATIENCE`] to take the
//!   answer, with [`REQUEST_SIZE_MAX`] bytes of a request and one answer. Another one takes the
//!   place of the oldest, first of those that have not asked.

use crate::error::{DaemonError, Error, MetricsFault};
use crate::life::state::{Entry, StateDirectory};
use crate::service::control::{self, Reply, Request};
use crate::service::metrics;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time that a scraper has to ask, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a request at most.
const REQUEST_SIZE_MAX: usize = 8 << 10;

/// Most scrapers at a time.
const SCRAPERS_MAX: usize = 16;

/// Pause after the system could not accept a scraper, for instance for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where this process answers. It serves one thing at a time, but may begin again after it failed
/// to become another program.
static ANSWERING: OnceLock<SocketAddr> = OnceLock::new();

/// Whether this process answers at `address` already.
pub(crate) fn is_answering(address: SocketAddr) -> bool {
    ANSWERING.get() == Some(&address)
}

/// A port that nobody has asked yet.
pub(crate) struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Takes the port at `address`; with port 0 one that is free.
    ///
    /// # Errors
    /// [`DaemonError::Metrics`] when it is in use, or may not be used, or others could reach it.
    pub(crate) fn take(address: SocketAddr) -> Result<Port, Error> {
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
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on, for as long as the process lives.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn answer(self, state: &StateDirectory, entry: &Entry) -> Result<(), Error> {
        assert!(self.address.ip().is_loopback(), "no other machine reaches it");
        assert_ne!(self.address.port(), 0, "the port was chosen when it was taken");
        let (state, entry, address) = (state.clone(), entry.clone(), self.address);
        let failed = |source: io::Error| {
            let reason = source.to_string();
            Error::from(DaemonError::Metrics { address, reason, fault: MetricsFault::Port })
        };
        let thread = std::thread::Builder::new().name("coulter-metrics".to_owned());
        let mut scrapes = Scrapes { listener: self.listener, scrapers: Vec::new() };
        scrapes.listener.set_nonblocking(true).map_err(failed)?;
        let mut page = move || match control::ask(&state, &entry, &Request::Status) {
            Ok(Reply::Status(facts)) => response("200 OK", &metrics::render(&facts)),
            _ => response("503 Service Unavailable", "the volume does not answer\n"),
        };
        let body = move || {
            loop {
                scrapes.turn(&mut page);
            }
        };
        let spawned = thread.spawn(body).map(|_| {
            let _ = ANSWERING.set(address);
        });
        spawned.map_err(failed)
    }
}

/// The port, and who has come to it.
struct Scrapes {
    listener: TcpListener,
    /// In the order in which they came.
    scrapers: Vec<Scraper>,
}

/// A connection.
struct Scraper {
    stream: TcpStream,
    stage: Stage,
    /// When it must have come to the next stage, or be gone.
    until: Instant,
}

enum Stage {
    /// The request, as far as it has been read.
    Asking(Vec<u8>),
    /// Its answer, and how much of that it has.
    Taking(Vec<u8>, usize),
}

impl Scrapes {
    /// Waits until something can go on, and lets it. `page` makes the answer to those that ask for
    /// metrics, once for all that do at the same time.
    fn turn(&mut self, page: &mut dyn FnMut() -> Vec<u8>) {
        self.wait();
        self.accept();
        let mut content = None;
        let mut page = || content.get_or_insert_with(&mut *page).clone();
        self.scrapers.retain_mut(|scraper| match scraper.go_on(&mut page) {
            Ok(is_done) => !is_done,
            Err(error) => {
                log::debug!(error:%; "a scraper went away");
                false
            }
        });
    }

    fn wait(&self) {
        let mut sources = vec![PollFd::new(&self.listener, PollFlags::IN)];
        sources.extend(self.scrapers.iter().map(|scraper| {
            let flags = match scraper.stage {
                Stage::Asking(_) => PollFlags::IN,
                Stage::Taking(..) => PollFlags::OUT,
            };
            PollFd::new(&scraper.stream, flags)
        }));
        let until = self.scrapers.iter().map(|scraper| scraper.until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // An interrupted or failed sleep only means one more turn.
        let _ = poll(&mut sources, left.as_ref());
    }

    /// Lets all in who have come.
    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => stream,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            };
            if self.scrapers.len() == SCRAPERS_MAX {
                let asks = |scraper: &Scraper| matches!(scraper.stage, Stage::Asking(_));
                let oldest = self.scrapers.iter().position(asks).unwrap_or(0);
                self.scrapers.remove(oldest);
            }
            let until = Instant::now() + PATIENCE;
            self.scrapers.push(Scraper { stream, stage: Stage::Asking(Vec::new()), until });
            assert!(self.scrapers.len() <= SCRAPERS_MAX, "more scrapers are heard than may be");
        }
    }
}

impl Scraper {
    /// Reads or sends what can be at once; whether all is done.
    fn go_on(&mut self, page: &mut dyn FnMut() -> Vec<u8>) -> io::Result<bool> {
        if let Stage::Asking(head) = &mut self.stage {
            if !read_head(&mut self.stream, head)? {
                return self.in_time();
            }
            let answer = match answer_to(head) {
                Ok(()) => page(),
                Err(status) => response(status, "only GET /metrics is answered\n"),
            };
            self.stage = Stage::Taking(answer, 0);
            self.until = Instant::now() + PATIENCE;
        }
        let Stage::Taking(answer, sent) = &mut self.stage else { unreachable!("it has asked") };
        assert!(*sent <= answer.len(), "more was sent than there is");
        while *sent < answer.len() {
            match self.stream.write(&answer[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.in_time(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// It is not done, and may have time left.
    fn in_time(&self) -> io::Result<bool> {
        match Instant::now() < self.until {
            true => Ok(false),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }
}

fn response(status: &str, content: &str) -> Vec<u8> {
    let length = content.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    (head + content).into_bytes()
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

/// Reads what is there, up to the empty line behind a request's fields; whether that is there.
fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 1024];
    assert!(head.len() <= REQUEST_SIZE_MAX + buffer.len(), "it was to be hung up on before");
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() >= REQUEST_SIZE_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
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

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

    /// Answers with this page until the test ends; where.
    fn answering(page: Vec<u8>) -> SocketAddr {
        let port = Port::take("127.0.0.1:0".parse().expect("an address")).expect("one is free");
        port.listener.set_nonblocking(true).expect("it is a socket");
        let mut scrapes = Scrapes { listener: port.listener, scrapers: Vec::new() };
        std::thread::spawn(move || {
            loop {
                scrapes.turn(&mut || page.clone());
                assert!(scrapes.scrapers.len() <= SCRAPERS_MAX);
            }
        });
        port.address
    }

    fn connected(address: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it is a socket");
        stream.write_all(bytes).expect("it is taken");
        stream
    }

    fn page_of(mut stream: TcpStream) -> Vec<u8> {
        let mut answer = Vec::new();
        // Bytes left unread at the other end turn the end of the answer into an error.
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    #[test]
    fn scrapers_that_are_silent_slow_or_never_read_delay_no_other() {
        // More than sockets hold.
        let address = answering(response("200 OK", &"x".repeat(32 << 20)));
        let deaf: Vec<TcpStream> = (0..SCRAPERS_MAX / 2).map(|_| connected(address, GET)).collect();
        let part = &GET[..GET.len() - 1];
        let mute: Vec<TcpStream> = (0..SCRAPERS_MAX)
            .map(|index| connected(address, if index % 2 == 0 { b"" } else { part }))
            .collect();
        let start = Instant::now();
        let page = page_of(connected(address, b"GET /other HTTP/1.1\r\n\r\n"));
        assert!(page.starts_with(b"HTTP/1.1 404"), "{page:?}");
        // One after the other they would take eight times as long.
        assert!(start.elapsed() < 3 * PATIENCE, "{:?}", start.elapsed());
        for silent in deaf.into_iter().chain(mute) {
            page_of(silent);
        }
        let page = page_of(connected(address, GET));
        assert!(page.len() > 32 << 20, "{} bytes", page.len());
    }

    #[test]
    fn those_that_are_silent_or_say_too_much_are_hung_up_on() {
        let address = answering(response("200 OK", "page\n"));
        let start = Instant::now();
        let silent = connected(address, b"GET");
        assert_eq!(page_of(silent), b"");
        assert!(start.elapsed() < 5 * PATIENCE, "{:?}", start.elapsed());
        for nonsense in [vec![0; 2 * REQUEST_SIZE_MAX], b"GET".repeat(REQUEST_SIZE_MAX)] {
            let stream = TcpStream::connect(address).expect("it listens");
            // It may hang up before it has all.
            let _ = (&stream).write_all(&nonsense);
            assert_eq!(page_of(stream), b"");
        }
        for cut in 0..GET.len() {
            drop(connected(address, &GET[..cut]));
        }
        assert!(page_of(connected(address, GET)).ends_with(b"page\n"));
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
