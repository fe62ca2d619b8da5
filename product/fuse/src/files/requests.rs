//! What a message asks of the file system.

use super::message::{Access, Attributes, Header, Message};
use coulter_files::{Changes, Name, NewNode, RenameFlags, Request, SetTime, Time};

/// The form of the reply to a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Lookup,
    Entry {
        opens: Option<Access>,
    },
    Attributes,
    Statx,
    Done,
    Ioctl,
    Data,
    Written,
    Copied {
        is_long: bool,
    },
    Link,
    /// The value, at most `size` bytes; with `size` 0, only the length of the value.
    Value {
        size: u32,
    },
    Offset,
    Listing {
        plus: bool,
    },
    Usage,
    /// A request of the mount itself, at its end.
    Nobody,
}

/// Requests about names.
pub(super) fn name_request(header: Header, message: Message<'_>) -> Result<(Asked, Request), i32> {
    let (inode, directory) = (header.node, header.node);
    let new = |mode, umask, device, target| NewNode {
        mode,
        umask,
        uid: header.uid,
        gid: header.gid,
        device,
        target,
    };
    Ok(match message {
        Message::Make { name, mode, umask, device, opens } => {
            let new = new(mode, umask, device, None);
            let request = Request::Make { directory, name: Name::new(name)?, new };
            (Asked::Entry { opens }, request)
        }
        Message::MakeUnnamed { mode, umask, opens } => {
            let request = Request::MakeUnnamed { directory, new: new(mode, umask, 0, None) };
            (Asked::Entry { opens: Some(opens) }, request)
        }
        Message::Symlink { name, target } => {
            if target.len() > 4095 {
                return Err(libc::ENAMETOOLONG);
            }
            let new = new(libc::S_IFLNK | 0o777, 0, 0, Some(target.into()));
            let request = Request::Make { directory, name: Name::new(name)?, new };
            (Asked::Entry { opens: None }, request)
        }
        Message::Unlink { name } => {
            (Asked::Done, Request::Unlink { directory, name: Name::new(name)? })
        }
        Message::RemoveDirectory { name } => {
            (Asked::Done, Request::RemoveDirectory { directory, name: Name::new(name)? })
        }
        Message::Rename { to, name, new_name, flags } => {
            let flags = match flags.ok_or(libc::EINVAL)? {
                RenameFlags::Whiteout { .. } => {
                    RenameFlags::Whiteout { uid: header.uid, gid: header.gid }
                }
                flags => flags,
            };
            let (name, new_name) = (Name::new(name)?, Name::new(new_name)?);
            (Asked::Done, Request::Rename { from: directory, name, to, new_name, flags })
        }
        Message::Link { inode, name } => {
            let request = Request::Link { inode, directory, name: Name::new(name)? };
            (Asked::Entry { opens: None }, request)
        }
        Message::ReadLink => (Asked::Link, Request::ReadLink { inode }),
        Message::GetXattr { name, size } => {
            (Asked::Value { size }, Request::Xattr { inode, name: Name::of_attribute(name)? })
        }
        Message::ListXattr { size } => (Asked::Value { size }, Request::XattrNames { inode }),
        Message::SetXattr { name, value, mode, kills_set_gid } => {
            let name = Name::of_attribute(name)?;
            let value = value.into();
            (Asked::Done, Request::SetXattr { inode, name, value, mode, kills_set_gid })
        }
        Message::RemoveXattr { name } => {
            (Asked::Done, Request::RemoveXattr { inode, name: Name::of_attribute(name)? })
        }
        _ => return Err(libc::ENOSYS),
    })
}

pub(super) fn changes(set: &Attributes) -> Changes {
    let time = |set: Option<Time>| set.map_or(SetTime::Now, SetTime::To);
    // A change of owner takes privileges away, unasked (see FUSE_HANDLE_KILLPRIV_V2).
    let owner = set.uid.is_some() || set.gid.is_some();
    Changes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        accessed: set.accessed.map(time),
        modified: set.modified.map(time),
        changed: set.changed,
        kills_privileges: set.kills_privileges || owner,
    }
}
