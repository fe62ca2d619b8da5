//! An engine on a device in memory that keeps only what the engine itself wrote: superblocks,
//! record headers, map pages, runs, the segment table, checkpoints.
//!
//! All host data is zeros. Their checksums are genuine, so every read is verified as it would be;
//! but the data takes no memory, and the device takes next to no time. So hundreds of gibibytes
//! can be mapped on a small machine, and what is measured is the engine.
//!
//! What it does not do: lose anything. Whatever was issued has completed.

mod buffers;
mod host_blocks;
mod ledger;
mod modelled;

pub(crate) use buffers::Data;
pub(crate) use host_blocks::HostBlocks;
pub(crate) use modelled::DeviceModel;

use crate::sequentiality::Sequentiality;
use crate::timing::{CpuClock, Took, TurnClock};
use buffers::Memory;
use coulter_engine::{
    BufferRef, Command, Config, Engine, IoId, Phase, RecordRef, Request, RequestId, Statistics,
    Target,
};
use coulter_format::{Block, Lba, Pba};
use ledger::Ledger;
use modelled::Modelled;

/// What a device was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    /// Read commands.
    pub(crate) reads: u64,
    /// Blocks that they asked for.
    pub(crate) blocks_read: u64,
    /// Write commands.
    pub(crate) writes: u64,
    /// Blocks that they carried.
    pub(crate) blocks_written: u64,
    /// Flushes.
    pub(crate) flushes: u64,
}

/// What is looked at while the engine works.
pub(crate) trait Watch {
    /// The engine's counters, at every device command that it issues.
    fn look(&mut self, statistics: &Statistics);

    /// The engine, and the device when it has executed all that the engine has issued so far.
    fn look_at_device(&mut self, engine: &Engine, device: &StandinDevice);
}

/// The device.
pub(crate) struct StandinDevice {
    ledger: Ledger,
    size: u64,
    pub(crate) counts: DeviceCounts,
    /// How sequential its writes are, if somebody wants to know.
    pub(crate) writes: Option<Sequentiality>,
    /// Which blocks hold host data, if somebody wants to know.
    pub(crate) host_blocks: Option<HostBlocks>,
}

impl StandinDevice {
    /// A device with a new store on it.
    pub(crate) fn with_store(size: u64, blocks: &[(Pba, Block)]) -> StandinDevice {
        let mut ledger = Ledger::new(size);
        blocks.iter().for_each(|(pba, block)| ledger.store(*pba, block));
        let counts = DeviceCounts::default();
        StandinDevice { ledger, size, counts, writes: None, host_blocks: None }
    }

    /// From now on blocks that are nearly all zeros take little memory.
    pub(crate) fn pack(&mut self) {
        self.ledger.pack();
    }

    /// Executes a command.
    fn execute(&mut self, command: &Command, memory: &mut Memory) {
        match *command {
            Command::Read { pba, count, target } => {
                self.counts.reads += 1;
                self.counts.blocks_read += u64::from(count);
                self.read(pba, count, target, memory);
            }
            Command::Write { pba, count, source, .. } => {
                self.counts.writes += 1;
                self.counts.blocks_written += u64::from(count);
                if let Some(writes) = &mut self.writes {
                    writes.note(u64::from(pba.0), u64::from(count));
                }
                self.write(pba, count, source, memory);
            }
            Command::Prepare { .. } => {}
            Command::Flush => self.counts.flushes += 1,
            Command::Discard { pba, count } => {
                (0..count).for_each(|offset| self.ledger.clear(pba.plus(offset)));
            }
        }
    }

    /// What the engine wrote to a block last, if that is not host data.
    #[cfg(test)]
    pub(crate) fn stored(&self, pba: Pba) -> Option<Box<Block>> {
        self.ledger.block(pba).map(ledger::Stored::boxed)
    }

    fn read(&self, pba: Pba, count: u32, target: Target, memory: &mut Memory) {
        match target {
            Target::Page(page) => {
                let target = &mut memory.pages[usize::from(page.0)];
                match self.ledger.block(pba) {
                    Some(block) => block.copy_to(target),
                    None => target.fill(0),
                }
            }
            Target::Record(record) => self.read_record(pba, count, record, 0, memory),
            Target::RecordPart { record, block } => {
                self.read_record(pba, count, record, block as usize, memory);
            }
            // Host data is zeros, and host memory holds nothing else.
            Target::Request { .. } => {
                if memory.data == Data::Handled {
                    let stored = |offset| self.ledger.block(pba.plus(offset)).is_some();
                    assert!(!(0..count).any(stored), "host data is zeros");
                }
            }
        }
    }

