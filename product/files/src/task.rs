//! Operations under way.

use crate::canary::{Canary, sings};
use crate::request::{AllocateMode, Changes, Reply, Request, Response, read_span};
use coulter::buffer::Buffer;
use coulter_format::files::Time;
use std::ops::Range;

/// An operation, and what it waits for.
pub(crate) struct Task {
    /// Whom to answer; `None` for what the file system does by itself.
    pub(crate) request: Option<u64>,
    pub(crate) now: Time,
    pub(crate) work: Work,
    /// Commands of it that are out. Until they are complete it does not go on.
    pub(crate) out: u32,
    /// The first of them that failed.
    pub(crate) failed: Option<i32>,
    /// Blocks that were read for it, by host block.
    pub(crate) old: Vec<(u64, Buffer)>,
    /// The answer, while that has to wait.
    pub(crate) reply: Option<Reply>,
    /// How it ends once nothing of it is out.
    pub(crate) ending: Option<Result<Reply, i32>>,
    /// Capacity of the buffer that came with the request, and goes back with the answer.
    lent: Option<usize>,
}

impl Task {
    pub(crate) fn new(request: Option<u64>, work: Work, now: Time) -> Task {
        let lent = work.lent();
        assert!(request.is_some() || lent.is_none(), "who asks nothing lends nothing");
        let old = Vec::new();
        Task { request, now, work, out: 0, failed: None, old, reply: None, ending: None, lent }
    }

    /// A task of the file system's own.
    pub(crate) fn of_itself(work: Work) -> Task {
        Task::new(None, work, Time::default())
    }

    /// The answer to the request, if there was one. What the task made for itself is freed here.
    pub(crate) fn answer(mut self, mut result: Result<Reply, i32>) -> Option<Response> {
        assert!(self.ending.is_none(), "what has ended is answered");
        let id = self.request?;
        let mut buffer = Buffer::empty();
        match (&mut result, self.lent) {
            (Err(_), Some(_)) => buffer = self.take_lent(),
            (Err(_), None) if sings(Canary::OwnBufferGivenBack) => buffer = self.take_lent(),
            (Ok(Reply::Written(_, own)), None) => *own = Buffer::empty(),
            _ => {}
        }
        let given = match &result {
            Ok(Reply::Data(buffer, _) | Reply::Written(_, buffer)) => buffer.capacity(),
            _ => buffer.capacity(),
        };
        let is_right = given == self.lent.unwrap_or(0) || sings(Canary::OwnBufferGivenBack);
        assert!(is_right, "a request gets its own buffer back, and no other");
        Some(Response { id, result, buffer })
    }

    /// The buffer of a request that failed, from where it is by now.
    fn take_lent(&mut self) -> Buffer {
        let buffer = match (self.reply.take(), &mut self.work) {
            (Some(Reply::Written(_, buffer)), _) => buffer,
            (_, Work::Read(read)) => std::mem::take(&mut read.buffer),
            (_, Work::Write(write)) => std::mem::take(&mut write.payload),
            _ => Buffer::empty(),
        };
        match self.old.pop() {
            // A read of one piece goes right into it.
            Some((_, piece)) if buffer.capacity() == 0 => piece,
            _ => buffer,
        }
    }
}

/// What an operation does, and how far it is.
#[expect(clippy::large_enum_variant, reason = "it is kept in place, so that none is allocated")]
pub(crate) enum Work {
    /// Names and attributes: one step.
    Meta(Request),
    Read(Read),
    Write(Write),
    Resize(Resize),
    Allocate(Allocate),
    /// `None` until it knows what it waits for.
    Sync(Option<u64>),
    /// Takes away what an inode has too much.
    Reap(u64),
    /// Looks for what a crash has left to be taken away.
    FindOrphans,
}

