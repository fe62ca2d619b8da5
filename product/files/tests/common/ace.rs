//! Small workloads, each followed by nothing or by a sync, after the operations and the tree of ACE
//! (Mohan et al., OSDI '18): test, A and B with files foo and bar.

use super::{Backend, Mount};
use coulter_files::{AllocateMode, Changes, Name, NewNode, ROOT, RenameFlags, Request, XattrMode};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Falloc(&'static str, AllocateMode, u64, u64),
    Write(&'static str, u64, u64),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Symlink(&'static str),
    /// A pipe.
    Mknod(&'static str),
    /// More names of a file: its own with `_0`, `_1` and so on.
    Links(&'static str, u32),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    Truncate(&'static str, u64),
    TmpLink(&'static str),
    Sync,
    /// What is changed goes out, without becoming durable.
    Submit,
}

const FILES: [&str; 4] = ["foo", "bar", "A/foo", "B/bar"];

/// The operations of the alphabet with their arguments.
pub fn alphabet() -> Vec<Op> {
    use Op::*;
    let mut all = vec![
        Create("foo"),
        Create("A/foo"),
        Mkdir("A"),
        Mkdir("A/C"),
        Symlink("A/link"),
        TmpLink("B/tmp"),
        Rmdir("A"),
        Rmdir("B"),
        Link("foo", "bar"),
        Link("A/foo", "B/bar"),
        Link("foo", "A/foo"),
        Rename("foo", "bar"),
        Rename("A/foo", "A/bar"),
        Rename("A/foo", "B/bar"),
        Rename("A", "B"),
        Rename("A", "B/C"),
        Exchange("foo", "bar"),
        Exchange("A", "B"),
    ];
    for file in FILES {
        let keep = AllocateMode::Allocate { keep_size: true };
        let grow = AllocateMode::Allocate { keep_size: false };
        let zero = AllocateMode::Zero { keep_size: false };
        let zero_keep = AllocateMode::Zero { keep_size: true };
        all.extend([
            Falloc(file, keep, 8192, 8192),
            Falloc(file, grow, 4000, 9000),
            Falloc(file, zero, 1000, 9000),
            Falloc(file, zero_keep, 4096, 4096),
            Falloc(file, AllocateMode::Punch, 2000, 7000),
            Write(file, 0, 5000),
            Write(file, 8192, 8192),
            Write(file, 9999, 7),
            Unlink(file),
            SetXattr(file),
            RemoveXattr(file),
            Truncate(file, 0),
            Truncate(file, 2500),
            Truncate(file, 20000),
        ]);
    }
    all
}

/// The tree that is there before: everything, or nothing but directories.
pub fn bases() -> Vec<Vec<Op>> {
    use Op::*;
    let directories = vec![Mkdir("A"), Mkdir("B"), Sync];
    let full = vec![
        Mkdir("A"),
        Mkdir("B"),
        Create("foo"),
        Write("foo", 0, 10000),
        Create("A/foo"),
        Write("A/foo", 0, 10000),
        SetXattr("A/foo"),
        Create("B/bar"),
        Write("B/bar", 0, 3000),
        Sync,
    ];
    vec![vec![], directories, full]
}

impl<B: Backend> Mount<B> {
    /// Does an operation; it may fail.
    pub fn perform(&mut self, op: Op, number: u64) -> Result<(), i32> {
        match op {
            Op::Create(path) => self.create(path).map(drop),
            Op::Mkdir(path) => self.mkdir(path).map(drop),
            Op::Falloc(path, mode, offset, length) => {
                let inode = self.path(path)?;
                self.run(Request::Allocate { inode, offset, length, mode }).map(drop)
            }
            Op::Write(path, offset, length) => {
                let inode = self.path(path)?;
                let bytes: Vec<u8> =
                    (0..length).map(|at| (number * 31 + at % 251) as u8 | 1).collect();
                self.write(inode, offset, &bytes)
            }
            Op::Link(from, to) => {
                let inode = self.path(from)?;
                let (directory, name, _) = self.split(to)?;
                self.run(Request::Link { inode, directory, name })?;
                self.files.forget(inode, 1);
                Ok(())
            }
            Op::Unlink(path) => {
                let (directory, name, _) = self.split(path)?;
                self.run(Request::Unlink { directory, name }).map(drop)
            }
            Op::Rmdir(path) => {
                let (directory, name, _) = self.split(path)?;
                self.run(Request::RemoveDirectory { directory, name }).map(drop)
            }
            Op::Rename(from, to) => self.rename(from, to, RenameFlags::Replace),
            Op::Exchange(from, to) => self.rename(from, to, RenameFlags::Exchange),
            Op::Symlink(path) => {
                let (directory, name, _) = self.split(path)?;
                let target: Box<[u8]> = vec![b't'; 2000].into();
                let mode = libc::S_IFLNK | 0o777;
                let new = NewNode { mode, target: Some(target), ..NewNode::default() };
                self.run(Request::Make { directory, name, new }).map(drop)
            }
            Op::Mknod(path) => self.make(path, libc::S_IFIFO | 0o600).map(drop),
            Op::Links(path, count) => {
                let inode = self.path(path)?;
                for number in 0..count {
                    let (directory, name, _) = self.split(&format!("{path}_{number}"))?;
                    self.run(Request::Link { inode, directory, name })?;
                    self.files.forget(inode, 1);
                }
                Ok(())
            }
            Op::SetXattr(path) => {
                let (inode, name) = (self.path(path)?, Name::new(b"user.x")?);
                let value = vec![number as u8; 3000].into();
                self.run(Request::SetXattr {
                    inode,
                    name,
                    value,
                    mode: XattrMode::Any,
                    kills_set_gid: false,
                })
                .map(drop)
            }
            Op::RemoveXattr(path) => {
                let (inode, name) = (self.path(path)?, Name::new(b"user.x")?);
                self.run(Request::RemoveXattr { inode, name }).map(drop)
            }
            Op::Truncate(path, size) => {
                let inode = self.path(path)?;
                let changes = Changes { size: Some(size), ..Changes::default() };
                self.run(Request::Change { inode, changes }).map(drop)
            }
            Op::TmpLink(path) => self.link_unnamed(path),
            Op::Sync => {
                self.sync();
                Ok(())
            }
            Op::Submit => {
                self.files.submit_changes();
                self.poll();
                Ok(())
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) -> Result<(), i32> {
        let (from, name, _) = self.split(from)?;
        let (to, new_name, _) = self.split(to)?;
        self.run(Request::Rename { from, name, to, new_name, flags }).map(drop)
    }

    fn link_unnamed(&mut self, path: &str) -> Result<(), i32> {
        let (directory, name, _) = self.split(path)?;
        let new = NewNode { mode: libc::S_IFREG | 0o600, ..NewNode::default() };
        let made = self.run(Request::MakeUnnamed { directory: ROOT, new })?;
        let coulter_files::Reply::Entry(entry) = made else { panic!("an entry") };
        let inode = entry.number;
        self.write(inode, 0, b"unnamed")?;
        self.run(Request::Link { inode, directory, name })?;
        self.files.forget(inode, 2);
        Ok(())
    }
}
