//! Drives as data: the shape, the times and the limits of one kind of drive.
//!
//! A profile is a text of `key = value` lines; `#` begins a comment. Those that come with the crate
//! lie in `profiles/`, and any of them copied and changed is a profile too. Every key must be there
//! once, so that no number is ever a silent default.
//!
//! What it does not do: read files. The caller has the text.

use crate::geometry::Geometry;
use crate::units::{BLOCK_SIZE, Ns};
use std::fmt;

/// One kind of drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// The flash.
    pub geometry: Geometry,
    /// Time from the command to a page in the die's register.
    pub read_ns: Ns,
    /// Time to program what one die programs at once.
    pub program_ns: Ns,
    /// Pages of one erase block that one program operation takes together (the word line).
    pub pages_per_program: u32,
    /// Time to erase an erase block.
    pub erase_ns: Ns,
    /// Bytes per microsecond between a die and the controller.
    pub channel_bytes_per_us: u64,
    /// Bytes per microsecond between controller and host, for all together.
    pub link_bytes_per_us: u64,
    /// Controller time of each command, whatever its size: commands pass one after the other.
    pub command_ns: Ns,
    /// Controller time of each page of a command.
    pub page_ns: Ns,
    /// Bytes of the largest command. The host cuts larger requests, and merges up to here.
    pub command_size_max: u32,
    /// Commands that the host may have outstanding.
    pub queue_depth: u32,
    /// Pages that may be acknowledged and not be on flash yet. Zero: a write is acknowledged when
    /// it is on flash.
    pub buffer_pages: u32,
    /// Whether pages wait in the buffer for more writes to the same page, until they are pushed
    /// out or flushed. If not they go to flash at once.
    pub buffer_combines: bool,
    /// Entries of a cached map (DFTL).
    pub map_cache_entries: u32,
    /// Log or replacement blocks that may be open (BAST, FAST, S-FTL).
    pub log_blocks: u32,
}

/// The texts of the profiles that come with the crate, by name.
pub const PROFILES: [(&str, &str); 6] = [
    ("sata-tlc", include_str!("../profiles/sata-tlc.profile")),
    ("nvme-tlc", include_str!("../profiles/nvme-tlc.profile")),
    ("qlc-iu16k", include_str!("../profiles/qlc-iu16k.profile")),
    ("sd-card", include_str!("../profiles/sd-card.profile")),
    ("openssd", include_str!("../profiles/openssd.profile")),
    ("tiny", include_str!("../profiles/tiny.profile")),
];

/// Why a text is no profile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileError {
    /// No profile has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// A line is not `key = value`, or its key is unknown or was there before.
    Line {
        /// Counted from 1.
        number: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A value is not a number, or not `yes` or `no`.
    Value {
        /// The key.
        key: &'static str,
        /// What stands there.
        value: String,
    },
    /// A key is not there.
    Missing {
        /// The key.
        key: &'static str,
    },
    /// The numbers do not describe a drive.
    Impossible {
        /// The key.
        key: &'static str,
        /// What would have to hold.
        rule: &'static str,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Unknown { name } => {
                write!(f, "`{name}` is no profile; there are")?;
                PROFILES.iter().try_for_each(|(name, _)| write!(f, " {name}"))
            }
            ProfileError::Line { number, reason } => write!(f, "line {number} {reason}"),
            ProfileError::Value { key, value } => write!(f, "{key}: `{value}` is no value for it"),
            ProfileError::Missing { key } => write!(f, "{key} is missing"),
            ProfileError::Impossible { key, rule } => write!(f, "{key} {rule}"),
        }
    }
}

impl std::error::Error for ProfileError {}

const KEYS: [&str; 22] = [
    "name",
    "channels",
    "dies_per_channel",
    "planes_per_die",
    "erase_blocks",
    "exported_erase_blocks",
    "pages_per_block",
    "page_size",
    "read_ns",
    "program_ns",
    "pages_per_program",
    "erase_ns",
    "channel_bytes_per_us",
    "link_bytes_per_us",
    "command_ns",
    "page_ns",
    "command_size_max",
    "queue_depth",
    "buffer_pages",
    "buffer_combines",
    "map_cache_entries",
    "log_blocks",
];

