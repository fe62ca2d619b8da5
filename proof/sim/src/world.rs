//! The world: one engine, one device, one host, in virtual time. It carries out a plan and compares all
//! that can be seen with what the promises allow.
//!
//! Time is a number that the device's delays move on. Commands that are out together complete in the
//! order of their delays, so in any order; some take fifty times as long as others.
//!
//! # What is compared
//! - every read: nothing older than what was answered before it was submitted, and whole;
//! - after every opening: the volume is the state after a prefix of what was accepted, and that prefix
//!   holds all that a flush covered; all that was answered, if nothing but the process died;
//! - after every cut: the independent checker finds no fault;
//! - no request fails or hangs unless the plan made the device fail, and no store refuses to open.
//!
//! A store of which metadata is damaged beyond repair is opened degraded: see `ruin` and the oracle.
//!
//! A device that lost, misplaced or rotted a block is held to less: errors are allowed, and opening may be
//! refused; wrong bytes are not.

mod answers;
mod clients;
mod disk;
mod invariants;
mod outcome;
mod power;
mod ruin;
mod shape;
mod space;

use crate::buffers::Memory;
use crate::device::{Device, Loss};
use crate::generate;
use crate::oracle::{Floor, Operation, Oracle, Part, Violation};
use crate::plan::{Fault, Plan, Setting, Shape, Step};
use crate::random::Random;
use clients::Clients;
use coulter_engine::create::create;
use coulter_engine::grow::Growth;
use coulter_engine::tuning::CleaningMode;
use coulter_engine::{
    BufferRef, Change, ChangeKind, Config, Engine, Failure, Io, Request, RequestId,
};
use coulter_format::{BLOCK_SIZE, Block, Lba};
use disk::Armed;
use invariants::Invariants;
pub use outcome::Outcome;
use ruin::Ruins;
pub(crate) use shape::create_options;
use shape::{config, reference_blocks};
use space::Space;
use std::collections::BTreeMap;
use std::rc::Rc;

/// EIO.
const ERRNO_IO: i32 = 5;

/// Blocks that cleaning may read when nothing else happens.
const ALLOWANCE: u64 = 100;

/// Record buffers that an engine has at first, and at most later on.
const RECORDS: u16 = Config::RECORD_COUNT_MIN;
const RECORDS_MAX: u16 = 16;

/// Reads of a volume that has become read-only.
const READS_ON: u64 = 30;

/// Addresses from the leaf of the first to the last of a discard that is one extent.
const DISCARD_WHOLE_MAX: u64 = 127 * 512;

/// Turns without any device command in which the engine may still get on by itself.
const IDLE_TURNS_MAX: u32 = 4;

/// Device commands without an end to a phase that must end: then it stands still, or runs in circles.
const EVENTS_MAX: u64 = 200_000;

enum Expected {
    Write(u64),
    Discard(u64),
    Flush(u64),
    Read { lba: u64, buffer: BufferRef, floors: Vec<Floor> },
    Presence { lba: u64, buffer: BufferRef, floors: Vec<Floor> },
    Shutdown,
}

struct Pending {
    due_ns: u64,
    io: Io,
    data: Vec<Option<Rc<Block>>>,
    flush_mark: usize,
}

/// Runs one plan after another, with the same buffers.
pub struct Simulator {
    memory: Option<Memory>,
    /// Every how many cuts the checker also compares all data with its checksums.
    pub audit_data_every: u64,
    /// Whether the engine's counts are made anew: after every step of small stores, and at every
    /// checkpoint of others. Of no effect without the feature `verify`.
    pub asserts_invariants: bool,
}

impl Default for Simulator {
    fn default() -> Simulator {
        Simulator { memory: None, audit_data_every: 8, asserts_invariants: true }
    }
}

impl Simulator {
    /// Runs a plan.
    ///
    /// # Errors
    /// The first [`Violation`]. A panic of the engine is the caller's to catch.
    pub fn run(&mut self, plan: &Plan) -> Result<Outcome, Violation> {
        self.tell(plan, false).0
    }

