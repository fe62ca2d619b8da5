//! A disk that says yes to a flush and does nothing: the canary of the power cuts.

use coulter_device::{Command, CommandKind, Completion, Device, Properties, Region, Wait, Waker};
use std::io;
use std::os::fd::BorrowedFd;

/// A disk that lies about flushes.
#[derive(Debug)]
pub(crate) struct Liar<D> {
    inner: D,
    done: Vec<Completion>,
}

impl<D> Liar<D> {
    pub(crate) fn new(inner: D) -> Liar<D> {
        Liar { inner, done: Vec::new() }
    }
}

// SAFETY: a flush has no memory; every other command is the inner device's.
unsafe impl<D: Device> Device for Liar<D> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        if command.kind == CommandKind::Flush {
            return self.done.push(Completion { tag: command.tag, result: Ok(()) });
        }
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(command) };
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let wait = if self.done.is_empty() { wait } else { Wait::No };
        out.append(&mut self.done);
        self.inner.poll(out, wait)
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        if !self.done.is_empty() {
            self.inner.waker().wake();
        }
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
