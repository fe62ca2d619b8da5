//! Between the engine and the device.

use super::Driver;
use coulter_device::{Command, Completion};
use coulter_engine::{self as engine, Io, IoId};
use coulter_format::{BLOCK_SIZE, Pba};

impl Driver {
    /// Hands a command of the engine to the device.
    #[inline]
    pub(super) fn submit(&mut self, io: Io) {
        let tag = u64::from(io.id.0);
        let bytes = |count: u32| u64::from(count) * BLOCK_SIZE as u64;
        let place = |pba: Pba| pba.byte_offset();
        let command = match io.command {
            engine::Command::Read { pba, count, target } => {
                let memory = self.pool.target(target, count);
                Command::read(tag, place(pba), bytes(count), memory)
            }
            engine::Command::Write { pba, count, source, stream } => {
                let memory = self.pool.target(source, count);
                let write = Command::write(tag, place(pba), bytes(count), memory);
                // Zero would say nothing.
                Command { stream: 1 + stream as u8, ..write }
            }
            engine::Command::Flush => Command::flush(tag),
            engine::Command::Discard { pba, count } => {
                Command::discard(tag, place(pba), bytes(count))
            }
            engine::Command::Prepare { pba, count } => {
                Command::prepare(tag, place(pba), bytes(count))
            }
        };
        self.counters.submit(&command);
        self.space.note(&command);
        self.commands_out += 1;
        // SAFETY: the memory belongs to the pool or to a request in the table of jobs, and both
        // outlive the device's use of it: a request is finished only after the engine has seen the
        // completions of all its commands, and `abandon` drops the device first. The engine leaves
        // memory alone that it has named in a command.
        unsafe { self.device.submit(command) };
    }

    pub(super) fn handle_completion(&mut self, completion: Completion) {
        if completion.result.is_err() && self.space.takes_note_of(&completion) {
            return;
        }
        self.counters.complete(&completion);
        self.commands_out -= 1;
        let id = IoId(u32::try_from(completion.tag).expect("the device keeps the tag"));
        let result = completion.result.map_err(|error| error.errno);
        self.engine.handle_completion(id, result, &mut self.pool);
    }
}
