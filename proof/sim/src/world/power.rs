//! Power cuts and openings, and what is compared after them.

use super::answers::present_as_shown;
use super::{EVENTS_MAX, Expected, Pending, World, number_of, violation};
use crate::device::Loss;
use crate::oracle::Violation;
use coulter_engine::{Command, Engine, Failure, Phase, Request, RequestId};
use coulter_format::{BLOCK_SIZE, Lba};
use std::ops::Range;

impl World {
    /// The process ends: its engine, its requests, what it had not yet handed over.
    pub(super) fn leave(&mut self) {
        if let Some(engine) = self.engine.take() {
            let statistics = engine.statistics();
            self.outcome.checkpoints += statistics.checkpoints;
            self.outcome.segments_cleaned += statistics.segments_cleaned;
            self.outcome.hole_blocks += statistics.hole_blocks;
            self.outcome.padded_blocks += statistics.padded_blocks;
            self.outcome.long_records += statistics.long_records;
            self.outcome.long_records_replayed += statistics.long_records_replayed;
            self.outcome.records_referred += statistics.records_referred;
            self.outcome.references_followed += statistics.references_followed;
            self.references_lost += statistics.references_lost;
            if !matches!(engine.phase(), Phase::Opening | Phase::Failed(_)) {
                // What was on its way when the device failed is no longer counted.
                let all = engine.read_only().is_some();
                let counted = match all {
                    true => statistics.recovery_cells_max,
                    false => statistics.recovery_cells,
                };
                // The superblock that an opening has found may be gone after the next cut, for it was never
                // flushed. Then the older one counts again, and what was counted for that.
                let before = self.recovery_cells.filter(|_| engine.phase() == Phase::Recovered);
                self.recovery_cells = Some(before.map_or(counted, |before| before.max(counted)));
            }
        }
        self.pending.clear();
        self.dismiss_clients();
        for expected in std::mem::take(&mut self.expected).into_values() {
            if let Expected::Read { buffer, .. } = expected {
                self.memory.take_host(buffer);
            }
        }
    }

    /// Cuts the power: writes under way may land in part or not at all.
    pub(super) fn cut(&mut self, loss: Loss) {
        self.outcome.crash_points += 1;
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_by_key(|pending| pending.due_ns);
        for Pending { io, data, .. } in pending {
            if let Command::Write { pba, .. } = io.command
                && self.random.chance(60)
            {
                self.device.write_shared(pba, data);
            }
        }
        self.leave();
        self.device.cut(loss, &mut self.random);
        self.lossless &= loss == Loss::Nothing;
        self.note(|_| format!("the power goes: {loss:?}"));
    }

    /// What lies on the device after a cut must satisfy the independent checker.
    pub(super) fn audit(&mut self) -> Result<(), Violation> {
        if self.tainted || self.ruins.any() {
            return Ok(());
        }
        if self.references_lost > 0 {
            return violation(format!(
                "{} references were counted for nothing",
                self.references_lost
            ));
        }
        let data = self.outcome.crash_points.is_multiple_of(self.audit_data_every);
        let result = self.device.check_with(data);
        result.map_err(|what| Violation { what: format!("the checker finds: {what}") })
    }

    /// Opens the store after a cut, the power going again and again, and compares what it holds.
    pub(super) fn reopen(&mut self, again: &[u32]) -> Result<(), Violation> {
        for after in again {
            self.begin_to_open();
            for _ in 0..*after {
                if !self.turn()? || matches!(self.engine().phase(), Phase::Failed(_)) {
                    break;
                }
            }
            let losses = [Loss::Nothing, Loss::Everything, Loss::SomeWrites, Loss::SomeSectors];
            let loss = losses[self.random.below(4) as usize];
            self.outcome.cuts_while_opening += 1;
            self.cut(loss);
            self.audit()?;
        }
        self.open()
    }

    /// An engine comes up. Whatever was left over from a flush that failed is shown no more.
    fn begin_to_open(&mut self) {
        self.device.forget_doomed();
        self.forgotten = false;
        let engine = Engine::open(self.config, self.device.size());
        self.engine = Some(engine.expect("there is memory"));
    }

    /// Opens the store and compares what it holds.
    pub(super) fn open(&mut self) -> Result<(), Violation> {
        self.failed = false;
        self.explain_ruins();
        self.begin_to_open();
        let mut events = 0;
        loop {
            self.poll();
            let phase = self.engine().phase();
            if phase == Phase::Running || (self.engine().read_only().is_some() && self.failed) {
                break;
            }
            if let Phase::Failed(error) = phase {
                return self.refused_to_open(&format!("{error:?}"));
            }
            events += 1;
            if !self.turn()? || events > EVENTS_MAX {
                if self.tainted && self.engine().read_only().is_some() {
                    return self.refused_to_open("read-only");
                }
                return violation(format!("opening stands still: {}", self.state()));
            }
        }
        self.outcome.recoveries += 1;
        self.note_degradation()?;
        self.compare_memory()?;
        self.admit_clients();
        let observed = self.read_everything()?;
        if self.tainted {
            return self.end_of_a_tainted_life();
        }
        if self.failed {
            // It became read-only, or refused a read, while it opened: once more, without.
            self.cut(Loss::Nothing);
            return self.open();
        }
        let lossless = std::mem::replace(&mut self.lossless, true);
        let (ruins, shape) = (&self.ruins, &self.shape);
        let is_explained = |lba| ruins.explains(shape.place(lba));
        self.oracle.recover(&observed, lossless, is_explained)?;
        self.outcome.blocks_in_doubt += self.oracle.in_doubt();
        Ok(())
    }

