//! Data of tasks: asked of the volume, and given to it.

use crate::canary::{Canary, sings};
use crate::gather;
use crate::io::{Command, WRITE_BLOCKS_MAX};
use crate::parts::{Parts, Purpose};
use crate::space::Run;
use crate::task::Task;
use coulter::buffer::Buffer;
use coulter_format::BLOCK_SIZE;

/// Blocks of a write that is gathered, at most. A longer one is a command of its own.
const SMALL_MAX: usize = 32;
/// The command that stores a buffer in runs.
fn command(runs: &[Run], buffer: Buffer) -> Command {
    match runs {
        [run] => Command::Write { block: run.block, buffer },
        _ => Command::WriteMany { changes: gather::changes(runs).collect(), buffer, fua: false },
    }
}

impl Parts {
    /// Submits data of a task, or gathers it; then the buffer comes back, and the task need not
    /// wait.
    pub(crate) fn store(
        &mut self,
        id: usize,
        task: &mut Task,
        runs: &[Run],
        buffer: Buffer,
    ) -> Option<Buffer> {
        if sings(Canary::DataAfterSet) {
            self.submit_set(false);
        }
        let blocks = buffer.len() / BLOCK_SIZE;
        let counted: u64 = runs.iter().map(|run| run.count).sum();
        assert_eq!(counted, blocks as u64, "each block of data has its place");
        assert!(blocks <= WRITE_BLOCKS_MAX, "data fits into one command");
        self.counters.data_blocks_written += blocks as u64;
        if blocks <= SMALL_MAX && runs.len() <= blocks {
            if !self.traffic.gathered.has_room(blocks) {
                self.submit_gathered();
            }
            self.traffic.gathered.add(runs, &buffer);
            return Some(buffer);
        }
        self.submit_gathered();
        let sequence = self.flushes.issue(false);
        let purpose = Purpose::Data { ticket: self.desk.ticket(id), sequence };
        let io = self.desk.give(command(runs, buffer), purpose);
        runs.iter().for_each(|run| self.traffic.add_write(io, *run));
        task.out += 1;
        None
    }

    /// Submits what is gathered.
    pub(crate) fn submit_gathered(&mut self) {
        if self.traffic.gathered.is_empty() {
            return;
        }
        let mut buffer = self.sets.spare_buffer();
        let gathered = &mut self.traffic.gathered;
        buffer.set_length(gathered.blocks() * BLOCK_SIZE);
        buffer.copy_from_slice(gathered.data());
        let runs = gathered.runs().to_vec();
        gathered.clear();
        let sequence = self.flushes.issue(false);
        let io = self.desk.give(command(&runs, buffer), Purpose::Gathered { sequence });
        runs.iter().for_each(|run| self.traffic.add_write(io, *run));
    }

    /// Asks for data for a task.
    pub(crate) fn fetch(&mut self, id: usize, task: &mut Task, run: Run, buffer: Buffer) {
        assert_eq!(buffer.len() as u64, run.count * BLOCK_SIZE as u64, "whole blocks are fetched");
        self.counters.data_blocks_read += run.count;
        let command = Command::Read { block: run.block, buffer };
        let purpose = Purpose::Fetch { ticket: self.desk.ticket(id), block: run.block };
        let io = self.desk.give(command, purpose);
        self.traffic.add_read(io, run);
        task.out += 1;
    }
}
