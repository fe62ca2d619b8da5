//! PDUs of the TCP transport.
//!
//! A PDU is a header, maybe its digest, padding, data, maybe its digest. [`Header`] is what all begin
//! with; it says where everything is.

use crate::bytes::{put, u16_at, u32_at};
use crate::digest::DIGEST_SIZE;

/// Bytes that every PDU begins with.
pub const COMMON_SIZE: usize = 8;
/// Bytes of the longest header.
pub const HEADER_SIZE_MAX: usize = 128;
/// Bytes of an ICReq and of an ICResp.
pub const IC_SIZE: usize = 128;
/// Bytes of the header of data, of R2T, of the ends.
pub const DATA_HEADER_SIZE: usize = 24;
/// Bytes of the header of a command.
pub const COMMAND_HEADER_SIZE: usize = 72;
/// Bytes of the offending header that a TermReq carries, at most.
pub const TERM_DATA_SIZE_MAX: usize = 128;

/// Kinds of PDU.
pub mod kind {
    /// The host begins.
    pub const IC_REQ: u8 = 0x00;
    /// The controller answers.
    pub const IC_RESP: u8 = 0x01;
    /// The host cannot go on.
    pub const H2C_TERM: u8 = 0x02;
    /// The controller cannot go on.
    pub const C2H_TERM: u8 = 0x03;
    /// A command, maybe with data.
    pub const COMMAND: u8 = 0x04;
    /// A completion.
    pub const RESPONSE: u8 = 0x05;
    /// Data of the host.
    pub const H2C_DATA: u8 = 0x06;
    /// Data of the controller.
    pub const C2H_DATA: u8 = 0x07;
    /// The controller asks for data.
    pub const R2T: u8 = 0x09;
}

/// Flags of PDUs.
pub mod flag {
    /// The header has a digest.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// The data has a digest.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// The last data of its transfer.
    pub const LAST: u8 = 1 << 2;
    /// The command is done with this data; no completion comes.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Why a side cannot go on, as a TermReq says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// A field of a header has no meaning.
    InvalidField {
        /// Where in the PDU.
        offset: u32,
    },
    /// The PDU may not come now.
    Sequence,
    /// The digest of a header is wrong.
    HeaderDigest {
        /// The digest that came.
        received: u32,
    },
    /// Data outside of what was asked for.
    DataRange,
    /// More at a time than was agreed.
    LimitExceeded,
    /// An option that is not supported.
    Unsupported {
        /// Where in the PDU.
        offset: u32,
    },
}

impl Fatal {
    /// Fatal error status, and what goes with it.
    fn code(self) -> (u16, u32) {
        match self {
            Fatal::InvalidField { offset } => (1, offset),
            Fatal::Sequence => (2, 0),
            Fatal::HeaderDigest { received } => (3, received),
            Fatal::DataRange => (4, 0),
            Fatal::LimitExceeded => (5, 0),
            Fatal::Unsupported { offset } => (6, offset),
        }
    }

    /// What it means.
    pub fn text(self) -> &'static str {
        match self {
            Fatal::InvalidField { .. } => "a field of a PDU's header is invalid",
            Fatal::Sequence => "a PDU came out of turn",
            Fatal::HeaderDigest { .. } => "a header does not have its digest",
            Fatal::DataRange => "data outside of what was asked for",
            Fatal::LimitExceeded => "more data than was agreed",
            Fatal::Unsupported { .. } => "an option that is not supported",
        }
    }
}

/// Which digests a connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Behind headers.
    pub header: bool,
    /// Behind data.
    pub data: bool,
}

impl Digests {
    fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// The flags of a PDU with a header, and with data if `with_data`.
    fn flags(self, with_data: bool) -> u8 {
        let header = if self.header { flag::HEADER_DIGEST } else { 0 };
        header | if self.data && with_data { flag::DATA_DIGEST } else { 0 }
    }
}

/// What every PDU begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// Bytes of the header.
    pub header_size: u8,
    /// Where data begins, from the start of the PDU; zero without data.
    pub data_offset: u8,
    /// Bytes of the PDU.
    pub size: u32,
}

impl Header {
    /// What is in `bytes`.
    pub fn decode(bytes: &[u8; COMMON_SIZE]) -> Header {
        Header {
            kind: bytes[0],
            flags: bytes[1],
            header_size: bytes[2],
            data_offset: bytes[3],
            size: u32_at(bytes, 4),
        }
    }

