//! A device that records every command with its time, to plot addresses over time.
//!
//! It costs two looks at the clock per command, and what the sink costs.

use crate::command::{Command, CommandKind, Completion, Properties, Region, Wait};
use crate::contract::Device;
use crate::revocation::Revocation;
use crate::slots::Slots;
use crate::wake::Waker;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One command, as it went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// When it was submitted, in nanoseconds since the device was made.
    pub time_ns: u64,
    /// What it did.
    pub kind: CommandKind,
    /// First byte on the device; zero for a flush.
    pub offset: u64,
    /// Bytes; zero for a flush.
    pub length: u64,
    /// From submission until `poll` gave the completion out, in nanoseconds.
    pub latency_ns: u64,
    /// Whether it succeeded.
    pub is_ok: bool,
}

/// Takes records, in the order of completion.
pub trait TraceSink: Send {
    /// Takes one record. Called on the device's thread: the quicker the better.
    fn record(&mut self, record: &TraceRecord);
}

impl<F: FnMut(&TraceRecord) + Send> TraceSink for F {
    fn record(&mut self, record: &TraceRecord) {
        self(record);
    }
}

/// Keeps records in memory, up to a number. Clones are handles to the same records.
#[derive(Clone, Debug)]
pub struct TraceLog {
    records: Arc<Mutex<Vec<TraceRecord>>>,
    count_max: usize,
}

impl TraceLog {
    /// An empty log that drops every record beyond `count_max`.
    pub fn new(count_max: usize) -> TraceLog {
        TraceLog { records: Arc::default(), count_max }
    }

    /// Takes the records out.
    pub fn take(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TraceSink for TraceLog {
    fn record(&mut self, record: &TraceRecord) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() < self.count_max {
            records.push(*record);
        }
    }
}

/// Writes records as lines of comma-separated values, under a line of names:
/// `time_ns,kind,offset,length,latency_ns,ok`.
#[derive(Debug)]
pub struct CsvTrace<W: Write + Send> {
    writer: W,
    /// After an error nothing more is written: a trace with a hole would mislead.
    is_broken: bool,
}

impl<W: Write + Send> CsvTrace<W> {
    /// Writes to `writer`, which does well to be buffered.
    ///
    /// # Errors
    /// When the line of names cannot be written.
    pub fn new(mut writer: W) -> io::Result<CsvTrace<W>> {
        writeln!(writer, "time_ns,kind,offset,length,latency_ns,ok")?;
        Ok(CsvTrace { writer, is_broken: false })
    }
}

impl<W: Write + Send> TraceSink for CsvTrace<W> {
    fn record(&mut self, record: &TraceRecord) {
        if self.is_broken {
            return;
        }
        let TraceRecord { time_ns, kind, offset, length, latency_ns, is_ok } = record;
        let (name, is_ok) = (kind.name(), u8::from(*is_ok));
        let line = writeln!(self.writer, "{time_ns},{name},{offset},{length},{latency_ns},{is_ok}");
        self.is_broken = line.is_err();
    }
}

/// A device that records every command.
pub struct TracedDevice<D, S> {
    inner: D,
    sink: S,
    start: Instant,
    flights: Slots<(Command, Instant)>,
}

impl<D: Device, S: TraceSink> TracedDevice<D, S> {
    /// Records what passes to and from `inner`.
    pub fn new(inner: D, sink: S) -> TracedDevice<D, S> {
        let flights = Slots::with_capacity(inner.properties().queue_depth);
        TracedDevice { inner, sink, start: Instant::now(), flights }
    }
}

// SAFETY: what the inner device completes is handed on, once; nothing else touches the memory.
unsafe impl<D: Device, S: TraceSink> Device for TracedDevice<D, S> {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    unsafe fn register(&mut self, regions: &[Region]) -> io::Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.register(regions) }
    }

    unsafe fn submit(&mut self, command: Command) {
        let tag = self.flights.insert((command, Instant::now()));
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(Command { tag, ..command }) };
    }

    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let before = out.len();
        self.inner.poll(out, wait)?;
        if out.len() == before {
            return Ok(());
        }
        // Completions that are given out together ended, for the caller, together.
        let now = Instant::now();
        for completion in &mut out[before..] {
            let (command, time) = self.flights.remove(completion.tag);
            completion.tag = command.tag;
            let is_flush = command.kind == CommandKind::Flush;
            self.sink.record(&TraceRecord {
                time_ns: time.duration_since(self.start).as_nanos() as u64,
                kind: command.kind,
                offset: if is_flush { 0 } else { command.offset },
                length: if is_flush { 0 } else { command.length },
                latency_ns: now.duration_since(time).as_nanos() as u64,
                is_ok: completion.result.is_ok(),
            });
        }
        Ok(())
    }

    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.inner.arm()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn revocation(&self) -> Option<Revocation> {
        self.inner.revocation()
    }
}

impl<D: std::fmt::Debug, S> std::fmt::Debug for TracedDevice<D, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TracedDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aligned::AlignedMemory;
    use crate::blocking;
    use crate::memory::MemoryStore;

    fn device<S: TraceSink>(sink: S) -> TracedDevice<impl Device, S> {
        let store = MemoryStore::new(1 << 20);
        TracedDevice::new(store.open().expect("nothing has it open"), sink)
    }

    #[test]
    fn every_command_leaves_a_record() {
        let log = TraceLog::new(3);
        let mut device = device(log.clone());
        let mut memory = AlignedMemory::zeroed(4096);
        blocking::write(&mut device, 8192, &mut memory).expect("in range");
        blocking::flush(&mut device).expect("a flush");
        blocking::read(&mut device, 1 << 20, &mut memory).expect_err("out of range");
        blocking::read(&mut device, 0, &mut memory).expect("in range");
        let records = log.take();
        assert_eq!(records.len(), 3, "the log drops what is beyond its limit");
        let seen: Vec<_> =
            records.iter().map(|is| (is.kind, is.offset, is.length, is.is_ok)).collect();
        assert_eq!(
            seen,
            [
                (CommandKind::Write, 8192, 4096, true),
                (CommandKind::Flush, 0, 0, true),
                (CommandKind::Read, 1 << 20, 4096, false),
            ]
        );
        assert!(records.is_sorted_by_key(|is| is.time_ns));
    }

    #[test]
    fn a_trace_is_written_as_values_under_their_names() {
        let mut text = Vec::new();
        let mut device = device(CsvTrace::new(&mut text).expect("memory takes it"));
        blocking::discard(&mut device, 4096, 8192).expect("in range");
        drop(device);
        let text = String::from_utf8(text).expect("text");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("time_ns,kind,offset,length,latency_ns,ok"));
        let values: Vec<_> = lines.next().expect("a record").split(',').collect();
        assert_eq!((values[1], values[2], values[3], values[5]), ("discard", "4096", "8192", "1"));
        assert_eq!(lines.next(), None);
    }
}
