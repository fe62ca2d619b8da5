//! What `blkparse` prints:
//!
//! ```text
//! device cpu number time        process action kind sector + sectors [program]
//!   8,0    3      1 0.000000000     697      Q  WSM 223490 +       8 [kjournald]
//!   8,0    3      2 0.000000100     697      Q  FWS [kjournald]         a flush names no sectors
//! CPU0 (sda):                             the summary at the end, which is no request
//!  Reads Queued:           0,        0KiB  Writes Queued: …
//! ```
//!
//! One request appears several times, once for each action that was traced. Only one action counts:
//! `Q`, what was asked for, unless the caller wants another, such as `D`, what the device was given.

use super::{BadLine, Kind, Parsed, ParsedLine, number, sectors};

/// Where a line is in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The summary has begun; nothing follows it.
    in_summary: bool,
    /// Requests with another action than the one that counts.
    pub(super) other_actions: u64,
}

fn is_device(word: &str) -> bool {
    word.split_once(',')
        .is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok())
}

pub(super) fn looks_like(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    words.next().is_some_and(is_device)
        && words.next().is_some_and(|cpu| cpu.parse::<u32>().is_ok())
        && words.next().is_some_and(|number| number.parse::<u64>().is_ok())
        && words.next().is_some_and(|time| time.parse::<f64>().is_ok())
}

impl State {
    pub(super) fn parse<'a>(&mut self, line: &'a str, action: &str) -> ParsedLine<'a> {
        let begins_summary = (line.starts_with("CPU") || line.starts_with("Total ("))
            && line.trim_end().ends_with(':');
        self.in_summary |= begins_summary;
        if self.in_summary || line.trim().is_empty() {
            return Ok(None);
        }
        let mut words = line.split_ascii_whitespace();
        let device = words.next().ok_or(BadLine::TooFewFields)?;
        if !is_device(device) {
            return Err(BadLine::Number);
        }
        // The processor, the number of the event, the time, the process.
        let seen = words.nth(3).and(words.next()).ok_or(BadLine::TooFewFields)?;
        if seen == "m" {
            // A message of a scheduler.
            return Ok(None);
        }
        let flags = words.next().ok_or(BadLine::TooFewFields)?;
        let first = words.next().filter(|word| !word.starts_with('['));
        // Plugs and splits name no sectors, or none that are asked for again. A flush has none either.
        if first.is_none() && !flags.contains('F') {
            return Ok(None);
        }
        if seen != action {
            self.other_actions += 1;
            return Ok(None);
        }
        let Some(first) = first else {
            let kind = Kind::Flush;
            return Ok(Some(Parsed { host: "", device, kind, offset: 0, length: 0 }));
        };
        let kind = match flags {
            flags if flags.contains('D') => Kind::Discard,
            flags if flags.contains('W') => Kind::Write,
            flags if flags.contains('R') => Kind::Read,
            flags if flags.contains('F') => Kind::Flush,
            flags if flags.starts_with('N') => return Ok(None),
            _ => return Err(BadLine::Kind),
        };
        let offset = sectors(Some(first))?;
        let length = match words.next() {
            Some("+") => sectors(words.next())?,
            // A flush has no sectors.
            Some(_) | None => 0,
        };
        // A write that only flushes first.
        let kind = if length == 0 && flags.contains('F') { Kind::Flush } else { kind };
        if kind == Kind::Flush {
            return Ok(Some(Parsed { host: "", device, kind, offset: 0, length: 0 }));
        }
        Ok(Some(Parsed { host: "", device, kind, offset, length }))
    }
}

/// Whether an action is a letter that `blkparse` prints.
pub(super) fn is_action(text: &str) -> bool {
    text.len() == 1
        && text.bytes().all(|letter| letter.is_ascii_uppercase())
        && number(Some(text)).is_err()
}