    /// Fills a record buffer's blocks from `first` on.
    fn read_record(
        &self,
        pba: Pba,
        count: u32,
        record: RecordRef,
        first: usize,
        memory: &mut Memory,
    ) {
        let record = &mut memory.records[usize::from(record.0)];
        for offset in 0..count as usize {
            match self.ledger.block(pba.plus(offset as u32)) {
                Some(block) => {
                    block.copy_to(&mut record.blocks[first + offset]);
                    record.filled.insert(first + offset);
                }
                None => record.empty(first + offset),
            }
        }
    }

    /// Writes a record buffer's blocks from `first` on.
    fn write_record(
        &mut self,
        pba: Pba,
        count: u32,
        record: RecordRef,
        first: usize,
        memory: &mut Memory,
    ) {
        let record = &mut memory.records[usize::from(record.0)];
        for offset in 0..count as usize {
            let (pba, block) = (pba.plus(offset as u32), first + offset);
            let is_host_data = record.host.contains(block);
            if let Some(host_blocks) = &mut self.host_blocks {
                host_blocks.note(pba, is_host_data);
            }
            if is_host_data {
                self.ledger.clear(pba);
                record.host.remove(block);
            } else {
                self.ledger.store(pba, &record.blocks[block]);
                record.filled.insert(block);
            }
        }
    }

    fn write(&mut self, pba: Pba, count: u32, source: Target, memory: &mut Memory) {
        match source {
            Target::Page(page) => self.ledger.store(pba, &memory.pages[usize::from(page.0)]),
            Target::Record(record) => {
                if let Some(host_blocks) = &mut self.host_blocks {
                    host_blocks.record_begins(pba);
                }
                self.write_record(pba, count, record, 0, memory);
            }
            Target::RecordPart { record, block } => {
                self.write_record(pba, count, record, block as usize, memory);
            }
            Target::Request { .. } => panic!("host memory is never written from"),
        }
    }
}

/// An engine with device and buffers.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) device: StandinDevice,
    memory: Memory,
    /// Commands executed, to be completed.
    done: Vec<IoId>,
    requests: u64,
    in_flight: u32,
    /// Most requests in the engine at once.
    depth: u32,
    /// Turns in a row in which nothing happened.
    idle: u32,
}

/// Turns without anything happening after which nothing ever will.
const IDLE_MAX: u32 = 16;

/// What a run on a modelled device took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelledRun {
    /// Seconds in all: the engine's CPU time, and the waiting in between.
    pub(crate) seconds: f64,
    /// CPU seconds of the engine. What the stand-in takes to play the device is left out.
    pub(crate) cpu_seconds: f64,
    /// Seconds in which there was nothing to do but wait for the device.
    pub(crate) waited_seconds: f64,
    /// Most commands that were out at once.
    pub(crate) depth_max: usize,
}

/// Something that must not happen did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RigError(pub(crate) String);

impl Rig {
    /// Opens the store on a device, with at most `depth` requests at once.
    ///
    /// # Errors
    /// When it does not open.
    pub(crate) fn open(config: Config, device: StandinDevice, depth: u32) -> Result<Rig, RigError> {
        let mut rig = Rig::begin_to_open(config, device, depth);
        while rig.engine.phase() != Phase::Running {
            rig.turn()?;
        }
        Ok(rig)
    }

    /// Makes the engine, without polling it yet.
    pub(crate) fn begin_to_open(config: Config, device: StandinDevice, depth: u32) -> Rig {
        assert!(depth <= config.request_count, "the engine takes so many");
        Rig {
            engine: Engine::open(config, device.size).expect("there is memory"),
            device,
            memory: Memory::new(config.record_count, config.page_count),
            done: Vec::with_capacity(2 * config.request_count as usize),
            requests: 0,
            in_flight: 0,
            depth,
            idle: 0,
        }
    }

    /// From now on host data is handled so.
    pub(crate) fn set_data(&mut self, data: Data) {
        self.memory.data = data;
    }

    /// Host memory for the next request.
    fn host(&mut self, count: u32) -> BufferRef {
        self.requests += 1;
        self.memory.host(self.requests, count)
    }

    /// Offers a request; false if the engine, or the depth, takes no more now.
    #[inline]
    fn offer(&mut self, request: Request) -> bool {
        if self.in_flight >= self.depth {
            return false;
        }
        let id = RequestId(self.requests);
        let taken = self.engine.handle_request(id, request, &mut self.memory).is_ok();
        self.in_flight += u32::from(taken);
        taken
    }

