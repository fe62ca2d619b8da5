//! The formats by name, and how to tell them apart.

use std::fmt;
use std::str::FromStr;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// What `blkparse` prints: `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`.
    Blkparse,
    /// MSR Cambridge: `128166372003061629,hm,0,Write,8013271040,32768,33307`, offset and size in
    /// bytes.
    Msr,
    /// What fio writes with `write_iolog`, versions 2 and 3.
    Iolog,
    /// Comma-separated with a header that names the columns, or `op,offset,length` in bytes without
    /// one. The columns of SYSTOR '17 are known too.
    Csv,
    /// Alibaba's block traces: `device,opcode,offset,length,time`, in bytes.
    Alibaba,
    /// Tencent's block storage: `time,offset,size,type,volume`, in sectors, 1 being a write.
    Tencent,
    /// What MQSim reads: `time device sector sectors type`, 0 being a write.
    Mqsim,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 7] = [
        Format::Blkparse,
        Format::Msr,
        Format::Iolog,
        Format::Csv,
        Format::Alibaba,
        Format::Tencent,
        Format::Mqsim,
    ];

    /// The name, as [`FromStr`] takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Blkparse => "blkparse",
            Format::Msr => "msr",
            Format::Iolog => "iolog",
            Format::Csv => "csv",
            Format::Alibaba => "alibaba",
            Format::Tencent => "tencent",
            Format::Mqsim => "mqsim",
        }
    }

    /// The format whose lines look like this one; `None` if none does.
    pub fn of_line(line: &str) -> Option<Format> {
        let line = line.trim();
        if line.starts_with("fio version") {
            return Some(Format::Iolog);
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let is_number = |field: usize| fields.get(field).is_some_and(|f| f.parse::<u64>().is_ok());
        let is_kind = |field: usize| super::kind(fields.get(field).copied()).is_ok();
        match fields.len() {
            7 if is_number(0) && is_kind(3) && is_number(4) => return Some(Format::Msr),
            5 if is_kind(1) && is_number(2) && is_number(3) => return Some(Format::Alibaba),
            5 if (0..5).all(is_number) => return Some(Format::Tencent),
            2.. if super::csv::Columns::of_header(line).is_some() => return Some(Format::Csv),
            3 if is_kind(0) && is_number(1) && is_number(2) => return Some(Format::Csv),
            _ => {}
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let numbers = words.iter().filter(|word| word.parse::<u64>().is_ok()).count();
        if words.len() == 5 && numbers == 5 {
            return Some(Format::Mqsim);
        }
        super::blkparse::looks_like(line).then_some(Format::Blkparse)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A format's name that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseFormatError(String);

impl fmt::Display for ParseFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no format of traces; there are ", self.0)?;
        for (place, format) in Format::ALL.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{format}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ParseFormatError {}

impl FromStr for Format {
    type Err = ParseFormatError;

    fn from_str(text: &str) -> Result<Format, ParseFormatError> {
        let found = Format::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| ParseFormatError(text.to_string()))
    }
}
