//! PDUs in and out of a connection's bytes. It knows their layout and their digests, and nothing of
//! what commands mean.
//!
//! # Invariants
//! - No bytes make it panic: what has no meaning is a [`Fatal`], which ends the connection.
//! - A header is shown whole, with the right digest, and again until it is consumed. Its data is then
//!   taken into a buffer, or dropped, before the next header is shown.

use coulter::buffer::Buffer;
use coulter_net::{Outgoing, Receiver};
use coulter_nvme::digest::{DIGEST_SIZE, crc32c};
use coulter_nvme::tcp::{self, Digests, Fatal, Header, IcReq, IcResp, flag, kind};
use coulter_nvme::{Cqe, Sqe};
use std::ops::Range;

/// Bytes of data in one PDU of the host.
pub(super) const DATA_SIZE_MAX: u32 = 1 << 20;
/// Bytes of data in a capsule of an I/O queue.
pub(super) const IN_CAPSULE_SIZE: u32 = 16 << 10;
/// Bytes of data in a capsule of the admin queue, or with a Fabrics command.
pub(super) const ADMIN_IN_CAPSULE_SIZE: u32 = 8 << 10;

/// A PDU that has arrived, but for its data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pdu {
    /// A command, with the number of data bytes in its capsule.
    Command(Sqe, u32),
    /// Data that was asked for; whether it is the last.
    Data(tcp::Data, bool),
    /// The host cannot go on.
    Term,
}

pub(super) struct Pdus {
    pub(super) receiver: Receiver,
    pub(super) replies: Outgoing,
    digests: Digests,
    /// Where the host wants data to begin.
    alignment: u8,
    /// Data on its way into a buffer.
    arriving: Option<Arriving>,
}

struct Arriving {
    range: Range<usize>,
    has_digest: bool,
    /// The data, once it is whole and only its digest is missing.
    whole: Option<Buffer>,
}

/// A shown header's parts.
struct Shown {
    pdu: Pdu,
    layout: tcp::Layout,
}

impl Pdus {
    pub(super) fn new() -> Pdus {
        Pdus {
            receiver: Receiver::new(&[]),
            replies: Outgoing::default(),
            digests: Digests::default(),
            alignment: 0,
            arriving: None,
        }
    }

    /// Answers the host's first PDU, if it has arrived.
    pub(super) fn try_greet(&mut self) -> Result<bool, Fatal> {
        let bytes = self.receiver.peek();
        let Some(common) = bytes.first_chunk() else { return Ok(false) };
        let header = Header::decode(common);
        if header.kind != kind::IC_REQ {
            return Err(Fatal::Sequence);
        }
        header.layout(Digests::default())?;
        let Some(bytes) = bytes.first_chunk() else { return Ok(false) };
        let request = IcReq::decode(bytes);
        if request.format != 0 {
            return Err(Fatal::Unsupported { offset: 8 });
        }
        if request.alignment > 31 {
            return Err(Fatal::InvalidField { offset: 10 });
        }
        (self.digests, self.alignment) = (request.digests, request.alignment);
        let answer = IcResp {
            format: 0,
            alignment: 0,
            digests: request.digests,
            data_size_max: DATA_SIZE_MAX,
        };
        self.receiver.consume(tcp::IC_SIZE);
        self.replies.push_header(&answer.encode());
        Ok(true)
    }

    /// The next PDU, once its header is there, with the padding behind it.
    pub(super) fn peek(&self) -> Result<Option<Pdu>, Fatal> {
        Ok(self.show()?.map(|shown| shown.pdu))
    }

    fn show(&self) -> Result<Option<Shown>, Fatal> {
        let bytes = self.receiver.peek();
        let Some(common) = bytes.first_chunk() else { return Ok(None) };
        let header = Header::decode(common);
        if !matches!(header.kind, kind::COMMAND | kind::H2C_DATA | kind::H2C_TERM) {
            let known = matches!(header.kind, kind::IC_REQ..=kind::C2H_DATA | kind::R2T);
            return Err(if known { Fatal::Sequence } else { Fatal::InvalidField { offset: 0 } });
        }
        let layout = header.layout(self.digests)?;
        let Some(whole) = bytes.get(..layout.header_end.max(layout.data.start)) else {
            return Ok(None);
        };
        let header_size = usize::from(header.header_size);
        if self.digests.header && header.kind != kind::H2C_TERM {
            let received = digest_at(&whole[header_size..]).unwrap_or_default();
            if received != crc32c(&whole[..header_size]) {
                return Err(Fatal::HeaderDigest { received });
            }
        }
        let data_size = layout.data.len() as u32;
        let pdu = match header.kind {
            kind::COMMAND => {
                let sqe = whole[tcp::COMMON_SIZE..].first_chunk().expect("the header is whole");
                Pdu::Command(Sqe(*sqe), data_size)
            }
            kind::H2C_TERM => Pdu::Term,
            _ => {
                let data = tcp::Data::decode(whole.first_chunk().expect("the header is whole"));
                if data.length != data_size || data_size == 0 {
                    return Err(Fatal::InvalidField { offset: 16 });
                }
                if data_size > DATA_SIZE_MAX {
                    return Err(Fatal::LimitExceeded);
                }
                Pdu::Data(data, header.flags & flag::LAST != 0)
            }
        };
        Ok(Some(Shown { pdu, layout }))
    }