/// Physical pages of the largest drive: page numbers have 31 bits, one is left for map pages.
const PAGES_MAX: u64 = 1 << 30;

impl Profile {
    /// A profile that comes with the crate.
    ///
    /// # Errors
    /// `Unknown` if there is none of this name.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        let unknown = || ProfileError::Unknown { name: name.to_string() };
        let (_, text) = PROFILES.iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
        Profile::parse(text)
    }

    /// The profile that a text describes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let values = Values::of(text)?;
        let geometry = Geometry {
            channels: values.number("channels")?,
            dies_per_channel: values.number("dies_per_channel")?,
            planes_per_die: values.number("planes_per_die")?,
            erase_blocks: values.number("erase_blocks")?,
            exported_erase_blocks: values.number("exported_erase_blocks")?,
            pages_per_block: values.number("pages_per_block")?,
            page_size: values.number("page_size")?,
        };
        let profile = Profile {
            name: values.text("name")?.to_string(),
            geometry,
            read_ns: values.number("read_ns")?.into(),
            program_ns: values.number("program_ns")?.into(),
            pages_per_program: values.number("pages_per_program")?,
            erase_ns: values.number("erase_ns")?.into(),
            channel_bytes_per_us: values.number("channel_bytes_per_us")?.into(),
            link_bytes_per_us: values.number("link_bytes_per_us")?.into(),
            command_ns: values.number("command_ns")?.into(),
            page_ns: values.number("page_ns")?.into(),
            command_size_max: values.number("command_size_max")?,
            queue_depth: values.number("queue_depth")?,
            buffer_pages: values.number("buffer_pages")?,
            buffer_combines: values.answer("buffer_combines")?,
            map_cache_entries: values.number("map_cache_entries")?,
            log_blocks: values.number("log_blocks")?,
        };
        profile.check()?;
        Ok(profile)
    }

    /// Whether the numbers describe a drive.
    ///
    /// # Errors
    /// `Impossible`, with the first rule that is broken.
    pub fn check(&self) -> Result<(), ProfileError> {
        let shape = &self.geometry;
        let pages = u64::from(shape.erase_blocks) * u64::from(shape.pages_per_block);
        let dies = u64::from(shape.channels) * u64::from(shape.dies_per_channel);
        let time_max = 1_000_000_000;
        let rules = [
            ("channels", (1..=256).contains(&shape.channels), "is 1 to 256"),
            ("dies_per_channel", (1..=256).contains(&shape.dies_per_channel), "is 1 to 256"),
            ("planes_per_die", (1..=16).contains(&shape.planes_per_die), "is 1 to 16"),
            ("pages_per_block", (2..=16384).contains(&shape.pages_per_block), "is 2 to 16384"),
            ("erase_blocks", pages <= PAGES_MAX, "makes at most 2^30 pages"),
            ("erase_blocks", u64::from(shape.erase_blocks) >= dies, "gives each die at least one"),
            (
                "exported_erase_blocks",
                (1..shape.erase_blocks).contains(&shape.exported_erase_blocks),
                "is at least 1 and below erase_blocks: something must be spare",
            ),
            (
                "page_size",
                shape.page_size >= BLOCK_SIZE
                    && shape.page_size <= BLOCK_SIZE * 64
                    && shape.page_size.is_power_of_two(),
                "is a power of two from 4096 to 262144",
            ),
            ("read_ns", (1..=time_max).contains(&self.read_ns), "is 1 ns to 1 s"),
            ("program_ns", (1..=time_max).contains(&self.program_ns), "is 1 ns to 1 s"),
            ("erase_ns", (1..=time_max).contains(&self.erase_ns), "is 1 ns to 1 s"),
            (
                "pages_per_program",
                self.pages_per_program >= 1
                    && shape.pages_per_block.is_multiple_of(self.pages_per_program),
                "divides pages_per_block",
            ),
            ("channel_bytes_per_us", self.channel_bytes_per_us > 0, "is above zero"),
            ("link_bytes_per_us", self.link_bytes_per_us > 0, "is above zero"),
            (
                "command_size_max",
                self.command_size_max >= shape.page_size
                    && self.command_size_max.is_multiple_of(BLOCK_SIZE),
                "is a multiple of 4096 and at least a page",
            ),
            ("queue_depth", (1..=65536).contains(&self.queue_depth), "is 1 to 65536"),
            ("buffer_pages", self.buffer_pages <= 1 << 20, "is at most 1048576"),
            (
                "buffer_combines",
                !self.buffer_combines || self.buffer_pages >= 2,
                "needs buffer_pages of at least 2",
            ),
            ("map_cache_entries", (1..=1 << 30).contains(&self.map_cache_entries), "is 1 to 2^30"),
            ("log_blocks", (1..=1 << 20).contains(&self.log_blocks), "is 1 to 2^20"),
        ];
        match rules.iter().find(|(_, holds, _)| !holds) {
            Some((key, _, rule)) => Err(ProfileError::Impossible { key, rule }),
            None => Ok(()),
        }
    }

    /// The same drive with another capacity and the same share of spare erase blocks.
    ///
    /// # Errors
    /// `Impossible` if no drive of that size can be made of these erase blocks.
    pub fn resized(mut self, exported_bytes: u64) -> Result<Profile, ProfileError> {
        let shape = &mut self.geometry;
        let block_bytes = u64::from(shape.pages_per_block) * u64::from(shape.page_size);
        let (old, spare) =
            (u64::from(shape.exported_erase_blocks), u64::from(shape.spare_erase_blocks()));
        let exported = exported_bytes / block_bytes;
        let spare = exported.saturating_mul(spare).div_ceil(old).max(4);
        let impossible =
            ProfileError::Impossible { key: "erase_blocks", rule: "makes at most 2^30 pages" };
        shape.exported_erase_blocks = u32::try_from(exported).map_err(|_| impossible.clone())?;
        shape.erase_blocks =
            u32::try_from(exported.saturating_add(spare)).map_err(|_| impossible)?;
        self.check()?;
        Ok(self)
    }

    /// The same drive with `spare_percent` erase blocks that the host does not see for each
    /// hundred that it sees.
    ///
    /// # Errors
    /// `Impossible` if that leaves none, or more than can be addressed.
    pub fn with_spare_percent(mut self, spare_percent: u32) -> Result<Profile, ProfileError> {
        let shape = &mut self.geometry;
        let exported = u64::from(shape.exported_erase_blocks);
        let total = exported + (exported * u64::from(spare_percent)).div_ceil(100);
        shape.erase_blocks = u32::try_from(total).map_err(|_| ProfileError::Impossible {
            key: "erase_blocks",
            rule: "makes at most 2^30 pages",
        })?;
        self.check()?;
        Ok(self)
    }
}