    /// Runs a plan and writes down what happens, if `story`.
    pub fn tell(&mut self, plan: &Plan, story: bool) -> (Result<Outcome, Violation>, Vec<String>) {
        let config = config(&plan.shape);
        let memory = self.memory.take();
        let memory = memory.unwrap_or_else(|| Memory::new(RECORDS_MAX, config.page_count));
        let mut world = World::new(plan, memory, self.audit_data_every);
        world.invariants.are_asserted = self.asserts_invariants;
        world.story = story.then(Vec::new);
        let result = world.live(&plan.steps);
        let outcome = world.outcome;
        self.memory = Some(world.memory);
        (result.map(|()| outcome), world.story.unwrap_or_default())
    }
}

struct World {
    shape: Shape,
    config: Config,
    random: Random,
    device: Device,
    engine: Option<Engine>,
    memory: Memory,
    oracle: Oracle,
    pending: Vec<Pending>,
    expected: BTreeMap<u64, Expected>,
    armed: Armed,
    space: Space,
    now_ns: u64,
    next_request: u64,
    volume_size: u64,
    outcome: Outcome,
    audit_data_every: u64,
    /// The device did what no device may: see the module's documentation.
    tainted: bool,
    /// It reported an error: requests may fail, and the volume may be read-only.
    failed: bool,
    /// What was not flushed is gone in part: until the next opening reads may find that.
    forgotten: bool,
    /// Nothing but processes died since the last opening.
    lossless: bool,
    /// References that the engine gave up because only damage could have left them.
    references_lost: u64,
    /// Chunks that the engine said recovery may need, when it was last up.
    recovery_cells: Option<u64>,
    invariants: Invariants,
    clients: Clients,
    ruins: Ruins,
    story: Option<Vec<String>>,
}

fn violation<T>(what: String) -> Result<T, Violation> {
    Err(Violation { what })
}

impl World {
    fn new(plan: &Plan, memory: Memory, audit_data_every: u64) -> World {
        let shape = plan.shape;
        let options = create_options(&shape);
        let (_, blocks) = create(&options).expect("the plan's store can be laid out");
        let mut device = Device::new(options.device_size).with_pages(shape.page_blocks);
        if shape.pads {
            device = device.with_atomic_pages();
        }
        for (pba, block) in blocks {
            device.write(pba, &[block]);
        }
        device.flush_all();
        let volume_size = generate::grown_volume_size(&shape, plan.growth());
        let space = Space::of(&shape, &device);
        World {
            shape,
            config: config(&shape),
            random: Random::new(0),
            device,
            engine: None,
            memory,
            oracle: Oracle::new(volume_size),
            pending: Vec::new(),
            expected: BTreeMap::new(),
            armed: Armed::default(),
            space,
            now_ns: 0,
            next_request: 0,
            volume_size,
            outcome: Outcome::default(),
            audit_data_every,
            tainted: false,
            failed: false,
            forgotten: false,
            lossless: false,
            references_lost: 0,
            recovery_cells: None,
            invariants: Invariants::default(),
            clients: Clients::default(),
            ruins: Ruins::default(),
            story: None,
        }
    }

    fn note(&mut self, line: impl FnOnce(&World) -> String) {
        if self.story.is_some() {
            let line = format!("{:>12} ns  {}", self.now_ns, line(self));
            self.story.iter_mut().for_each(|story| story.push(line.clone()));
        }
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("the store is open")
    }

    /// Safety, with all faults; then liveness, without.
    fn live(&mut self, steps: &[Step]) -> Result<(), Violation> {
        self.open()?;
        for step in steps {
            self.note(|_| step.to_string());
            self.step(step)?;
            if self.engine.is_none() {
                // A store that a dishonest device has ruined is not opened again.
                return Ok(());
            }
        }
        self.armed = Armed::default();
        if self.tainted {
            return self.drain();
        }
        self.settle_down()
    }

