//! POSIX access control lists, as the kernel hands them over in an extended attribute.
//!
//! The kernel reads them and checks permissions by them. What is left to the file system: the
//! mode's bits and the list of the same file agree, and what is made in a directory with a default
//! list gets its list from there. The rules are those of POSIX.1e draft 17, section 23.1.5, which
//! Linux follows.
//!
//! ```text
//! 0   version (u32), which is 2
//! 4   entries, 8 bytes each: tag (u16), permissions (u16), user or group (u32)
//! ```

/// The attribute with the list of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list of what will be made in a directory.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD_SIZE: usize = 4;
const ENTRY_SIZE: usize = 8;

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list that is well formed: owner, owning group and others occur once, entries are in the order
/// of their tags, and a mask is there if users or groups are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessList {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl AccessList {
    /// The list in an attribute's value; `None` if it is no such list.
    pub(crate) fn decode(value: &[u8]) -> Option<AccessList> {
        let (version, entries) = value.split_first_chunk::<HEAD_SIZE>()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_SIZE>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let entries = entries.iter().map(|bytes| {
            let [tag_low, tag_high, low, high, id @ ..] = *bytes;
            Entry {
                tag: u16::from_le_bytes([tag_low, tag_high]),
                permissions: u16::from_le_bytes([low, high]),
                id: u32::from_le_bytes(id),
            }
        });
        let list = AccessList { entries: entries.collect() };
        list.is_well_formed().then_some(list)
    }

    fn is_well_formed(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let names = count(USER) + count(GROUP);
        let known = [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHER];
        [OWNER, OWNING_GROUP, OTHER].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (names == 0 || count(MASK) == 1)
            && self.entries.iter().all(|entry| known.contains(&entry.tag) && entry.permissions <= 7)
            && self.entries.is_sorted_by_key(|entry| entry.tag)
    }

    /// The attribute's value.
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(self.is_well_formed(), "a list stays well formed");
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// Whether it says no more than a mode does.
    pub(crate) fn is_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// The entry that the mode's bits for the group stand for.
    fn group_class(&self) -> u16 {
        if self.entries.iter().any(|entry| entry.tag == MASK) { MASK } else { OWNING_GROUP }
    }

    fn of(&self, tag: u16) -> u16 {
        let entry = self.entries.iter().find(|entry| entry.tag == tag);
        entry.expect("a list has this entry").permissions
    }

    fn set(&mut self, tag: u16, permissions: u16) {
        let entry = self.entries.iter_mut().find(|entry| entry.tag == tag);
        entry.expect("a list has this entry").permissions = permissions;
    }

    /// `mode` with the permissions that the list gives.
    pub(crate) fn mode_from(&self, mode: u32) -> u32 {
        let [owner, group, other] = [OWNER, self.group_class(), OTHER].map(|tag| self.of(tag));
        mode & !0o777 | u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(other)
    }

    /// Gives the list the permissions of a mode.
    pub(crate) fn take_mode(&mut self, mode: u32) {
        let bits = |shift: u32| (mode >> shift) as u16 & 7;
        self.set(OWNER, bits(6));
        self.set(self.group_class(), bits(3));
        self.set(OTHER, bits(0));
        assert_eq!(self.mode_from(mode), mode, "the list and the mode agree");
    }

    /// What a new file gets of the default list of its directory, if `mode` is asked for: no more
    /// than both allow.
    pub(crate) fn narrow(&mut self, mode: u32) {
        let allowed = self.mode_from(mode) & mode;
        self.take_mode(allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> AccessList {
        let entry = |&(tag, permissions, id)| Entry { tag, permissions, id };
        AccessList { entries: entries.iter().map(entry).collect() }
    }

    const NOBODY: u32 = u32::MAX;

    fn named() -> AccessList {
        let first = [(OWNER, 7, NOBODY), (USER, 6, 12), (OWNING_GROUP, 5, NOBODY)];
        list(&[&first[..], &[(MASK, 7, NOBODY), (OTHER, 1, NOBODY)]].concat())
    }

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else_is() {
        let value = named().encode();
        assert_eq!(AccessList::decode(&value), Some(named()));
        for length in 0..value.len() {
            assert_eq!(AccessList::decode(&value[..length]), None, "{length} bytes");
        }
        let mut other = value.clone();
        other[0] = 3;
        assert_eq!(AccessList::decode(&other), None, "another version");
        let without_mask: Vec<u8> = [&value[..28], &value[36..]].concat();
        assert_eq!(AccessList::decode(&without_mask), None, "a named user needs a mask");
        let mut wide = value;
        wide[6] = 8;
        assert_eq!(AccessList::decode(&wide), None, "permissions are three bits");
    }

    #[test]
    fn a_mode_and_a_list_agree() {
        let minimal = list(&[(OWNER, 6, NOBODY), (OWNING_GROUP, 4, NOBODY), (OTHER, 0, NOBODY)]);
        assert!(minimal.is_mode() && !named().is_mode());
        assert_eq!(minimal.mode_from(0o102_777), 0o102_640);
        assert_eq!(named().mode_from(0o100_000), 0o100_771, "the mask stands for the group");
        let mut changed = named();
        changed.take_mode(0o604);
        assert_eq!((changed.of(MASK), changed.of(OWNING_GROUP), changed.of(USER)), (0, 5, 6));
    }

    #[test]
    fn a_new_file_gets_what_both_the_directory_and_the_caller_allow() {
        let mut list = named();
        list.narrow(0o100_664);
        assert_eq!(list.mode_from(0o100_664), 0o100_660);
        assert_eq!((list.of(OWNER), list.of(MASK), list.of(OTHER)), (6, 6, 0));
    }
}