    fn encode_into(&self, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&[self.kind, self.flags, self.header_size, self.data_offset]);
        put(bytes, 4, &self.size.to_le_bytes());
    }

    /// Where the parts of the PDU are, if it is one that makes sense on a connection with `digests`.
    ///
    /// # Errors
    /// The field that does not.
    pub fn layout(&self, digests: Digests) -> Result<Layout, Fatal> {
        let expected = match self.kind {
            kind::IC_REQ | kind::IC_RESP => IC_SIZE,
            kind::COMMAND => COMMAND_HEADER_SIZE,
            kind::H2C_TERM | kind::C2H_TERM | kind::RESPONSE => DATA_HEADER_SIZE,
            kind::H2C_DATA | kind::C2H_DATA | kind::R2T => DATA_HEADER_SIZE,
            _ => return Err(Fatal::InvalidField { offset: 0 }),
        };
        if usize::from(self.header_size) != expected {
            return Err(Fatal::InvalidField { offset: 2 });
        }
        let never =
            matches!(self.kind, kind::IC_REQ | kind::IC_RESP | kind::H2C_TERM | kind::C2H_TERM);
        let has_header_digest = self.flags & flag::HEADER_DIGEST != 0;
        if has_header_digest != (digests.header && !never) {
            return Err(Fatal::InvalidField { offset: 1 });
        }
        let carries = matches!(self.kind, kind::COMMAND | kind::H2C_DATA | kind::C2H_DATA);
        let size = self.size as usize;
        let header_end = expected + if has_header_digest { DIGEST_SIZE } else { 0 };
        let is_term = matches!(self.kind, kind::H2C_TERM | kind::C2H_TERM);
        if size == header_end || !(carries || is_term) {
            // Some hosts say where the data of a command would begin, though there is none.
            let offset_fits = self.data_offset == 0 || self.kind == kind::COMMAND;
            let fits = size == header_end && offset_fits;
            return match fits {
                true => Ok(Layout { header_end, data: 0..0, has_data_digest: false }),
                false => Err(Fatal::InvalidField { offset: 4 }),
            };
        }
        let start = if is_term { header_end } else { usize::from(self.data_offset) };
        if start < header_end || (start % 4 != 0) {
            return Err(Fatal::InvalidField { offset: 3 });
        }
        let has_data_digest = self.flags & flag::DATA_DIGEST != 0;
        if has_data_digest != (digests.data && !is_term) {
            return Err(Fatal::InvalidField { offset: 1 });
        }
        let digest = if has_data_digest { DIGEST_SIZE } else { 0 };
        match size.checked_sub(digest) {
            Some(end) if end > start => {
                Ok(Layout { header_end, data: start..end, has_data_digest })
            }
            _ => Err(Fatal::InvalidField { offset: 4 }),
        }
    }
}

/// Where the parts of a PDU are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Behind the header and its digest.
    pub header_end: usize,
    /// The data; empty if there is none.
    pub data: core::ops::Range<usize>,
    /// Whether a digest is behind the data.
    pub has_data_digest: bool,
}

/// The first PDU of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// The version of the format; zero.
    pub format: u16,
    /// Data of the controller is to begin at multiples of four times this and one.
    pub alignment: u8,
    /// Asked for.
    pub digests: Digests,
    /// Requests for data at a time, for one command, that the host takes; one at least.
    pub r2t_max: u32,
}

impl IcReq {
    /// Its bytes.
    pub fn encode(&self) -> [u8; IC_SIZE] {
        let mut bytes = [0; IC_SIZE];
        let header_size = IC_SIZE as u8;
        let size = IC_SIZE as u32;
        let header = Header { kind: kind::IC_REQ, flags: 0, header_size, data_offset: 0, size };
        header.encode_into(&mut bytes);
        put(&mut bytes, 8, &self.format.to_le_bytes());
        (bytes[10], bytes[11]) = (self.alignment, self.digests.bits());
        put(&mut bytes, 12, &(self.r2t_max - 1).to_le_bytes());
        bytes
    }

    /// What is in `bytes`.
    pub fn decode(bytes: &[u8; IC_SIZE]) -> IcReq {
        IcReq {
            format: u16_at(bytes, 8),
            alignment: bytes[10],
            digests: Digests { header: bytes[11] & 1 != 0, data: bytes[11] & 2 != 0 },
            r2t_max: u32_at(bytes, 12).saturating_add(1),
        }
    }
}

/// The first PDU of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// The version of the format; zero.
    pub format: u16,
    /// Data of the host is to begin at multiples of four times this and one.
    pub alignment: u8,
    /// Used from now on.
    pub digests: Digests,
    /// Bytes of data in one PDU of the host, at most.
    pub data_size_max: u32,
}