    fn step(&mut self, step: &Step) -> Result<(), Violation> {
        match step {
            Step::Write { .. }
            | Step::WriteMany { .. }
            | Step::Discard { .. }
            | Step::Read { .. }
            | Step::Presence { .. }
            | Step::Flush => self.submit(step),
            Step::Run { events, seed } => {
                self.random = Random::new(*seed);
                for _ in 0..*events {
                    if !self.turn()? {
                        break;
                    }
                }
                Ok(())
            }
            Step::Drain => self.drain(),
            Step::Tune(setting) => {
                self.tune(*setting);
                Ok(())
            }
            Step::Scrub => {
                assert!(self.engine().start_scrub(0), "there is memory for what it lists");
                Ok(())
            }
            Step::Fault(fault, number) => {
                self.arm(*fault, *number);
                Ok(())
            }
            Step::Reclaim(reclaim) => {
                self.config.reclaim = *reclaim;
                self.engine().set_reclaim(*reclaim);
                Ok(())
            }
            Step::Place(placement) => {
                self.config.placement = *placement;
                self.engine().set_placement(*placement);
                Ok(())
            }
            Step::Configure { frames, records, victims, references } => {
                self.config.record_count = (*records).clamp(RECORDS, RECORDS_MAX);
                self.config.reference_blocks = reference_blocks(*references);
                self.config.victims = *victims;
                // What a store that grows will need is known when it has grown.
                if self.config.growth.is_none() {
                    let needed = self.engine().superblock().budget.map_size;
                    self.config.map_size = Some(needed + frames * BLOCK_SIZE as u64);
                }
                Ok(())
            }
            Step::Grow(segments) => {
                self.device.grow(segments * u64::from(self.shape.segment_blocks));
                // As large as a new store of that size would be, which the oracle counts on.
                let segment_blocks = u64::from(self.shape.segment_blocks);
                let grown = self.device.size() / segment_blocks - 1 - self.shape.segments;
                let volume_size = generate::grown_volume_size(&self.shape, grown);
                let growth = Growth { volume_size: Some(volume_size), spare_percent: None };
                // A larger volume may need more map memory than it was opened with.
                (self.config.growth, self.config.map_size) = (Some(growth), None);
                Ok(())
            }
            Step::Ruin(ruin, number) => {
                self.await_ruin(*ruin, *number);
                Ok(())
            }
            Step::Shutdown => {
                self.shut_down()?;
                self.leave();
                self.ruin();
                self.reopen(&[])
            }
            Step::Cut { loss, seed, again } => {
                self.random = Random::new(*seed);
                self.read_on()?;
                self.cut(*loss);
                self.audit()?;
                self.ruin();
                self.reopen(again)
            }
        }
    }

    /// A volume that became read-only goes on to be read, and answers all that it was asked.
    fn read_on(&mut self) -> Result<(), Violation> {
        if self.engine().read_only().is_none() || self.tainted {
            return Ok(());
        }
        for _ in 0..READS_ON {
            let lba = self.random.below(self.volume_size);
            self.submit(&Step::Read { lba, count: 1 })?;
        }
        self.drain()
    }

    /// The liveness phase: nothing goes wrong any more, so everything must come to its end, and half of the
    /// volume can be written anew.
    fn settle_down(&mut self) -> Result<(), Violation> {
        if self.failed {
            self.cut(Loss::Nothing);
            self.reopen(&[])?;
        }
        self.drain()?;
        if self.ruins.refuses {
            self.cut(Loss::Everything);
            return self.reopen(&[]);
        }
        let count = (u64::from(self.shape.segment_blocks) - 1).min(64).min(self.volume_size);
        for lba in (0..=self.volume_size - count).step_by(2 * count as usize) {
            self.submit(&Step::Write { lba, count, fua: false })?;
        }
        self.shut_down()?;
        self.lossless = true;
        self.leave();
        self.audit()?;
        self.reopen(&[])
    }

    fn arm(&mut self, fault: Fault, number: u64) {
        match fault {
            Fault::ReadError => self.armed.read_error = Some(number),
            Fault::WriteError => self.armed.write_error = Some(number),
            Fault::FlushError => self.armed.flush_error = Some(number),
            Fault::Forgets => self.armed.forgets = Some(number),
            Fault::ForgetsLater => self.armed.forgets_later = Some(number),
            Fault::Lost => self.armed.lost = Some(number),
            Fault::Misdirected => self.armed.misdirected = Some(number),
            Fault::Rot => {
                let count = self.device.written().count() as u64;
                let rotten = self.device.written().nth((number % count) as usize);
                let rotten = rotten.expect("a store has blocks");
                self.device.corrupt(rotten, number as usize % BLOCK_SIZE);
                self.tainted = true;
                self.note(|_| format!("block {} rots", rotten.0));
            }
        }
    }

