//! Comma-separated values whose first line names the columns, in any order:
//!
//! | column | names |
//! |---|---|
//! | kind | `op`, `type`, `iotype`, `opcode`, `kind`, `rw` |
//! | first byte | `offset`, `offset_bytes` |
//! | or first sector of 512 bytes | `sector`, `lba`, `offset_sectors` |
//! | bytes | `length`, `size`, `length_bytes`, `size_bytes` |
//! | or sectors | `sectors`, `length_sectors`, `size_sectors` |
//! | device, if there are several | `device`, `disk`, `lun`, `volume`, `drive`, `namespace`, `minor`; also `dev`, `vol`, `nsid` |
//! | whose device | `host`, `server`, `major` |
//!
//! Case, `_`, `-` and spaces do not matter, and a name of a device may end with `id`, `number`, `no` or `name`: `device_id`,
//! `DiskNumber`. Other columns are ignored, and named. Without such a line the columns are `op,offset,length`.

use super::{BadLine, Kind, Parsed, ParsedLine, SECTOR, kind, number};

/// Which field holds what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    kind: usize,
    offset: usize,
    offset_unit: u64,
    length: usize,
    length_unit: u64,
    device: Option<usize>,
    host: Option<usize>,
}

const UNNAMED: Columns = Columns {
    kind: 0,
    offset: 1,
    offset_unit: 1,
    length: 2,
    length_unit: 1,
    device: None,
    host: None,
};

impl Columns {
    /// The columns that a header names; `None` if it is no header.
    pub(super) fn of_header(line: &str) -> Option<Columns> {
        let names: Vec<String> =
            line.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
        let find = |wanted: &[&str]| names.iter().position(|name| wanted.contains(&name.as_str()));
        let either = |bytes: &[&str], sectors: &[&str]| {
            let bytes = find(bytes).map(|column| (column, 1));
            bytes.or_else(|| find(sectors).map(|column| (column, SECTOR)))
        };
        let kind = find(&["op", "type", "iotype", "opcode", "kind", "rw"])?;
        let (offset, offset_unit) =
            either(&["offset", "offset_bytes"], &["sector", "lba", "offset_sectors"])?;
        let (length, length_unit) = either(
            &["length", "size", "length_bytes", "size_bytes"],
            &["sectors", "length_sectors", "size_sectors"],
        )?;
        let find_id =
            |wanted: &[&str]| names.iter().position(|name| wanted.contains(&stem(name).as_str()));
        let host = find_id(&["host", "server", "major"]);
        let device = find_id(&[
            "device",
            "dev",
            "disk",
            "lun",
            "volume",
            "vol",
            "drive",
            "namespace",
            "ns",
            "minor",
        ]);
        // With one of both that one tells devices apart.
        let (device, host) = device.map_or((host, None), |device| (Some(device), host));
        Some(Columns { kind, offset, offset_unit, length, length_unit, device, host })
    }

    fn uses(&self, column: usize) -> bool {
        let Columns { kind, offset, length, device, host, .. } = *self;
        [kind, offset, length].contains(&column) || [device, host].contains(&Some(column))
    }

    fn parse<'a>(&self, line: &'a str) -> ParsedLine<'a> {
        let field = |column: usize| line.split(',').nth(column).map(str::trim);
        let device = self.device.map_or(Some(""), field).ok_or(BadLine::TooFewFields)?;
        let host = self.host.map_or(Some(""), field).ok_or(BadLine::TooFewFields)?;
        let kind = kind(field(self.kind))?;
        if kind == Kind::Flush {
            return Ok(Some(Parsed { host, device, kind, offset: 0, length: 0 }));
        }
        let scaled =
            |column, unit: u64| number(field(column))?.checked_mul(unit).ok_or(BadLine::Number);
        let offset = scaled(self.offset, self.offset_unit)?;
        let length = scaled(self.length, self.length_unit)?;
        Ok(Some(Parsed { host, device, kind, offset, length }))
    }
}

/// What a column's name begins with, without what is often appended to it.
fn stem(name: &str) -> String {
    let letters: String =
        name.chars().filter(|letter| !matches!(letter, '_' | '-' | ' ')).collect();
    let ends = ["identifier", "number", "name", "num", "no", "id"];
    let stem =
        ends.iter().find_map(|end| letters.strip_suffix(end).filter(|stem| !stem.is_empty()));
    stem.unwrap_or(&letters).to_string()
}

/// The columns, once they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    columns: Option<Columns>,
    /// Those that the header names and nothing is made of.
    pub(super) ignored: Vec<String>,
}

impl State {
    pub(super) fn parse<'a>(&mut self, line: &'a str) -> ParsedLine<'a> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        if self.columns.is_none() {
            self.columns = Columns::of_header(line);
            if let Some(columns) = self.columns {
                let names = line.split(',').map(str::trim).enumerate();
                let ignored = names.filter(|(column, _)| !columns.uses(*column));
                self.ignored = ignored.map(|(_, name)| name.to_string()).collect();
                return Ok(None);
            }
        }
        self.columns.get_or_insert(UNNAMED).parse(line)
    }
}
