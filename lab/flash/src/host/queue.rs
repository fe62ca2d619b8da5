//! The host's queue to the drive: at most so many commands at once, neighbours merged.

use super::remap::Remap;
use crate::drive::{Blocks, CommandError, Drive, WriteOptions};
use crate::units::{BLOCK_SIZE, Ns};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// When the commands that the drive has not answered will be answered.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    answers: BinaryHeap<Reverse<Ns>>,
    depth: usize,
}

impl Outstanding {
    pub(crate) fn new(depth: u32) -> Outstanding {
        Outstanding { answers: BinaryHeap::new(), depth: depth as usize }
    }

    /// When a command that wants to begin at `at` can.
    fn admit(&mut self, at: Ns) -> Ns {
        let mut now = at;
        while let Some(Reverse(answer)) = self.answers.peek() {
            if *answer > now && self.answers.len() < self.depth {
                break;
            }
            now = now.max(*answer);
            self.answers.pop();
        }
        now
    }
}

/// A drive and what is outstanding there.
#[derive(Debug)]
pub struct Queue<'a> {
    drive: &'a mut Drive,
    outstanding: &'a mut Outstanding,
    remap: Option<&'a mut Remap>,
    tag: Vec<u8>,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(
        drive: &'a mut Drive,
        outstanding: &'a mut Outstanding,
        remap: Option<&'a mut Remap>,
    ) -> Queue<'a> {
        Queue { drive, outstanding, remap, tag: Vec::new() }
    }

    /// Writes blocks at ascending addresses, neighbours in one command; answers when all are
    /// answered.
    pub(crate) fn write(
        &mut self,
        at: Ns,
        addresses: &[u64],
        options: WriteOptions,
    ) -> Result<Ns, CommandError> {
        let mut done = at;
        if let Some(remap) = &mut self.remap {
            // Whatever the addresses, in the log they are neighbours: one command for many of them.
            let most = (self.drive.profile().command_size_max / BLOCK_SIZE) as usize;
            for batch in addresses.chunks(most) {
                let begin = self.outstanding.admit(at);
                let answer = remap.write(self.drive, begin, batch, options)?;
                self.outstanding.answers.push(Reverse(answer));
                done = done.max(answer);
            }
            return Ok(done);
        }
        for blocks in self.runs(addresses) {
            done = done.max(self.write_run(at, blocks, options)?);
        }
        Ok(done)
    }

    /// One command's worth of writing.
    pub(crate) fn write_run(
        &mut self,
        at: Ns,
        blocks: Blocks,
        options: WriteOptions,
    ) -> Result<Ns, CommandError> {
        if self.remap.is_some() {
            let end = blocks.first + u64::from(blocks.count);
            let addresses: Vec<_> = (blocks.first..end).collect();
            return self.write(at, &addresses, options);
        }
        let begin = self.outstanding.admit(at);
        self.tag.clear();
        self.tag.resize(self.drive.keep().block_bytes() * blocks.count as usize, 1);
        let answer = self.drive.write(begin, blocks, &self.tag, options)?;
        self.outstanding.answers.push(Reverse(answer));
        Ok(answer)
    }

    /// Reads blocks, neighbours in one command.
    pub(crate) fn read(&mut self, at: Ns, addresses: &[u64]) -> Result<Ns, CommandError> {
        let mut done = at;
        let places;
        let addresses = match &self.remap {
            Some(remap) => {
                places = remap.translate(addresses);
                &places
            }
            None => addresses,
        };
        for blocks in self.runs(addresses) {
            let begin = self.outstanding.admit(at);
            self.tag.clear();
            self.tag.resize(self.drive.keep().block_bytes() * blocks.count as usize, 0);
            let answer = self.drive.read(begin, blocks, &mut self.tag)?;
            self.outstanding.answers.push(Reverse(answer));
            done = done.max(answer);
        }
        Ok(done)
    }

    /// Gives blocks up.
    pub(crate) fn trim(&mut self, at: Ns, blocks: Blocks) -> Result<Ns, CommandError> {
        if let Some(remap) = &mut self.remap {
            remap.trim(blocks);
            return Ok(at);
        }
        let begin = self.outstanding.admit(at);
        let answer = self.drive.trim(begin, blocks)?;
        self.outstanding.answers.push(Reverse(answer));
        Ok(answer)
    }

    /// Waits for what is outstanding, then flushes.
    pub(crate) fn flush(&mut self, at: Ns) -> Result<Ns, CommandError> {
        let begin = self.outstanding.admit(at);
        self.drive.flush(begin)
    }

    /// The commands for some addresses: runs of neighbours, none larger than the drive takes.
    fn runs(&self, addresses: &[u64]) -> Vec<Blocks> {
        let most = self.drive.profile().command_size_max / BLOCK_SIZE;
        let mut runs: Vec<Blocks> = Vec::new();
        for address in addresses {
            match runs.last_mut() {
                Some(run) if run.first + u64::from(run.count) == *address && run.count < most => {
                    run.count += 1;
                }
                _ => runs.push(Blocks { first: *address, count: 1 }),
            }
        }
        runs
    }
}