    /// Writes `count` blocks, waiting while the engine is busy.
    ///
    /// # Errors
    /// When the engine stands still or a request failed.
    #[inline]
    pub(crate) fn write(&mut self, lba: u64, count: u32) -> Result<(), RigError> {
        let buffer = self.host(count);
        let request = Request::Write { lba: Lba(lba), count, buffer, fua: false };
        while !self.offer(request) {
            self.turn()?;
        }
        Ok(())
    }

    /// Writes a block, and notes how long each call into the engine takes.
    ///
    /// # Errors
    /// When the engine stands still or a request failed.
    pub(crate) fn write_timed(&mut self, lba: u64, times: &mut Vec<Took>) -> Result<(), RigError> {
        let buffer = self.host(1);
        loop {
            let request = Request::Write { lba: Lba(lba), count: 1, buffer, fua: false };
            let clock = TurnClock::start();
            let is_taken = self.offer(request);
            times.push(clock.took());
            if is_taken {
                return Ok(());
            }
            loop {
                let clock = TurnClock::start();
                let io = self.engine.poll_io(&mut self.memory);
                times.push(clock.took());
                let Some(io) = io else { break };
                self.device.execute(&io.command, &mut self.memory);
                self.done.push(io.id);
            }
            // What is completed here `end_turn` does not see.
            self.idle = if self.done.is_empty() { self.idle } else { 0 };
            for id in std::mem::take(&mut self.done) {
                let clock = TurnClock::start();
                self.engine.handle_completion(id, Ok(()), &mut self.memory);
                times.push(clock.took());
            }
            self.end_turn()?;
        }
    }

    /// Discards `count` blocks, waiting while the engine is busy.
    ///
    /// # Errors
    /// When the engine stands still or a request failed.
    pub(crate) fn discard(&mut self, lba: u64, count: u64) -> Result<(), RigError> {
        self.requests += 1;
        while !self.offer(Request::Discard { lba: Lba(lba), count, fua: false }) {
            self.turn()?;
        }
        Ok(())
    }

    /// As `write`, watching the engine meanwhile. Returns the blocks that the device wrote while
    /// the engine took no write: how long the host had to wait, in the only time that there is.
    ///
    /// # Errors
    /// When the engine stands still or a request failed.
    pub(crate) fn write_watched(
        &mut self,
        lba: u64,
        count: u32,
        watch: &mut impl Watch,
    ) -> Result<u64, RigError> {
        let buffer = self.host(count);
        let request = Request::Write { lba: Lba(lba), count, buffer, fua: false };
        while self.in_flight >= self.depth {
            self.turn_watched(watch)?;
        }
        let before = self.device.counts.blocks_written;
        while !self.offer(request) {
            self.turn_watched(watch)?;
        }
        Ok(self.device.counts.blocks_written - before)
    }

    /// Reads `count` blocks, waiting while the engine is busy.
    ///
    /// # Errors
    /// When the engine stands still, or a request failed: wrong data is a failure.
    #[inline]
    pub(crate) fn read(&mut self, lba: u64, count: u32) -> Result<(), RigError> {
        let buffer = self.host(count);
        let request = Request::Read { lba: Lba(lba), count, buffer };
        while !self.offer(request) {
            self.turn()?;
        }
        Ok(())
    }

    /// Offers a read of one block.
    ///
    /// # Errors
    /// When the engine does not take it.
    fn submit_read(&mut self, lba: u64) -> Result<(), RigError> {
        let buffer = self.host(1);
        let taken = self.offer(Request::Read { lba: Lba(lba), count: 1, buffer });
        if taken { Ok(()) } else { Err(RigError("a read was refused".to_string())) }
    }

    /// Reads a block. Returns where the engine reads it.
    #[cfg(test)]
    pub(crate) fn place_of(&mut self, lba: u64) -> Option<Pba> {
        self.submit_read(lba).ok()?;
        let mut place = None;
        while let Some(io) = self.engine.poll_io(&mut self.memory) {
            if let Command::Read { pba, target: Target::Request { .. }, .. } = io.command {
                place = Some(pba);
            }
            self.device.execute(&io.command, &mut self.memory);
            self.done.push(io.id);
        }
        self.drain().ok()?;
        self.done.is_empty().then_some(place)?
    }

    /// Waits for all requests.
    ///
    /// # Errors
    /// When the engine stands still or a request failed.
    pub(crate) fn drain(&mut self) -> Result<(), RigError> {
        while self.in_flight > 0 {
            self.turn()?;
        }
        Ok(())
    }

