//! The control socket: clients come, say what they want in one line, and wait for the answer.
//!
//! # Invariants
//! - A client that is slow to speak, or never does, keeps no other one waiting: nothing is read
//!   that is not there yet.
//! - At most [`SPEAKERS_MAX`] clients that have not spoken, each for [`PATIENCE`] and with
//!   [`LINE_SIZE_MAX`] bytes; whoever comes above that takes the place of the one that came first.
//! - A client has [`PATIENCE`] to take its answer, and no more in all.

use crate::error::Error;
use crate::service::control::{self, LINE_SIZE_MAX, PATIENCE, Reply, Request};
use coulter_system::private;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Most clients that are heard at once.
pub(crate) const SPEAKERS_MAX: usize = 16;

/// Bytes of an answer that are written at a time.
const PIECE_SIZE: usize = 32 << 10;

const _: () = assert!(SPEAKERS_MAX > 0, "no client would be heard");
const _: () = assert!(PIECE_SIZE > 0, "an answer would never end");

/// A command that waits for an answer.
pub(crate) struct Client {
    stream: UnixStream,
}

impl Client {
    /// Its connection, for another program that will answer.
    pub(crate) fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// A client whose connection another program has left.
    pub(crate) fn resume(stream: UnixStream) -> Client {
        Client { stream }
    }

    /// Answers; a client that has gone away is no concern of ours.
    pub(crate) fn answer(mut self, reply: &Reply) {
        let until = Instant::now() + PATIENCE;
        if let Err(error) =
            control::write_line(&mut Hurried { stream: &mut self.stream, until }, reply)
        {
            log::debug!("nobody took the answer: {error}");
        }
    }
}

/// A connection that takes bytes until then.
struct Hurried<'a> {
    stream: &'a mut UnixStream,
    until: Instant,
}

impl Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_write_timeout(Some(left))?;
        // The time begins anew with each part that the socket takes of one call.
        self.stream.write(&bytes[..bytes.len().min(PIECE_SIZE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket, and who has come to it.
pub(crate) struct Requests {
    listener: UnixListener,
    path: PathBuf,
    /// In the order in which they came.
    speakers: Vec<Speaker>,
}

/// A client that has not said all yet.
struct Speaker {
    stream: UnixStream,
    line: Vec<u8>,
    came: Instant,
}

impl Requests {
    /// Listens at `path`, which the caller has made sure nobody else uses.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn listen(path: &Path) -> Result<Requests, Error> {
        let failed = |source| Error::io("make the control socket", path, source);
        // A dead daemon's goes; anything but a socket stays, and is in the way.
        match std::fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_socket() => {
                std::fs::remove_file(path).map_err(failed)?;
            }
            _ => {}
        }
        let listener = private::listen(path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Requests { listener, path: path.to_owned(), speakers: Vec::new() })
    }

    /// Listens at the same path again if somebody has deleted the socket. Gives back whether it was
    /// gone.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn restore(&mut self) -> Result<bool, Error> {
        if self.path.exists() {
            return Ok(false);
        }
        self.listener = Requests::listen(&self.path)?.listener;
        Ok(true)
    }

    /// What to wait on.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let speakers = self.speakers.iter().map(|speaker| speaker.stream.as_fd());
        let sources = [self.listener.as_fd()].into_iter().chain(speakers);
        sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN))
    }

    /// A request that is there in whole, if one is.
    pub(crate) fn next(&mut self) -> Option<(Request, Client)> {
        self.accept();
        let mut index = 0;
        while index < self.speakers.len() {
            match self.speakers[index].listen() {
                Ok(None) => index += 1,
                Ok(Some(request)) => match self.speakers.remove(index).into_client() {
                    Ok(client) => return Some((request, client)),
                    Err(error) => turned_away(&error),
                },
                Err(error) => {
                    self.speakers.remove(index);
                    turned_away(&error);
                }
            }
        }
        None
    }

    /// Lets all in who have come.
    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.speakers.len() == SPEAKERS_MAX {
                self.speakers.remove(0);
                turned_away(&io::Error::new(io::ErrorKind::TimedOut, "others came"));
            }
            self.speakers.push(Speaker { stream, line: Vec::new(), came: Instant::now() });
        }
        assert!(self.speakers.len() <= SPEAKERS_MAX, "more clients are heard than may be");
    }
}