    /// Consumes the header that was shown, and takes its data into `range` of `buffer`.
    pub(super) fn begin_data(&mut self, buffer: Buffer, range: Range<usize>) {
        let layout = self.consume();
        assert_eq!(layout.data.len(), range.len(), "there is room for the data, and no more");
        self.arriving = Some(Arriving {
            range: range.clone(),
            has_digest: layout.has_data_digest,
            whole: None,
        });
        self.receiver.begin_payload_part(buffer, range);
    }

    /// Consumes the header that was shown, and drops its data.
    pub(super) fn skip_data(&mut self) {
        let layout = self.consume();
        let digest = if layout.has_data_digest { DIGEST_SIZE } else { 0 };
        self.receiver.begin_skip(layout.data.len() + digest);
    }

    fn consume(&mut self) -> tcp::Layout {
        let Ok(Some(Shown { layout, .. })) = self.show() else {
            unreachable!("a header is consumed after it was shown")
        };
        assert!(self.arriving.is_none(), "data comes before the next header");
        self.receiver.consume(layout.header_end.max(layout.data.start));
        layout
    }

    /// The buffer with the data, once it is whole, and whether it has its digest.
    pub(super) fn take_data(&mut self) -> Option<(Buffer, bool)> {
        let arriving = self.arriving.as_mut()?;
        if arriving.whole.is_none() {
            arriving.whole = Some(self.receiver.take_payload()?);
        }
        let mut is_right = true;
        if arriving.has_digest {
            let digest = digest_at(self.receiver.peek())?;
            let buffer = arriving.whole.as_ref().expect("it is whole");
            is_right = digest == crc32c(&buffer[arriving.range.clone()]);
            self.receiver.consume(DIGEST_SIZE);
        }
        let arriving = self.arriving.take()?;
        arriving.whole.map(|buffer| (buffer, is_right))
    }

    /// Gives up data that will never be whole.
    pub(super) fn abandon_data(&mut self) -> Option<Buffer> {
        let whole = self.arriving.take().and_then(|arriving| arriving.whole);
        whole.or_else(|| self.receiver.abandon_payload())
    }

    pub(super) fn push_response(&mut self, cqe: &Cqe) {
        self.push_header(&tcp::response(cqe, self.digests));
    }

    /// Asks for all of a command's data.
    pub(super) fn push_request_for_data(&mut self, data: tcp::Data) {
        self.push_header(&data.encode(kind::R2T, 0, 0, self.digests));
    }

    /// Sends all of a command's data; its buffer comes back with `mark`. If `is_all`, no completion follows.
    pub(super) fn push_data(&mut self, cid: u16, buffer: Buffer, mark: u64, is_all: bool) {
        let data = tcp::Data { cid, tag: 0, offset: 0, length: buffer.len() as u32 };
        let flags = flag::LAST | if is_all { flag::SUCCESS } else { 0 };
        let header = data.encode(kind::C2H_DATA, flags, self.alignment, self.digests);
        self.push_header(&header);
        let zeroes = [0; tcp::HEADER_SIZE_MAX];
        self.replies.push_header(&zeroes[..tcp::padding(&header, self.digests)]);
        let digest = self.digests.data.then(|| crc32c(&buffer));
        self.replies.push_payload(mark, buffer);
        if let Some(digest) = digest {
            self.replies.push_header(&digest.to_le_bytes());
        }
    }

    /// Says why the connection ends, with the header that offended.
    pub(super) fn push_term(&mut self, fatal: Fatal) {
        let mut out = [0; tcp::DATA_HEADER_SIZE + tcp::TERM_DATA_SIZE_MAX];
        let offending = if self.arriving.is_none() { self.receiver.peek() } else { &[] };
        let offending = &offending[..offending.len().min(tcp::COMMON_SIZE)];
        let size = tcp::term(kind::C2H_TERM, fatal, offending, &mut out);
        self.replies.push_header(&out[..size]);
    }

    fn push_header(&mut self, header: &[u8]) {
        self.replies.push_header(header);
        if self.digests.header {
            self.replies.push_header(&crc32c(header).to_le_bytes());
        }
    }
}

fn digest_at(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