    // Requests.

    fn submit(&mut self, step: &Step) -> Result<(), Violation> {
        // Of a plan that was made shorter the volume may no longer grow.
        // And one that grew keeps its share of spare space, which may leave it less than was drawn.
        let volume_size = self.volume_size.min(self.engine().geometry().volume_size);
        if step.end() > volume_size {
            return Ok(());
        }
        // A store that refuses writes is not asked for any.
        let asks_only = matches!(step, Step::Read { .. } | Step::Presence { .. } | Step::Flush);
        if self.ruins.refuses && !asks_only {
            return Ok(());
        }
        let step = &self.clipped(step);
        if let Step::Read { lba, count } = *step {
            self.try_client_read(lba, count);
        }
        self.next_request += 1;
        let id = RequestId(self.next_request);
        let mut scratch = Vec::new();
        let (request, buffer) = self.request(step, &mut scratch);
        let mut idle_turns = 0;
        for _ in 0..EVENTS_MAX {
            self.poll();
            self.take_responses()?;
            let (engine, memory) = (self.engine.as_mut().expect("open"), &mut self.memory);
            if engine.handle_request(id, request, memory).is_ok() {
                self.accepted(id, step, buffer)?;
                self.poll();
                return self.take_responses();
            }
            idle_turns = if self.turn()? { 0 } else { idle_turns + 1 };
            if idle_turns > IDLE_TURNS_MAX && self.gives_up_for_want_of_room() {
                buffer.map(|buffer| self.memory.take_host(buffer));
                return Ok(());
            }
            if idle_turns > IDLE_TURNS_MAX {
                return violation(format!("{step} is never accepted: {}", self.state()));
            }
        }
        violation(format!("{step} is not accepted after {EVENTS_MAX} commands: {}", self.state()))
    }

    /// Of a sparse volume only what lies together can be one range, but for a discard.
    fn clipped(&self, step: &Step) -> Step {
        let together = |lba: u64, count: u64| self.shape.together(lba, count);
        match step.clone() {
            Step::Write { lba, count, fua } => {
                Step::Write { lba, count: together(lba, count), fua }
            }
            Step::Read { lba, count } => Step::Read { lba, count: together(lba, count) },
            Step::Presence { lba, count } => Step::Presence { lba, count: together(lba, count) },
            Step::Discard { lba, mut count } if self.shape.sparse.is_some() => {
                // Of a longer one a prefix may survive.
                let start = self.shape.place(lba) / 512 * 512;
                while self.shape.place(lba + count - 1) - start >= DISCARD_WHOLE_MAX {
                    count = count.div_ceil(2);
                }
                Step::Discard { lba, count }
            }
            Step::WriteMany { mut changes, fua } => {
                for change in &mut changes {
                    change.count = together(change.lba.0, change.count.into()) as u32;
                }
                Step::WriteMany { changes, fua }
            }
            other => other,
        }
    }