    /// Executes and completes all device commands that are out, and takes all responses.
    ///
    /// # Errors
    /// When nothing at all happened, or a request failed.
    pub(crate) fn turn(&mut self) -> Result<(), RigError> {
        while let Some(io) = self.engine.poll_io(&mut self.memory) {
            self.device.execute(&io.command, &mut self.memory);
            self.done.push(io.id);
        }
        self.end_turn()
    }

    fn turn_watched(&mut self, watch: &mut impl Watch) -> Result<(), RigError> {
        while let Some(io) = self.engine.poll_io(&mut self.memory) {
            watch.look(&self.engine.statistics());
            self.device.execute(&io.command, &mut self.memory);
            self.done.push(io.id);
        }
        watch.look_at_device(&self.engine, &self.device);
        self.end_turn()
    }

    fn end_turn(&mut self) -> Result<(), RigError> {
        self.check_phase()?;
        let mut moved = !self.done.is_empty();
        for id in self.done.drain(..) {
            self.engine.handle_completion(id, Ok(()), &mut self.memory);
        }
        moved |= self.take_responses()?;
        self.idle = if moved { 0 } else { self.idle + 1 };
        if self.idle > IDLE_MAX {
            let story = self.engine.statistics();
            return Err(RigError(format!("the engine stands still: {story:?}")));
        }
        Ok(())
    }

    fn take_responses(&mut self) -> Result<bool, RigError> {
        let mut moved = false;
        while let Some(response) = self.engine.poll_response() {
            moved = true;
            self.in_flight -= 1;
            if let Err(failure) = response.result {
                return Err(RigError(format!("a request failed: {failure:?}")));
            }
        }
        Ok(moved)
    }

    /// Polls the new engine on a modelled device until it can be read, and then until a block has
    /// been read and verified.
    ///
    /// # Errors
    /// When it stands still before it is done, or the read failed.
    pub(crate) fn open_modelled(
        &mut self,
        model: DeviceModel,
        lba: u64,
    ) -> Result<ModelledRun, RigError> {
        let mut device = Modelled::new(model);
        let mut cpu = 0.0;
        let mut asked = false;
        loop {
            let clock = CpuClock::start();
            let phase = self.engine.phase();
            if !asked && matches!(phase, Phase::Recovered | Phase::Running) {
                self.submit_read(lba)?;
                asked = true;
            }
            let mut issued = Vec::new();
            while let Some(io) = self.engine.poll_io(&mut self.memory) {
                issued.push(io);
            }
            let worked = clock.seconds();
            cpu += worked;
            device.work(worked);
            issued.into_iter().for_each(|io| device.issue(io));
            self.check_phase()?;
            self.take_responses()?;
            if asked && self.in_flight == 0 {
                break;
            }
            let Some(io) = device.next_end() else {
                if !asked && self.engine.phase() != phase {
                    continue;
                }
                let story = self.engine.statistics();
                return Err(RigError(format!("the engine stands still: {story:?}")));
            };
            self.device.execute(&io.command, &mut self.memory);
            let clock = CpuClock::start();
            self.engine.handle_completion(io.id, Ok(()), &mut self.memory);
            let worked = clock.seconds();
            cpu += worked;
            device.work(worked);
        }
        let run = ModelledRun {
            seconds: device.seconds(),
            cpu_seconds: cpu,
            waited_seconds: device.seconds_waited(),
            depth_max: device.depth_max,
        };
        // What is still out, such as the first checkpoint, ends without being counted.
        while let Some(io) = device.next_end() {
            self.device.execute(&io.command, &mut self.memory);
            self.done.push(io.id);
        }
        Ok(run)
    }

    /// From now on at most so many requests at once.
    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    fn check_phase(&self) -> Result<(), RigError> {
        match self.engine.phase() {
            Phase::Failed(error) => Err(RigError(format!("the store did not open: {error:?}"))),
            _ => Ok(()),
        }
    }

    /// Makes all durable, so that the store opens with nothing to replay.
    ///
    /// # Errors
    /// When the engine stands still.
    pub(crate) fn shut_down(&mut self) -> Result<(), RigError> {
        self.drain()?;
        let id = RequestId(self.requests);
        self.engine
            .handle_request(id, Request::Shutdown, &mut self.memory)
            .map_err(|_| RigError("a shutdown was refused".to_string()))?;
        self.in_flight += 1;
        self.drain()
    }

    /// Kills the engine: only the device remains.
    pub(crate) fn kill(self) -> StandinDevice {
        self.device
    }
}
