//! A new store: what it is to be like, as the command line says it, and what it has become.

use clap::Args;
use coulter_terminal::Size;
use serde::Serialize;
use std::path::PathBuf;

/// What a new store looks like; shared with `mount`, which may make one.
#[derive(Clone, Debug, Args)]
pub struct Shape {
    /// Size of the volume, as the host sees it [default: the store without its over-provisioning]
    #[arg(long, alias = "volume-size", allow_hyphen_values = true)]
    pub size: Option<Size>,

    /// Size of the file that holds the store [default: what a volume of --size needs]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub store_size: Option<Size>,

    /// Unit of allocation and cleaning, a power of two from 2M to 1G; best a multiple of the
    /// device's erase unit or zone [default: 32M; down to 4M for small stores, 64M above 8T]
    #[arg(long, allow_hyphen_values = true)]
    pub segment_size: Option<Size>,

    /// Page size of the flash below, from 8K to 256K, if --segment-size is its erase block: records begin at
    /// pages, and nothing is written to a page of which any block is needed
    #[arg(long, value_name = "SIZE", requires_all = ["reclaim", "segment_size"], allow_hyphen_values = true)]
    pub page_size: Option<Size>,

    /// How a store with a page size reclaims space, always: host data goes into holes of segments
    #[arg(long, value_name = "WAY", value_parser = ["threaded"], requires = "page_size")]
    pub reclaim: Option<String>,

    /// Over-provisioning: spare space for cleaning, as a share of the volume; more means less
    /// copying; at least 4%, 7% with segments of 2M [default: 20%]
    #[arg(long, visible_alias = "over-provisioning", value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub spare: Option<u32>,

    /// Name of the store, kept in it: at most 64 bytes, without control characters
    #[arg(long, default_value = "", hide_default_value = true)]
    pub label: String,

    /// Do not allocate the space of a file: the file takes space as it is written, and freed
    /// segments are punched out. Programs that sync often lose a quarter to a third of their speed,
    /// and writes wait while the file system is full
    #[arg(long)]
    pub sparse: bool,

    /// Bytes that may be stored at once, if that is less than --size: a sparse volume. Overwrites and discards
    /// always succeed; a write for which there is no room fails with ENOSPC and changes nothing
    #[arg(long, value_name = "SIZE", requires = "size", allow_hyphen_values = true)]
    pub capacity: Option<Size>,

    /// Addresses of a sparse volume that may be in use at once, counted in stretches of 1G: each that holds anything
    /// counts as one. A multiple of 1G, up to 4P; takes 12K of map memory for each, above 32T 1K [default: 16
    /// times the capacity, at least 256G, at most 32T]
    #[arg(long, value_name = "SIZE", requires = "capacity", allow_hyphen_values = true)]
    pub touched_limit: Option<Size>,

    /// Bytes of addresses, of a store that has as much capacity as fits into it
    #[arg(skip)]
    pub address_space: Option<u64>,
}

/// For the command line: a share of something in whole percent.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_percent(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse() {
        Ok(percent) if percent <= 1000 => Ok(percent),
        Ok(_) => Err("more than ten times the volume".to_owned()),
        Err(_) => Err("write a whole number of percent, such as 20%".to_owned()),
    }
}

/// A new store, as `create --json` prints it; documented in `docs/json.md`.
#[derive(Clone, Debug, Serialize)]
pub struct Made {
    /// Absolute path.
    pub store: PathBuf,
    /// Its identity.
    pub uuid: String,
    /// The name given with `--label`.
    pub label: String,
    /// Bytes of the file or disk.
    pub store_size_bytes: u64,
    /// Bytes that the host sees.
    pub volume_size_bytes: u64,
    /// Bytes that may be stored at once.
    pub capacity_bytes: u64,
    /// How many bytes of addresses a sparse volume may touch at once, counted in stretches of 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_limit_bytes: Option<u64>,
    /// Bytes of a segment.
    pub segment_size_bytes: u64,
    /// Segments on the device.
    pub segments_total: u64,
    /// Map memory that opening may need.
    pub map_memory_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_with_or_without_its_sign() {
        assert_eq!(parse_percent("20%"), Ok(20));
        assert_eq!(parse_percent("7"), Ok(7));
        assert_eq!(parse_percent("7 %"), Ok(7));
        for text in ["", "%", "-1", "1.5%", "x", "1001"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}