impl IcResp {
    /// Its bytes.
    pub fn encode(&self) -> [u8; IC_SIZE] {
        let mut bytes = [0; IC_SIZE];
        let header_size = IC_SIZE as u8;
        let size = IC_SIZE as u32;
        let header = Header { kind: kind::IC_RESP, flags: 0, header_size, data_offset: 0, size };
        header.encode_into(&mut bytes);
        put(&mut bytes, 8, &self.format.to_le_bytes());
        (bytes[10], bytes[11]) = (self.alignment, self.digests.bits());
        put(&mut bytes, 12, &self.data_size_max.to_le_bytes());
        bytes
    }

    /// What is in `bytes`.
    pub fn decode(bytes: &[u8; IC_SIZE]) -> IcResp {
        IcResp {
            format: u16_at(bytes, 8),
            alignment: bytes[10],
            digests: Digests { header: bytes[11] & 1 != 0, data: bytes[11] & 2 != 0 },
            data_size_max: u32_at(bytes, 12),
        }
    }
}

/// The header of a command, with `data_size` bytes behind it.
pub fn command(sqe: &crate::Sqe, data_size: u32, digests: Digests) -> [u8; COMMAND_HEADER_SIZE] {
    let mut bytes = [0; COMMAND_HEADER_SIZE];
    let with_data = data_size > 0;
    common(kind::COMMAND, COMMAND_HEADER_SIZE, data_size, 0, 0, digests).encode_into(&mut bytes);
    assert_eq!(bytes[3] != 0, with_data, "an offset says that there is data");
    bytes[COMMON_SIZE..].copy_from_slice(&sqe.0);
    bytes
}

/// The header of a completion.
pub fn response(cqe: &crate::Cqe, digests: Digests) -> [u8; DATA_HEADER_SIZE] {
    let mut bytes = [0; DATA_HEADER_SIZE];
    common(kind::RESPONSE, DATA_HEADER_SIZE, 0, 0, 0, digests).encode_into(&mut bytes);
    bytes[COMMON_SIZE..].copy_from_slice(&cqe.encode());
    bytes
}

/// The header of data, of either side, and of the wish for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The command's identifier.
    pub cid: u16,
    /// The tag of the wish that it answers, or that this is.
    pub tag: u16,
    /// Where in the command's data it begins.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

impl Data {
    /// The header of data of `kind` with these flags beside those of digests; `alignment` as in
    /// [`IcReq`].
    pub fn encode(
        &self,
        kind: u8,
        flags: u8,
        alignment: u8,
        digests: Digests,
    ) -> [u8; DATA_HEADER_SIZE] {
        let carried = if kind == kind::R2T { 0 } else { self.length };
        let mut bytes = [0; DATA_HEADER_SIZE];
        common(kind, DATA_HEADER_SIZE, carried, flags, alignment, digests).encode_into(&mut bytes);
        put(&mut bytes, 8, &self.cid.to_le_bytes());
        put(&mut bytes, 10, &self.tag.to_le_bytes());
        put(&mut bytes, 12, &self.offset.to_le_bytes());
        put(&mut bytes, 16, &self.length.to_le_bytes());
        bytes
    }

    /// What is in `bytes`.
    pub fn decode(bytes: &[u8; DATA_HEADER_SIZE]) -> Data {
        Data {
            cid: u16_at(bytes, 8),
            tag: u16_at(bytes, 10),
            offset: u32_at(bytes, 12),
            length: u32_at(bytes, 16),
        }
    }
}

/// A TermReq for a PDU that begins with `offending`: how many bytes of `out` it takes.
pub fn term(
    kind: u8,
    fatal: Fatal,
    offending: &[u8],
    out: &mut [u8; DATA_HEADER_SIZE + TERM_DATA_SIZE_MAX],
) -> usize {
    let copied = offending.len().min(TERM_DATA_SIZE_MAX);
    let size = DATA_HEADER_SIZE + copied;
    let header_size = DATA_HEADER_SIZE as u8;
    Header { kind, flags: 0, header_size, data_offset: 0, size: size as u32 }.encode_into(out);
    let (status, information) = fatal.code();
    out[8..DATA_HEADER_SIZE].fill(0);
    put(out, 8, &status.to_le_bytes());
    put(out, 10, &information.to_le_bytes());
    put(out, DATA_HEADER_SIZE, &offending[..copied]);
    size
}

/// The fatal error status of a TermReq.
pub fn term_status(bytes: &[u8; DATA_HEADER_SIZE]) -> u16 {
    u16_at(bytes, 8)
}

/// Zero bytes between the header, with its digest, and data.
pub fn padding(header: &[u8], digests: Digests) -> usize {
    let digest = if digests.header { DIGEST_SIZE } else { 0 };
    usize::from(header[3]).saturating_sub(header.len() + digest)
}