    /// Recovery holds no more than the engine said that it may need, and no more than it may have: else a
    /// store whose memory is full would not open.
    fn compare_memory(&mut self) -> Result<(), Violation> {
        let statistics = self.engine().statistics();
        let (held, most) = (statistics.recovered_cells, statistics.recovery_cells_max);
        self.outcome.recovery_fill_max = self.outcome.recovery_fill_max.max(held * 100 / most);
        let Some(counted) = self.recovery_cells.filter(|_| !self.tainted && !self.ruins.any())
        else {
            return Ok(());
        };
        if held > counted || held > most {
            return violation(format!(
                "recovery holds {held} chunks of updates, {counted} were counted, and {most} are \
                 what it may have"
            ));
        }
        Ok(())
    }

    fn refused_to_open(&mut self, why: &str) -> Result<(), Violation> {
        self.note(|_| format!("the store is not opened: {why}"));
        if self.tainted {
            self.leave();
            return Ok(());
        }
        if self.failed {
            self.leave();
            return self.open();
        }
        violation(format!("the store did not open: {why}"))
    }

    /// What was lost cannot be told from what was never promised, so the life ends here: all that is read
    /// is right or an error, as `read_everything` has seen.
    fn end_of_a_tainted_life(&mut self) -> Result<(), Violation> {
        self.drain()?;
        self.leave();
        Ok(())
    }

    /// Blocks to be read from this one on: those that were ever written, or all, for any may be in doubt.
    fn next_to_read(&self, lba: u64) -> Option<Range<u64>> {
        match self.ruins.any() {
            false => self.oracle.touched(lba),
            true => (lba < self.volume_size).then(|| lba..self.volume_size.min(lba + 512)),
        }
    }

    /// Reads all that was ever written while nothing else happens; the rest is zero.
    fn read_everything(&mut self) -> Result<Vec<Option<u64>>, Violation> {
        let mut observed = vec![Some(0); self.volume_size as usize];
        let mut lba = 0;
        let mut longest = u64::MAX;
        while let Some(range) = self.next_to_read(lba) {
            let count = (range.end - range.start).min(longest);
            let together = self.shape.together(range.start, count);
            let range = range.start..range.start + together;
            lba = range.end;
            let count = together as u32;
            let buffer = self.memory.add_host(vec![[1; BLOCK_SIZE]; count as usize]);
            self.next_request += 1;
            let id = RequestId(self.next_request);
            let place = Lba(self.shape.place(range.start));
            let request = Request::Read { lba: place, count, buffer };
            let (engine, memory) = (self.engine.as_mut().expect("open"), &mut self.memory);
            if engine.handle_request(id, request, memory).is_err() {
                return violation("a read is refused while nothing else happens".to_owned());
            }
            let answer = self.answer_to(id)?;
            let (blocks, absent) = self.memory.take_host_and_absent(buffer);
            match answer {
                Ok(()) => {
                    longest = u64::MAX;
                    for (lba, (block, absent)) in (range.start..).zip(blocks.iter().zip(absent)) {
                        let number = number_of(lba, block)?;
                        present_as_shown(lba, number, absent)?;
                        observed[lba as usize] = Some(number);
                    }
                }
                Err(_) if self.tainted || self.failed => {}
                Err(Failure::Corrupt(_)) if self.ruins.any() && together == 1 => {
                    observed[range.start as usize] = None;
                }
                // Which of its blocks is it? They are read one by one, up to that.
                Err(Failure::Corrupt(at)) if self.ruins.any() => {
                    lba = range.start;
                    longest = (at.0 - place.0).max(1);
                }
                Err(failure) => return violation(format!("reading {range:?}: {failure:?}")),
            }
        }
        Ok(observed)
    }

    fn answer_to(&mut self, id: RequestId) -> Result<Result<(), Failure>, Violation> {
        for _ in 0..EVENTS_MAX {
            self.poll();
            if let Some(response) = self.engine().poll_response() {
                assert_eq!(response.id, id, "nothing else was asked for");
                return Ok(response.result);
            }
            let first = self.pending.iter().enumerate().min_by_key(|(_, pending)| pending.due_ns);
            let Some((index, _)) = first else { break };
            let Pending { due_ns, io, data, flush_mark } = self.pending.swap_remove(index);
            self.now_ns = self.now_ns.max(due_ns);
            let result = self.execute(&io, data, flush_mark);
            let (engine, memory) = (self.engine.as_mut().expect("open"), &mut self.memory);
            engine.handle_completion(io.id, result, memory);
        }
        violation(format!("a read never ends: {}", self.state()))
    }
}
