//! Block traces in the formats in which they are published and recorded.
//!
//! A trace is read line by line, so it may be larger than memory; what is kept of it is the names of
//! its devices. A line that cannot be understood is told apart from one that says nothing about
//! requests, and whoever reads decides what to do about it.
//!
//! # Invariants
//! - No line, whatever is in it, causes a panic or takes more than [`LINE_SIZE_MAX`] of memory.
//! - A request that is given out has a length above zero, unless it is a flush, and ends below
//!   [`OFFSET_MAX`]. A read or write is no longer than [`LENGTH_MAX`].
//! - Two devices that a trace tells apart never have the same number.

mod blkparse;
mod csv;
mod format;
mod iolog;
mod named;
mod reader;

pub use format::{Format, ParseFormatError};
pub use reader::{Line, Reader, ReaderOptions};

use crate::mix::Kind;
use std::fmt;

/// Bytes of a line at most.
pub const LINE_SIZE_MAX: usize = 1 << 14;

/// Requests end at this byte at most: 2^55, 32 PiB.
pub const OFFSET_MAX: u64 = 1 << 55;

/// Bytes of a read or write at most: 1 GiB, far more than any device takes at once. A longer one is a damaged line
/// or the wrong unit, and would pass for a load of its own.
pub const LENGTH_MAX: u64 = 1 << 30;

/// Devices that one trace may name.
pub const DEVICES_MAX: usize = 1 << 10;

const SECTOR: u64 = 512;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which of the trace's devices, counted in order of appearance.
    pub device: u16,
    /// What was asked for.
    pub kind: Kind,
    /// The first byte; zero for a flush.
    pub offset: u64,
    /// Bytes; zero for a flush.
    pub length: u64,
}

/// Why a line cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BadLine {
    /// It has fewer fields than its format.
    TooFewFields,
    /// A number is none, or too large.
    Number,
    /// It does not say whether it reads or writes in a way that its format knows.
    Kind,
    /// The request has no length, or ends beyond what any device has.
    Range,
    /// It reads or writes more at once than [`LENGTH_MAX`].
    Length,
    /// It is longer than any line of a trace.
    TooLong,
    /// It is no text.
    NotText,
    /// It names one device more than a trace may.
    TooManyDevices,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadLine::TooFewFields => "too few fields",
            BadLine::Number => "a number is missing or too large",
            BadLine::Kind => "neither a read nor a write, discard or flush",
            BadLine::Range => "a request without length, or beyond the end of any device",
            BadLine::Length => {
                "a read or write of more than 1 GiB at once: damaged, or another unit"
            }
            BadLine::TooLong => "the line is too long",
            BadLine::NotText => "not text",
            BadLine::TooManyDevices => "more devices than a trace may have",
        })
    }
}

/// What a line of a format says, with the device still a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parsed<'a> {
    /// Whose device it is, if the trace tells: devices of two hosts may have one name.
    host: &'a str,
    device: &'a str,
    kind: Kind,
    offset: u64,
    length: u64,
}

/// A line that was understood: `None` if it is about no request.
type ParsedLine<'a> = Result<Option<Parsed<'a>>, BadLine>;

fn number(text: Option<&str>) -> Result<u64, BadLine> {
    let text = text.ok_or(BadLine::TooFewFields)?.trim();
    text.parse().map_err(|_| BadLine::Number)
}

fn sectors(text: Option<&str>) -> Result<u64, BadLine> {
    number(text)?.checked_mul(SECTOR).ok_or(BadLine::Number)
}

/// What people write for kinds of requests.
fn kind(text: Option<&str>) -> Result<Kind, BadLine> {
    let text = text.ok_or(BadLine::TooFewFields)?.trim();
    let names = [
        (Kind::Read, &["read", "r", "rs", "randread"][..]),
        (Kind::Write, &["write", "w", "ws", "randwrite"]),
        (Kind::Discard, &["discard", "d", "trim", "t", "unmap"]),
        (Kind::Flush, &["flush", "f", "sync", "fsync", "datasync"]),
    ];
    let found =
        names.iter().find(|(_, names)| names.iter().any(|name| name.eq_ignore_ascii_case(text)));
    found.map(|(kind, _)| *kind).ok_or(BadLine::Kind)
}

#[cfg(test)]
mod tests;
