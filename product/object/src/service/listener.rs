//! Takes connections on this machine, each on a thread of its own, and ends them all when it is dropped.

use super::http::Message;
use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What becomes of a request.
pub(super) enum Reply {
    /// An answer.
    Whole(Message),
    /// The first bytes of an answer; then the connection ends.
    Part(Vec<u8>),
}

/// Answers requests.
pub(super) trait Handler: Send + Sync + 'static {
    /// Answers one.
    fn handle(&self, request: Message) -> Reply;
}

#[derive(Debug, Default)]
struct Connections {
    is_over: bool,
    /// Those that are open, by number.
    streams: BTreeMap<u64, TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Listener {
    address: SocketAddr,
    connections: Arc<Mutex<Connections>>,
    thread: Option<JoinHandle<()>>,
}

fn lock(connections: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    /// Listens on a free port of this machine.
    pub(super) fn start(handler: impl Handler) -> io::Result<Listener> {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = socket.local_addr()?;
        let connections = Arc::<Mutex<Connections>>::default();
        let known = connections.clone();
        let handler = Arc::new(handler);
        let thread = std::thread::spawn(move || accept(&socket, &known, &handler));
        Ok(Listener { address, connections, thread: Some(thread) })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn accept<H: Handler>(
    socket: &TcpListener,
    connections: &Arc<Mutex<Connections>>,
    handler: &Arc<H>,
) {
    for (number, stream) in (0..).zip(socket.incoming()) {
        let Ok(stream) = stream else { continue };
        let Ok(handle) = stream.try_clone() else { continue };
        let mut known = lock(connections);
        if known.is_over {
            return;
        }
        // Thousands of connections come and go while a bucket is probed: what has ended is let go.
        known.threads.retain(|thread| !thread.is_finished());
        known.streams.insert(number, handle);
        let (handler, connections) = (handler.clone(), connections.clone());
        known.threads.push(std::thread::spawn(move || {
            // A client that goes away in the middle is its own affair.
            let _ = serve(&stream, &*handler);
            let _ = stream.shutdown(Shutdown::Both);
            lock(&connections).streams.remove(&number);
        }));
    }
}

fn serve(stream: &TcpStream, handler: &impl Handler) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = Message::read(&mut reader)? {
        match handler.handle(request) {
            Reply::Whole(answer) => answer.write(&mut writer)?,
            Reply::Part(bytes) => return writer.write_all(&bytes),
        }
    }
    Ok(())
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut known = lock(&self.connections);
        known.is_over = true;
        for stream in std::mem::take(&mut known.streams).into_values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut known.threads);
        drop(known);
        // So that the thread that accepts looks up.
        let _ = TcpStream::connect(self.address);
        for thread in threads.into_iter().chain(self.thread.take()) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}