impl Work {
    /// The operation that a request asks for.
    pub(crate) fn of(request: Request) -> Work {
        match request {
            Request::Read { inode, offset, length, buffer } => Work::Read(Read {
                inode,
                offset,
                length,
                buffer,
                found: None,
                pieces: Vec::new(),
                copy_to: None,
            }),
            Request::Copy { from, from_offset, to, to_offset, length } => {
                let length = length.min(1 << 20) as u32;
                Work::Read(Read {
                    inode: from,
                    offset: from_offset,
                    length,
                    buffer: Buffer::zeroed(read_span(from_offset, length)),
                    found: None,
                    pieces: Vec::new(),
                    copy_to: Some((to, to_offset)),
                })
            }
            Request::Write { inode, offset, buffer, kills_privileges, sync } => {
                Work::Write(Write {
                    inode,
                    offset,
                    length: buffer.len(),
                    payload: buffer,
                    done: 0,
                    kills_privileges,
                    sync,
                    behind: None,
                })
            }
            Request::Change { inode, changes } if changes.size.is_some() => Work::Resize(Resize {
                inode,
                size: changes.size.unwrap_or(0),
                changes,
                behind: None,
                drains: false,
            }),
            Request::Allocate { inode, offset, length, mode } => Work::Allocate(Allocate {
                inode,
                offset,
                length,
                mode,
                behind: None,
                visible: Vec::new(),
                is_punched: false,
                next: 0,
                is_done: false,
            }),
            Request::Sync | Request::SyncNode { .. } => Work::Sync(None),
            other => Work::Meta(other),
        }
    }

    /// Capacity of the buffer that came with the request, before anything was done.
    fn lent(&self) -> Option<usize> {
        match self {
            Work::Read(read) if read.copy_to.is_none() => Some(read.buffer.capacity()),
            Work::Write(write) => Some(write.payload.capacity()),
            _ => None,
        }
    }

    /// Whether it is refused where nothing may change.
    pub(crate) fn changes_something(&self) -> bool {
        match self {
            Work::Read(read) => read.copy_to.is_some(),
            Work::Write(_) | Work::Resize(_) | Work::Allocate(_) | Work::Reap(_) => true,
            Work::Sync(_) | Work::FindOrphans => false,
            Work::Meta(request) => !matches!(
                request,
                Request::Lookup { .. }
                    | Request::Attributes { .. }
                    | Request::ReadLink { .. }
                    | Request::Seek { .. }
                    | Request::List { .. }
                    | Request::Xattr { .. }
                    | Request::XattrNames { .. }
                    | Request::Statistics
            ),
        }
    }
}

pub(crate) struct Read {
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) buffer: Buffer,
    /// Which bytes of the buffer are the answer, once that is known.
    pub(crate) found: Option<std::ops::Range<usize>>,
    /// Pieces on their way: host block, and where in the buffer.
    pub(crate) pieces: Vec<(u64, usize)>,
    /// Where to write what was read, if it is a copy.
    pub(crate) copy_to: Option<(u64, u64)>,
}

pub(crate) struct Write {
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) payload: Buffer,
    pub(crate) length: usize,
    pub(crate) done: usize,
    pub(crate) kills_privileges: bool,
    pub(crate) sync: bool,
    pub(crate) behind: Option<Behind>,
}

pub(crate) struct Resize {
    pub(crate) inode: u64,
    pub(crate) changes: Changes,
    pub(crate) size: u64,
    pub(crate) behind: Option<Behind>,
    /// It was done, and blocks are still to go.
    pub(crate) drains: bool,
}

pub(crate) struct Allocate {
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) mode: AllocateMode,
    pub(crate) behind: Option<Behind>,
    pub(crate) visible: Vec<Edge>,
    pub(crate) is_punched: bool,
    /// The next block to be allocated.
    pub(crate) next: u64,
    /// It waits for its data only.
    pub(crate) is_done: bool,
}

/// Bytes of one block of a file that become zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) block: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// What lies behind the end of a file and becomes zero before the file grows: nobody sees it until
/// then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behind {
    /// In its last block.
    pub(crate) edge: Option<Edge>,
    /// In whole blocks that the file has there: of these, which still have to be looked at.
    pub(crate) blocks: Range<u64>,
}

impl Behind {
    pub(crate) fn is_empty(&self) -> bool {
        self.edge.is_none() && self.blocks.is_empty()
    }
}

/// How an operation goes on.
pub(crate) enum Progress {
    /// It waits, and will be run again.
    Waits,
    /// It is to be run again after others.
    Yields,
    Ends(Result<Reply, i32>),
}