/// The values of a text by key.
struct Values<'a>(Vec<(&'static str, &'a str)>);

impl<'a> Values<'a> {
    fn of(text: &'a str) -> Result<Values<'a>, ProfileError> {
        let mut values = Vec::with_capacity(KEYS.len());
        for (index, line) in text.lines().enumerate() {
            let wrong = |reason| ProfileError::Line { number: index + 1, reason };
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let (key, value) = line.split_once('=').ok_or(wrong("is not `key = value`"))?;
            let known = KEYS.iter().find(|known| **known == key.trim());
            let key = *known.ok_or(wrong("has an unknown key"))?;
            if values.iter().any(|(other, _)| *other == key) {
                return Err(wrong("repeats a key"));
            }
            values.push((key, value.trim()));
        }
        Ok(Values(values))
    }

    fn text(&self, key: &'static str) -> Result<&'a str, ProfileError> {
        let found = self.0.iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| *value).ok_or(ProfileError::Missing { key })
    }

    fn number(&self, key: &'static str) -> Result<u32, ProfileError> {
        let value = self.text(key)?;
        let digits = value.replace('_', "");
        digits.parse().map_err(|_| ProfileError::Value { key, value: value.to_string() })
    }

    fn answer(&self, key: &'static str) -> Result<bool, ProfileError> {
        match self.text(key)? {
            "yes" => Ok(true),
            "no" => Ok(false),
            value => Err(ProfileError::Value { key, value: value.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_that_comes_with_the_crate_is_possible_and_named_so() {
        for (name, _) in PROFILES {
            let profile = Profile::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(profile.name, name);
        }
        assert!(matches!(Profile::named("floppy"), Err(ProfileError::Unknown { .. })));
    }

    #[test]
    fn the_board_of_the_paper_has_its_numbers() {
        let shape = Profile::named("openssd").expect("it comes with the crate").geometry;
        assert_eq!(shape.page_size, 16384);
        assert_eq!(shape.pages_per_block, 128);
        assert_eq!((shape.exported_erase_blocks, shape.spare_erase_blocks()), (1536, 46));
        assert_eq!(shape.exported_bytes(), 3 << 30);
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let (_, text) = PROFILES[PROFILES.len() - 1];
        let with = |key: &str, value: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{key} "))).expect(key);
            Profile::parse(&text.replace(line, &format!("{key} = {value}")))
        };
        for (key, value) in [
            ("channels", "0"),
            ("dies_per_channel", "4000000000"),
            ("pages_per_block", "1"),
            ("page_size", "5000"),
            ("page_size", "2048"),
            ("erase_blocks", "4000000000"),
            ("exported_erase_blocks", "0"),
            ("exported_erase_blocks", "100000"),
            ("read_ns", "0"),
            ("pages_per_program", "0"),
            ("pages_per_program", "7"),
            ("link_bytes_per_us", "0"),
            ("command_size_max", "512"),
            ("queue_depth", "0"),
            ("buffer_pages", "4000000"),
            ("buffer_combines", "yes"),
            ("log_blocks", "0"),
        ] {
            let refused = with(key, value);
            assert!(matches!(refused, Err(ProfileError::Impossible { .. })), "{key} = {value}");
        }
        assert!(matches!(with("channels", "-1"), Err(ProfileError::Value { .. })));
        assert!(matches!(with("channels", "99999999999"), Err(ProfileError::Value { .. })));
        assert!(matches!(with("buffer_combines", "perhaps"), Err(ProfileError::Value { .. })));
    }

    #[test]
    fn a_text_that_is_no_profile_says_where() {
        let line = |text: &str| match Profile::parse(text) {
            Err(ProfileError::Line { number, reason }) => (number, reason),
            other => panic!("{other:?}"),
        };
        assert_eq!(line("name = x\nnonsense").0, 2);
        assert_eq!(line("# fine\n\nspeed = 11"), (3, "has an unknown key"));
        assert_eq!(line("name = x\nname = y"), (2, "repeats a key"));
        let missing = Profile::parse("name = x");
        assert_eq!(missing, Err(ProfileError::Missing { key: "channels" }));
    }

    #[test]
    fn another_size_keeps_the_share_of_spare() {
        let profile = Profile::named("openssd").expect("it comes with the crate");
        let half = profile.clone().resized(1536 << 20).expect("a size that is possible");
        assert_eq!(half.geometry.exported_erase_blocks, 768);
        assert_eq!(half.geometry.spare_erase_blocks(), 23);
        assert!(profile.clone().resized(0).is_err());
        assert!(profile.clone().resized(1 << 60).is_err());
        let spare = profile.with_spare_percent(7).expect("possible").geometry.spare_erase_blocks();
        assert_eq!(spare, 108);
    }
}
