//! An NBD client that says exactly what it is told to, right or wrong.

use coulter::service::BlockService;
use coulter_net::nbd::wire::{
    BASE_ALLOCATION, CHUNK_HEADER_SIZE, ChunkHeader, GREETING_SIZE, OPTION_REPLY_HEADER_SIZE,
    OptionHeader, OptionReplyHeader, ReplyHeader, RequestHeader, SIMPLE_REPLY_SIZE, chunk, command,
    option, option_reply,
};
use coulter_net::nbd::{Address, Export, Server, ServerOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A server of one export on a socket in `directory`.
pub fn serve(
    directory: &Path,
    service: &(impl BlockService + Clone + 'static),
    options: ServerOptions,
) -> Server {
    let address = Address::Unix(directory.join("nbd.sock"));
    Server::start(&address, vec![Export::new("", Arc::new(service.clone()))], options).unwrap()
}

/// One reply, of either form, as far as tests look at it.
#[derive(Debug, PartialEq, Eq)]
pub struct RawReply {
    /// The cookie of its request.
    pub cookie: u64,
    /// The error; 0 for none.
    pub error: u32,
    /// The kind of chunk; 0 for a simple reply.
    pub kind: u16,
    /// Everything after the header.
    pub body: Vec<u8>,
}

/// A connection to a server.
pub struct Raw {
    /// Its socket.
    pub stream: UnixStream,
}

impl Raw {
    /// Connected, the greeting read and nothing said.
    pub fn connect(server: &Server) -> Raw {
        let Address::Unix(path) = server.address() else { panic!("a unix socket") };
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut greeting = [0; GREETING_SIZE];
        stream.read_exact(&mut greeting).unwrap();
        Raw { stream }
    }

    /// Connected, the flags sent.
    pub fn flagged(server: &Server) -> Raw {
        let mut raw = Raw::connect(server);
        raw.send(&[0, 0, 0, 3]);
        raw
    }

    /// In the transmission phase.
    pub fn entered(server: &Server, structured: bool, context: bool) -> Raw {
        let mut raw = Raw::flagged(server);
        if structured {
            assert_eq!(raw.ask(option::STRUCTURED_REPLY, &[]), [option_reply::ACK]);
        }
        if context {
            let mut data = vec![0, 0, 0, 0, 0, 0, 0, 1];
            data.extend_from_slice(&(BASE_ALLOCATION.len() as u32).to_be_bytes());
            data.extend_from_slice(BASE_ALLOCATION.as_bytes());
            let replies = raw.ask(option::SET_META_CONTEXT, &data);
            assert_eq!(replies, [option_reply::META_CONTEXT, option_reply::ACK]);
        }
        let replies = raw.ask(option::GO, &[0; 6]);
        assert_eq!(replies, [option_reply::INFO, option_reply::INFO, option_reply::ACK]);
        raw
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends an option and returns the kinds of the replies.
    pub fn ask(&mut self, option: u32, data: &[u8]) -> Vec<u32> {
        let mut bytes = Vec::new();
        OptionHeader { option, length: data.len() as u32 }.encode(&mut bytes);
        bytes.extend_from_slice(data);
        self.send(&bytes);
        let mut kinds = Vec::new();
        loop {
            let mut header = [0; OPTION_REPLY_HEADER_SIZE];
            self.stream.read_exact(&mut header).unwrap();
            let header = OptionReplyHeader::decode(&header).unwrap();
            let mut body = vec![0; header.length as usize];
            self.stream.read_exact(&mut body).unwrap();
            kinds.push(header.kind);
            let error = header.kind & option_reply::ERROR_BIT != 0;
            if error || header.kind == option_reply::ACK {
                return kinds;
            }
        }
    }

    /// Sends a request without a payload.
    pub fn request(&mut self, flags: u16, command: u16, offset: u64, length: u32) {
        let header = RequestHeader { flags, command, cookie: 0x1234, offset, length };
        self.send(&header.encode());
    }

    /// The next reply; `read_length` is what a simple reply to a read carries.
    pub fn reply(&mut self, read_length: usize) -> RawReply {
        let mut bytes = vec![0; SIMPLE_REPLY_SIZE];
        self.stream.read_exact(&mut bytes).unwrap();
        if let Ok(Some((ReplyHeader::Simple(simple), _))) = ReplyHeader::decode(&bytes) {
            let mut body = vec![0; if simple.error == 0 { read_length } else { 0 }];
            self.stream.read_exact(&mut body).unwrap();
            return RawReply { cookie: simple.cookie, error: simple.error, kind: 0, body };
        }
        bytes.resize(CHUNK_HEADER_SIZE, 0);
        self.stream.read_exact(&mut bytes[SIMPLE_REPLY_SIZE..]).unwrap();
        let Ok(Some((ReplyHeader::Chunk(header), _))) = ReplyHeader::decode(&bytes) else {
            panic!("neither form of reply: {bytes:?}");
        };
        let ChunkHeader { flags, kind, cookie, length } = header;
        assert_eq!(flags, chunk::FLAG_DONE, "this server answers in one chunk");
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).unwrap();
        let is_error = kind & chunk::ERROR_BIT != 0;
        let error = if is_error { u32::from_be_bytes(*body.first_chunk().unwrap()) } else { 0 };
        RawReply { cookie, error, kind, body }
    }

    /// Sends a request and returns the error of its reply.
    pub fn error_of(&mut self, flags: u16, command: u16, offset: u64, length: u32) -> u32 {
        self.request(flags, command, offset, length);
        self.reply(if command == command::READ { length as usize } else { 0 }).error
    }

    /// Whether the server hangs up without another byte.
    pub fn ends_in_silence(mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Whether nothing is to be read for a moment.
    pub fn is_silent(&mut self) -> bool {
        let patience = self.stream.read_timeout().unwrap();
        self.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let found = self.stream.read(&mut [0]);
        self.stream.set_read_timeout(patience).unwrap();
        matches!(found, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Closes the direction to the server.
    pub fn half_close(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }
}

/// Waits until the server has no clients, as its threads end a little after their sockets.
pub fn wait_until_alone(server: &Server) {
    for _ in 0..1000 {
        if server.statistics().connections == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("clients are left: {:?}", server.statistics());
}
