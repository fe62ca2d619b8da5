//! Lines in, requests out.

use super::{
    BadLine, DEVICES_MAX, Format, Kind, LENGTH_MAX, LINE_SIZE_MAX, OFFSET_MAX, Parsed, ParsedLine,
    Request, blkparse, csv, iolog, named,
};
use std::collections::HashMap;
use std::io::{self, BufRead, Read};

/// Lines looked at to find out the format.
const LINES_LOOKED_AT: usize = 64;

/// Bytes without the end of a line after which a source is no trace: 64 MiB.
const SKIPPED_MAX: u64 = 1 << 26;

/// How a trace is to be read.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// The format; `None` to find it out from the first lines.
    pub format: Option<Format>,
    /// The device whose requests count, by its name or by host, slash and name; `None` for all of them, each with its
    /// own address space.
    pub device: Option<String>,
    /// The action of `blkparse` that counts; `None` for `Q`.
    pub action: Option<String>,
}

/// What a line of a trace was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A request.
    Request(Request),
    /// It says nothing about requests, or about those of another device.
    Other,
    /// It cannot be understood.
    Bad(BadLine),
}

/// Reads a trace.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    format: Format,
    action: String,
    only: Option<String>,
    devices: HashMap<String, u16>,
    names: Vec<String>,
    blkparse: blkparse::State,
    iolog: iolog::State,
    csv: csv::State,
    /// The name of the device in hand.
    name: String,
    /// Lines read ahead to find out the format.
    ahead: std::vec::IntoIter<Vec<u8>>,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Reader<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// `InvalidData` when the format is not told and cannot be found out, `InvalidInput` when the
    /// action is none, else what the source says.
    pub fn new(mut source: R, options: &ReaderOptions) -> io::Result<Reader<R>> {
        let action = options.action.clone().unwrap_or_else(|| "Q".to_string());
        if !blkparse::is_action(&action) {
            let reason =
                format!("`{action}` is no action of blkparse: one letter, such as Q, D or C");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let mut ahead = Vec::new();
        let format = match options.format {
            Some(format) => format,
            None => find_format(&mut source, &mut ahead)?,
        };
        Ok(Reader {
            source,
            format,
            action,
            only: options.device.clone(),
            devices: HashMap::new(),
            names: Vec::new(),
            blkparse: blkparse::State::default(),
            iolog: iolog::State::default(),
            csv: csv::State::default(),
            name: String::new(),
            ahead: ahead.into_iter(),
            line: Vec::new(),
            number: 0,
        })
    }

    /// The format that is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The devices seen so far, in the order of their numbers.
    pub fn devices(&self) -> &[String] {
        &self.names
    }

    /// The number of the line given out last, from 1.
    pub fn line_number(&self) -> u64 {
        self.number
    }

    /// Requests left out since they tell of another action of `blkparse`.
    pub fn other_actions(&self) -> u64 {
        self.blkparse.other_actions
    }

    /// Columns that a header names and that tell nothing.
    pub fn ignored_columns(&self) -> &[String] {
        &self.csv.ignored
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// What the source says; `InvalidData` if a line does not end within 64 MiB.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        let whole = match self.ahead.next() {
            Some(line) => {
                self.line = line;
                self.line.len() < LINE_SIZE_MAX
            }
            None => match read_line(&mut self.source, &mut self.line, self.number + 1)? {
                Some(whole) => whole,
                None => return Ok(None),
            },
        };
        self.number += 1;
        if !whole {
            return Ok(Some(Line::Bad(BadLine::TooLong)));
        }
        let line = std::mem::take(&mut self.line);
        let understood = self.understand(&line);
        self.line = line;
        Ok(Some(match understood {
            Ok(Some(request)) => Line::Request(request),
            Ok(None) => Line::Other,
            Err(bad) => Line::Bad(bad),
        }))
    }

    fn understand(&mut self, line: &[u8]) -> Result<Option<Request>, BadLine> {
        let text = std::str::from_utf8(line).map_err(|_| BadLine::NotText)?;
        let Some(parsed) = self.parse(text)? else { return Ok(None) };
        let Parsed { host, device, kind, offset, length } = parsed;
        self.name.clear();
        if !host.is_empty() {
            self.name.extend([host, "/"]);
        }
        self.name.push_str(device);
        if self.only.as_ref().is_some_and(|only| only != device && *only != self.name) {
            return Ok(None);
        }
        let ends = offset.checked_add(length).is_some_and(|end| end <= OFFSET_MAX);
        if !ends || (length == 0 && kind != Kind::Flush) {
            return Err(BadLine::Range);
        }
        if length > LENGTH_MAX && matches!(kind, Kind::Read | Kind::Write) {
            return Err(BadLine::Length);
        }
        Ok(Some(Request { device: self.device()?, kind, offset, length }))
    }

    fn parse<'a>(&mut self, text: &'a str) -> ParsedLine<'a> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        match self.format {
            Format::Blkparse => self.blkparse.parse(text, &self.action),
            Format::Iolog => self.iolog.parse(text),
            Format::Csv => self.csv.parse(text),
            Format::Msr => named::parse_msr(text),
            Format::Alibaba => named::parse_alibaba(text),
            Format::Tencent => named::parse_tencent(text),
            Format::Mqsim => named::parse_mqsim(text),
        }
    }

    /// The number of the device in hand.
    fn device(&mut self) -> Result<u16, BadLine> {
        if let Some(number) = self.devices.get(&self.name) {
            return Ok(*number);
        }
        if self.names.len() == DEVICES_MAX {
            return Err(BadLine::TooManyDevices);
        }
        let number = self.names.len() as u16;
        self.devices.insert(self.name.clone(), number);
        self.names.push(self.name.clone());
        Ok(number)
    }
}

/// Reads lines until one shows what they are.
fn find_format(source: &mut impl BufRead, ahead: &mut Vec<Vec<u8>>) -> io::Result<Format> {
    for _ in 0..LINES_LOOKED_AT {
        let mut line = Vec::new();
        if read_line(source, &mut line, ahead.len() as u64 + 1)?.is_none() {
            break;
        }
        let found = std::str::from_utf8(&line).ok().and_then(Format::of_line);
        ahead.push(line);
        if let Some(format) = found {
            return Ok(format);
        }
    }
    let is_blank = |line: &Vec<u8>| line.trim_ascii().is_empty();
    let reason = match ahead.iter().all(is_blank) {
        true if ahead.is_empty() => "it is empty",
        true => "its first lines are empty",
        false => "the first lines are of no known format of traces; --format names one",
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, reason))
}

/// Reads a line without its end; of one that is too long the beginning, and says so. `None` at the
/// end of the source.
fn read_line(
    source: &mut impl BufRead,
    line: &mut Vec<u8>,
    number: u64,
) -> io::Result<Option<bool>> {
    line.clear();
    if source.by_ref().take(LINE_SIZE_MAX as u64).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(true));
    }
    if line.len() < LINE_SIZE_MAX {
        // The last line has no end.
        return Ok(Some(true));
    }
    skip_line(source, number)?;
    Ok(Some(false))
}

fn skip_line(source: &mut impl BufRead, number: u64) -> io::Result<()> {
    let mut skipped = 0;
    loop {
        if skipped > SKIPPED_MAX {
            let reason = format!("line {number} does not end within 64 MiB: that is no trace");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let held = source.fill_buf()?;
        if held.is_empty() {
            return Ok(());
        }
        let end = held.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(held.len(), |end| end + 1);
        source.consume(used);
        skipped += used as u64;
        if end.is_some() {
            return Ok(());
        }
    }
}
