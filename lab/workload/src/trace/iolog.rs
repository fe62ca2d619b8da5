//! What fio writes with `write_iolog` and reads with `read_iolog`.
//!
//! ```text
//! fio version 2 iolog          fio version 3 iolog
//! /dev/sda add                 0 /dev/sda add
//! /dev/sda open                1 /dev/sda open
//! /dev/sda write 4096 8192     7 /dev/sda write 4096 8192
//! ```

use super::{BadLine, Kind, Parsed, ParsedLine, kind, number};

/// Which version the lines are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    has_times: bool,
}

impl State {
    pub(super) fn parse<'a>(&mut self, line: &'a str) -> ParsedLine<'a> {
        if let Some(version) = line.strip_prefix("fio version") {
            self.has_times = version.trim_start().starts_with('3');
            return Ok(None);
        }
        let mut words = line.split_ascii_whitespace();
        if self.has_times {
            number(words.next())?;
        }
        let Some(device) = words.next() else { return Ok(None) };
        let action = words.next().ok_or(BadLine::TooFewFields)?;
        if matches!(action, "add" | "open" | "close" | "wait") {
            return Ok(None);
        }
        let kind = kind(Some(action))?;
        if kind == Kind::Flush {
            return Ok(Some(Parsed { host: "", device, kind, offset: 0, length: 0 }));
        }
        let (offset, length) = (number(words.next())?, number(words.next())?);
        Ok(Some(Parsed { host: "", device, kind, offset, length }))
    }
}
