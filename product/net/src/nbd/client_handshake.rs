//! The client's side of the negotiation, waiting for each answer until a deadline.

use super::dial::{ClientError, ClientOptions};
use super::handshake::OPTION_SKIP_MAX;
use super::wire::{
    BASE_ALLOCATION, Cursor, GREETING_MAGIC, GREETING_SIZE, OPTION_MAGIC, OPTION_REPLY_HEADER_SIZE,
    OptionHeader, OptionReplyHeader, handshake_flag, info, option, option_reply as reply,
};
use crate::Malformed;
use crate::socket::{receive_exactly, send_all};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// The terms that a server offers for an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Bytes of the export.
    pub size: u64,
    /// Its transmission flags.
    pub flags: u16,
    /// Least, preferred and greatest length of a request, if it said.
    pub block_sizes: Option<[u32; 3]>,
    /// True if replies come in chunks.
    pub structured_replies: bool,
    /// The number of `base:allocation`, if it has it.
    pub context: Option<u32>,
}

/// Replies to one option, at most; no sane server has more exports.
const REPLY_COUNT_MAX: usize = 4096;

/// Negotiates over a connected socket until `deadline`.
///
/// # Errors
/// When the server fails, speaks another protocol, or refuses the export.
pub fn negotiate(
    socket: &OwnedFd,
    options: &ClientOptions,
    deadline: Instant,
) -> Result<Terms, ClientError> {
    let mut dialogue = Dialogue { socket, deadline };
    dialogue.greet()?;
    let mut terms = Terms::default();
    if options.structured_replies {
        let answers = dialogue.ask(option::STRUCTURED_REPLY, &[])?;
        terms.structured_replies = matches!(answers.end, End::Acknowledged);
    }
    if terms.structured_replies {
        let data = context_data(&options.export);
        let answers = dialogue.ask(option::SET_META_CONTEXT, &data)?;
        terms.context = answers.replies.iter().find_map(|(kind, data)| {
            let mut cursor = Cursor(data);
            let id = cursor.u32()?;
            let named = *kind == reply::META_CONTEXT && cursor.0 == BASE_ALLOCATION.as_bytes();
            named.then_some(id)
        });
    }
    let answers = dialogue.ask(option::GO, &go_data(&options.export))?;
    if let End::Refused(kind, text) = answers.end {
        return Err(ClientError::Refused { kind, text });
    }
    let mut described = false;
    for (_, data) in answers.replies.iter().filter(|(kind, _)| *kind == reply::INFO) {
        described |= read_info(data, &mut terms)?;
    }
    if described { Ok(terms) } else { Err(Malformed("the server did not say its size").into()) }
}

/// Takes one item over; whether it was the one that must be there.
fn read_info(data: &[u8], terms: &mut Terms) -> Result<bool, Malformed> {
    let malformed = Malformed("an item of information is cut short");
    let mut cursor = Cursor(data);
    match cursor.u16().ok_or(malformed)? {
        info::EXPORT => {
            terms.size = cursor.u64().ok_or(malformed)?;
            terms.flags = cursor.u16().ok_or(malformed)?;
            Ok(true)
        }
        info::BLOCK_SIZE => {
            let mut next = || cursor.u32().ok_or(malformed);
            terms.block_sizes = Some([next()?, next()?, next()?]);
            Ok(false)
        }
        _ => Ok(false),
    }
}

fn go_data(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    data
}

fn context_data(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&1u32.to_be_bytes());
    data.extend_from_slice(&(BASE_ALLOCATION.len() as u32).to_be_bytes());
    data.extend_from_slice(BASE_ALLOCATION.as_bytes());
    data
}

struct Dialogue<'a> {
    socket: &'a OwnedFd,
    deadline: Instant,
}

struct Answers {
    replies: Vec<(u32, Vec<u8>)>,
    end: End,
}

enum End {
    Acknowledged,
    Refused(u32, String),
}

impl Dialogue<'_> {
    fn greet(&mut self) -> Result<(), ClientError> {
        let mut greeting = [0; GREETING_SIZE];
        self.receive(&mut greeting)?;
        let mut cursor = Cursor(&greeting);
        let magics = (cursor.u64(), cursor.u64());
        let flags = cursor.u16().unwrap_or(0);
        if magics != (Some(GREETING_MAGIC), Some(OPTION_MAGIC)) {
            return Err(Malformed("no newstyle NBD server answers there").into());
        }
        if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(Malformed("the server does not speak fixed newstyle").into());
        }
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        self.send(&u32::from(flags & known).to_be_bytes())
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> Result<Answers, ClientError> {
        let mut bytes = Vec::new();
        OptionHeader { option, length: data.len() as u32 }.encode(&mut bytes);
        bytes.extend_from_slice(data);
        self.send(&bytes)?;
        let mut replies = Vec::new();
        for _ in 0..REPLY_COUNT_MAX {
            let mut header = [0; OPTION_REPLY_HEADER_SIZE];
            self.receive(&mut header)?;
            let header = OptionReplyHeader::decode(&header)?;
            if header.option != option || header.length > OPTION_SKIP_MAX {
                return Err(Malformed("a reply to something else, or one far too long").into());
            }
            let mut data = vec![0; header.length as usize];
            self.receive(&mut data)?;
            if header.kind == reply::ACK {
                return Ok(Answers { replies, end: End::Acknowledged });
            }
            if header.kind & reply::ERROR_BIT != 0 {
                let text = String::from_utf8_lossy(&data).into_owned();
                return Ok(Answers { replies, end: End::Refused(header.kind, text) });
            }
            replies.push((header.kind, data));
        }
        Err(Malformed("endless replies").into())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        send_all(self.socket, bytes, self.deadline, None).map_err(ClientError::Io)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), ClientError> {
        receive_exactly(self.socket, bytes, self.deadline).map_err(ClientError::Io)
    }
}