fn common(
    kind: u8,
    header_size: usize,
    data_size: u32,
    flags: u8,
    alignment: u8,
    digests: Digests,
) -> Header {
    let with_data = data_size > 0;
    let header_end = header_size + if digests.header { DIGEST_SIZE } else { 0 };
    let data_offset =
        if with_data { header_end.next_multiple_of(4 * (usize::from(alignment) + 1)) } else { 0 };
    let digest = if digests.data && with_data { DIGEST_SIZE } else { 0 };
    let size = data_offset.max(header_end) + data_size as usize + digest;
    Header {
        kind,
        flags: flags | digests.flags(with_data),
        header_size: header_size as u8,
        data_offset: data_offset as u8,
        size: size as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cqe, DataPointer, Sqe, Status};

    const NONE: Digests = Digests { header: false, data: false };
    const BOTH: Digests = Digests { header: true, data: true };

    #[test]
    fn an_icreq_lies_in_its_bytes_as_specified() {
        let request = IcReq { format: 0, alignment: 3, digests: BOTH, r2t_max: 1 };
        let bytes = request.encode();
        assert_eq!(bytes[..16], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0]);
        assert!(bytes[16..].iter().all(|byte| *byte == 0));
        assert_eq!(IcReq::decode(&bytes), request);
        let answer = IcResp { format: 0, alignment: 0, digests: NONE, data_size_max: 1 << 20 };
        let bytes = answer.encode();
        assert_eq!(bytes[..16], [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0]);
        assert_eq!(IcResp::decode(&bytes), answer);
    }

    #[test]
    fn a_command_with_data_and_digests_says_where_everything_is() {
        let pointer = DataPointer::InCapsule { length: 4096, offset: 0 };
        let sqe = Sqe::new(1, 1).with_data_pointer(pointer);
        let bytes = command(&sqe, 4096, BOTH);
        assert_eq!(bytes[..8], [4, 3, 72, 76, 0x50, 0x10, 0, 0]);
        let header = Header::decode(bytes.first_chunk().unwrap());
        let layout = header.layout(BOTH).unwrap();
        let expected = Layout { header_end: 76, data: 76..76 + 4096, has_data_digest: true };
        assert_eq!(layout, expected);
        assert_eq!(header.layout(NONE), Err(Fatal::InvalidField { offset: 1 }));
        let bytes = command(&sqe, 0, NONE);
        let layout = Header::decode(bytes.first_chunk().unwrap()).layout(NONE).unwrap();
        assert_eq!(layout.data, 0..0);
    }

    #[test]
    fn data_is_aligned_as_the_host_wants_it() {
        let data = Data { cid: 1, tag: 2, offset: 3, length: 512 };
        let bytes = data.encode(kind::C2H_DATA, flag::LAST, 31, BOTH);
        assert_eq!(bytes[..8], [7, 7, 24, 128, 132, 2, 0, 0]);
        assert_eq!(padding(&bytes, BOTH), 100);
        assert_eq!(Data::decode(&bytes), data);
        let wish = data.encode(kind::R2T, 0, 0, NONE);
        assert_eq!(wish[..8], [9, 0, 24, 0, 24, 0, 0, 0]);
    }

    #[test]
    fn a_completion_fits_its_header() {
        let cqe = Cqe { result: 0, sq_head: 1, sq_id: 1, cid: 9, status: Status::SUCCESS };
        let bytes = response(&cqe, NONE);
        assert_eq!(bytes[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
        assert_eq!(Cqe::decode(bytes[8..].first_chunk().unwrap()), cqe);
    }

    #[test]
    fn headers_that_make_no_sense_say_where() {
        let good = Header::decode(&[6, 4, 24, 24, 28, 0, 0, 0]);
        assert!(good.layout(NONE).is_ok());
        for (header, offset) in [
            (Header { kind: 8, ..good }, 0),
            (Header { header_size: 23, ..good }, 2),
            (Header { flags: flag::HEADER_DIGEST, ..good }, 1),
            (Header { flags: flag::DATA_DIGEST, ..good }, 1),
            (Header { data_offset: 20, ..good }, 3),
            (Header { data_offset: 26, ..good }, 3),
            (Header { size: 3, ..good }, 4),
            (Header { data_offset: 28, ..good }, 4),
        ] {
            assert_eq!(header.layout(NONE), Err(Fatal::InvalidField { offset }), "{header:?}");
        }
    }

    #[test]
    fn the_end_names_its_reason_and_what_offended() {
        let mut out = [0xff; DATA_HEADER_SIZE + TERM_DATA_SIZE_MAX];
        let size = term(kind::C2H_TERM, Fatal::InvalidField { offset: 2 }, &[7; 8], &mut out);
        assert_eq!(size, 32);
        assert_eq!(out[..16], [3, 0, 24, 0, 32, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(out[24..32], [7; 8]);
        assert_eq!(term_status(out.first_chunk().unwrap()), 1);
    }
}