impl Speaker {
    /// What it wants, once it has said so.
    ///
    /// # Errors
    /// When it says nothing for too long, or what it says is no request.
    fn listen(&mut self) -> io::Result<Option<Request>> {
        let room = LINE_SIZE_MAX - self.line.len() as u64;
        let heard = (&self.stream).take(room).read_to_end(&mut self.line);
        assert!(self.line.len() as u64 <= LINE_SIZE_MAX, "more was read than one line may have");
        match heard {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !self.line.contains(&b'\n') {
                    return match self.came.elapsed() > PATIENCE {
                        true => Err(io::ErrorKind::TimedOut.into()),
                        false => Ok(None),
                    };
                }
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        control::read_line(&self.line[..]).map(Some)
    }

    /// With its request heard, it waits for the answer.
    fn into_client(self) -> io::Result<Client> {
        self.stream.set_nonblocking(false)?;
        Ok(Client { stream: self.stream })
    }
}

fn turned_away(error: &io::Error) {
    log::warn!(error:%; "a client of the control socket was turned away");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{Timespec, poll};
    use tempfile::TempDir;

    fn listening() -> (TempDir, PathBuf, Requests) {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("sock");
        let requests = Requests::listen(&path).expect("the directory is writable");
        (directory, path, requests)
    }

    /// A client that has said this much.
    fn client(path: &Path, text: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(path).expect("somebody listens");
        stream.write_all(text).expect("the socket takes it");
        stream
    }

    fn line(request: &Request) -> Vec<u8> {
        let mut line = Vec::new();
        control::write_line(&mut line, request).expect("it is JSON");
        line
    }

    const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

    /// What is asked next; `None` if nothing more comes for a moment.
    fn heard(requests: &mut Requests) -> Option<Request> {
        loop {
            if let Some((request, _)) = requests.next() {
                return Some(request);
            }
            let mut sources: Vec<_> = requests.sources().collect();
            if poll(&mut sources, Some(&WAIT)) == Ok(0) {
                return None;
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_client_that_says_nothing() {
        let (_directory, path, mut requests) = listening();
        let silent = client(&path, b"");
        let halting = client(&path, b"{\"request\":");
        let start = Instant::now();
        for request in [Request::Status, Request::FirstData] {
            let asking = client(&path, &line(&request));
            assert_eq!(heard(&mut requests), Some(request));
            drop(asking);
        }
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        (&halting).write_all(b"\"status\"}\n").expect("it is still listened to");
        assert_eq!(heard(&mut requests), Some(Request::Status));
        assert_eq!(requests.speakers.len(), 1, "the silent one may still speak");
        drop(silent);
        assert_eq!(heard(&mut requests), None);
        assert!(requests.speakers.is_empty());
    }

    #[test]
    fn a_socket_that_somebody_deleted_is_made_again() {
        let (_directory, path, mut requests) = listening();
        assert!(!requests.restore().expect("it is there"));
        std::fs::remove_file(&path).expect("it is there");
        assert!(requests.restore().expect("the directory is writable"));
        let _asking = client(&path, &line(&Request::Status));
        assert_eq!(heard(&mut requests), Some(Request::Status));
    }

    #[test]
    fn a_crowd_of_silent_clients_keeps_nobody_out() {
        let (_directory, path, mut requests) = listening();
        let mut crowd: Vec<UnixStream> =
            (0..4 * SPEAKERS_MAX).map(|_| client(&path, b"{")).collect();
        crowd.push(client(&path, &line(&Request::Status)));
        assert_eq!(heard(&mut requests), Some(Request::Status));
        assert_eq!(requests.speakers.len(), SPEAKERS_MAX - 1);
    }

    #[test]
    fn a_client_that_is_silent_for_too_long_is_turned_away() {
        let (_directory, path, mut requests) = listening();
        let _silent = client(&path, b"{");
        assert_eq!(heard(&mut requests), None);
        let came = &mut requests.speakers[0].came;
        *came = came.checked_sub(PATIENCE).expect("the machine runs for longer");
        assert!(requests.next().is_none());
        assert!(requests.speakers.is_empty());
    }

    #[test]
    fn nonsense_is_turned_away_and_the_next_is_heard() {
        let (_directory, path, mut requests) = listening();
        let _crowd = [&b"\n"[..], b"{}\n", b"{\"request\":\"format\"}\n", b"\xff\xfe\n", b"[[[[\n"]
            .map(|text| client(&path, text));
        let _asking = client(&path, &line(&Request::Status));
        assert_eq!(heard(&mut requests), Some(Request::Status));
        assert_eq!(heard(&mut requests), None);
        assert!(requests.speakers.is_empty());
    }

    #[test]
    fn a_client_that_never_takes_its_answer_is_waited_for_only_so_long() {
        let (_directory, path, mut requests) = listening();
        let mut slow = client(&path, &line(&Request::Status));
        let (_, client) = requests.next().expect("it has asked");
        // It takes a little of it at a time, and never all.
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while slow.read(&mut piece).is_ok_and(|count| count > 0) {
                std::thread::sleep(PATIENCE / 100);
            }
        });
        let what = "x".repeat(32 << 20);
        let report = coulter_terminal::Report { what, why: None, help: None, exit_code: 1 };
        let start = Instant::now();
        client.answer(&Reply::Failed(report));
        assert!(start.elapsed() < 2 * PATIENCE, "{:?}", start.elapsed());
        reader.join().expect("no panic");
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let (_directory, path, mut requests) = listening();
        let endless = client(&path, b"");
        endless.set_nonblocking(true).expect("it is a socket");
        let start = Instant::now();
        while (&endless).write(&[b'x'; 4096]).is_ok_and(|size| size > 0)
            || requests.next().is_none() && !requests.speakers.is_empty()
        {
            assert!(start.elapsed() < 2 * PATIENCE, "it is listened to for ever");
        }
        assert!(requests.speakers.is_empty());
    }
}