    fn request<'s>(
        &mut self,
        step: &Step,
        placed: &'s mut Vec<Change>,
    ) -> (Request<'s>, Option<BufferRef>) {
        let shape = self.shape;
        let place = |lba: u64| Lba(shape.place(lba));
        match *step {
            Step::WriteMany { ref changes, fua } => {
                let number = self.oracle.next_number();
                let written = |change: &&Change| change.kind == ChangeKind::Write;
                let blocks = changes.iter().filter(written).flat_map(|change| {
                    let lbas = change.lba.0..change.lba.0 + u64::from(change.count);
                    lbas.map(move |lba| content(lba, number))
                });
                let buffer = self.memory.add_host(blocks.collect());
                placed.extend(
                    changes.iter().map(|change| Change { lba: place(change.lba.0), ..*change }),
                );
                (Request::WriteMany { changes: placed, buffer, fua }, Some(buffer))
            }
            Step::Write { lba, count, fua } => {
                let number = self.oracle.next_number();
                let blocks = (lba..lba + count).map(|lba| content(lba, number)).collect();
                let buffer = self.memory.add_host(blocks);
                let request = Request::Write { lba: place(lba), count: count as u32, buffer, fua };
                (request, Some(buffer))
            }
            Step::Discard { lba, count } => {
                // What lies between windows is discarded with them.
                let end = shape.place(lba + count - 1) + 1;
                let (lba, count) = (place(lba), end - shape.place(lba));
                (Request::Discard { lba, count, fua: false }, None)
            }
            Step::Read { lba, count } => {
                let buffer = self.memory.add_host(vec![[1; BLOCK_SIZE]; count as usize]);
                (Request::Read { lba: place(lba), count: count as u32, buffer }, Some(buffer))
            }
            Step::Presence { lba, count } => {
                let buffer = self.memory.add_host(vec![[1; BLOCK_SIZE]; count as usize]);
                let count = count as u32;
                (Request::Presence { lba: place(lba), count, buffer }, Some(buffer))
            }
            _ => (Request::Flush, None),
        }
    }

    fn accepted(
        &mut self,
        id: RequestId,
        step: &Step,
        buffer: Option<BufferRef>,
    ) -> Result<(), Violation> {
        self.outcome.operations += 1;
        let expected = match *step {
            Step::Write { lba, count, .. } => {
                self.memory.take_host(buffer.expect("a write has a buffer"));
                Expected::Write(self.oracle.accept(Operation::write(lba, count)))
            }
            Step::WriteMany { ref changes, .. } => {
                self.memory.take_host(buffer.expect("a write has a buffer"));
                self.outcome.writes_of_many += 1;
                let part = |change: &Change| Part {
                    lba: change.lba.0,
                    count: change.count.into(),
                    discard: change.kind == ChangeKind::Discard,
                };
                let parts = changes.iter().map(part).collect();
                Expected::Write(self.oracle.accept(Operation { parts }))
            }
            Step::Discard { lba, count } => {
                Expected::Discard(self.oracle.accept(Operation::discard(lba, count)))
            }
            Step::Read { lba, count } => {
                let floors = (lba..lba + count).map(|lba| self.oracle.floor(lba)).collect();
                Expected::Read { lba, buffer: buffer.expect("a read has a buffer"), floors }
            }
            Step::Presence { lba, count } => {
                let floors = (lba..lba + count).map(|lba| self.oracle.floor(lba)).collect();
                Expected::Presence { lba, buffer: buffer.expect("it has a name"), floors }
            }
            _ => Expected::Flush(self.oracle.completed_prefix()),
        };
        let has_room = !matches!(expected, Expected::Write(_)) || self.is_refused(id);
        self.expected.insert(id.0, expected);
        if has_room { Ok(()) } else { self.check_capacity() }
    }

    fn is_refused(&self, id: RequestId) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.has_answered(id))
    }

    fn take_responses(&mut self) -> Result<(), Violation> {
        while let Some(response) = self.engine().poll_response() {
            let expected = self.expected.remove(&response.id.0).expect("an answer to a request");
            if response.result == Err(Failure::Full)
                && let Expected::Write(number) = expected
            {
                self.outcome.writes_refused += 1;
                self.refuse(number)?;
                continue;
            }
            if let Err(failure) = response.result {
                self.excuse(&expected, failure)?;
                continue;
            }
            match expected {
                Expected::Write(number) | Expected::Discard(number) => self.oracle.complete(number),
                Expected::Flush(prefix) => {
                    self.oracle.durable_up_to(prefix);
                    self.oracle.settle();
                }
                Expected::Read { lba, buffer, floors } => self.compare(lba, buffer, floors)?,
                Expected::Presence { lba, buffer, floors } => {
                    self.compare_presence(lba, buffer, floors)?;
                }
                Expected::Shutdown => {}
            }
        }
        Ok(())
    }

    fn shut_down(&mut self) -> Result<(), Violation> {
        self.drain()?;
        // Without space it would end without a checkpoint: `without_space.rs` has that.
        self.space.add_room(self.shape.segments);
        self.engine().try_for_space();
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.expected.insert(id.0, Expected::Shutdown);
        let (engine, memory) = (self.engine.as_mut().expect("open"), &mut self.memory);
        engine.handle_request(id, Request::Shutdown, memory).expect("always taken");
        self.drain()?;
        if !self.failed && !self.tainted {
            let prefix = self.oracle.completed_prefix();
            self.oracle.durable_up_to(prefix);
        }
        Ok(())
    }

    /// Lets everything that was begun come to its end.
    fn drain(&mut self) -> Result<(), Violation> {
        let mut events = 0;
        loop {
            self.poll();
            self.take_responses()?;
            if self.expected.is_empty() && self.pending.is_empty() {
                return Ok(());
            }
            events += 1;
            if !self.turn()? || events > EVENTS_MAX {
                let count = self.expected.len();
                return violation(format!("{count} requests never end: {}", self.state()));
            }
        }
    }

    /// The next device command completes. False if none is out.
    fn turn(&mut self) -> Result<bool, Violation> {
        self.poll();
        let first = self.pending.iter().enumerate().min_by_key(|(_, pending)| pending.due_ns);
        let Some((index, _)) = first else {
            return Ok(self.end_client_reads(true)? || self.time_passes());
        };
        let Pending { due_ns, io, data, flush_mark } = self.pending.swap_remove(index);
        self.now_ns = self.now_ns.max(due_ns);
        self.outcome.time_ns = self.now_ns;
        self.outcome.commands += 1;
        let result = self.execute(&io, data, flush_mark);
        let (engine, memory) = (self.engine.as_mut().expect("open"), &mut self.memory);
        engine.handle_completion(io.id, result, memory);
        self.end_client_reads(false)?;
        self.poll();
        self.take_responses()?;
        self.check_scrub()?;
        Ok(true)
    }

    /// Nothing happens but that cleaning is allowed a little more, or that somebody else frees space on
    /// the device. False if nobody waits for that.
    fn time_passes(&mut self) -> bool {
        if self.engine().lacks_space() {
            self.space.add_room(1);
            self.engine().try_for_space();
            return true;
        }
        let engine = self.engine();
        let waits = engine.waits_for_time() && engine.cleaning_allowance().is_some_and(|a| a <= 0);
        if waits {
            engine.allow_cleaning(ALLOWANCE, ALLOWANCE);
        }
        waits
    }

    fn tune(&mut self, setting: Setting) {
        let engine = self.engine();
        match setting {
            Setting::Limited => engine.limit_cleaning(true),
            Setting::Unlimited => engine.limit_cleaning(false),
            Setting::Held => engine.hold_cleaning_back(true),
            Setting::Free => engine.hold_cleaning_back(false),
            Setting::Idle => engine.set_host_idle(true),
            Setting::Busy => engine.set_host_idle(false),
            Setting::Drain => engine.set_cleaning(CleaningMode::Drain),
            Setting::Paused => engine.set_cleaning(CleaningMode::Paused),
            Setting::Paced => engine.set_cleaning(CleaningMode::Paced),
            Setting::Defrag => engine.set_defrag(true),
        }
    }

    /// What an engine that stands still can tell.
    fn state(&self) -> String {
        self.engine.as_ref().map_or_else(String::new, |engine| {
            format!(
                "{:?}, {} under way, {:?}",
                engine.phase(),
                engine.activity(),
                engine.statistics()
            )
        })
    }
}

/// A block that says where and by which write it was made, in each sector.
fn content(lba: u64, number: u64) -> Block {
    let mut block = [0; BLOCK_SIZE];
    for (index, sector) in block.chunks_exact_mut(512).enumerate() {
        sector[..8].copy_from_slice(&lba.to_le_bytes());
        sector[8..16].copy_from_slice(&number.to_le_bytes());
        sector[16..24].copy_from_slice(&(lba ^ number ^ index as u64).to_le_bytes());
    }
    block
}

/// The number of the write that a block came from; zero for an unmapped one.
fn number_of(lba: u64, block: &Block) -> Result<u64, Violation> {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let (place, number) = (word(0), word(8));
    if number == 0 && *block == [0; BLOCK_SIZE] {
        return Ok(0);
    }
    if place != lba || *block != content(place, number) {
        return violation(format!(
            "block {lba} holds wrong bytes: of block {place}, write {number}"
        ));
    }
    Ok(number)
}
