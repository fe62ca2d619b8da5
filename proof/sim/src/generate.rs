//! From a seed to a plan.
//!
//! Shapes differ from seed to seed, so that some stores clean all the time, some page their map, some
//! hold little; so do the loads: bursts and single requests, large and small, hot and cold.

use crate::device::Loss;
use crate::plan::{
    Fault, Plan, SETTINGS, SPARE_PERCENT, Shape, SparseShape, Step, WINDOW, check_changes,
};
use crate::random::Random;
use coulter_engine::Prepare;
use coulter_engine::named::Named;
use coulter_engine::placement::Placement;
use coulter_engine::policy::VictimPolicy;
use coulter_engine::reclaim::Reclaim;
use coulter_engine::{Change, ChangeKind};
use coulter_format::Lba;

/// Power cuts in a life.
const CUTS: u64 = 24;

/// Keeps what is drawn for reclaiming apart from all else.
const RECLAIMS: u64 = 0x686f_6c65_7321;
/// Keeps what is drawn for other placements and for growth apart.
const CHANGES: u64 = 0x6368_616e_6765_7321;

/// Keeps what is drawn for forgetful devices and for other configurations apart.
const FORGETS: u64 = 0x666f_7267_6574_7321;

/// Tells an operator's randomness from the rest of a life's.
const OPERATOR: u64 = 0x6f70_6572_6174_6f72;

/// Keeps what is drawn for references apart.
const REFERENCES: u64 = 0x7265_6665_7221;

/// Keeps what is drawn for writes of several ranges apart.
const MANY: u64 = 0x6d61_6e79_2121;

/// Keeps what is drawn for scrubs apart.
const SCRUBS: u64 = 0x7363_7275_6273_2121;

/// Keeps what is drawn for sparse volumes apart.
const SPARSE: u64 = 0x7370_6172_7365_2121;

/// Keeps what is drawn for flash pages apart.
const PAGES: u64 = 0x7061_6765_7321_2121;

/// Segments by which a store grows, about.
const GROWTH_MAX: u64 = 40;

/// Blocks that a leaf page maps.
const LEAF: u64 = coulter_format::map_page::ENTRIES_PER_PAGE as u64;

/// Makes the plan of a seed.
pub fn plan(seed: u64) -> Plan {
    if seed % 16 == 13 {
        return crate::tight::plan(seed);
    }
    if seed % 32 == 21 {
        return crate::full::plan(seed);
    }
    if seed % 64 == 5 {
        return crate::scarce::plan(seed);
    }
    if seed % 64 == 41 {
        return crate::ruined::plan(seed);
    }
    life(seed)
}

/// Makes the plan of a life without any purpose of its own.
pub(crate) fn life(seed: u64) -> Plan {
    let mut random = Random::new(seed);
    let shape = shape(&mut random);
    // Numbers of its own, so that lives without holes are what they were.
    let mut reclaims = Random::new(seed ^ RECLAIMS);
    // Every other life fills holes.
    let reclaim = if seed.is_multiple_of(2) { reclaim(&mut reclaims) } else { Reclaim::CopyOut };
    let references = references(&mut Random::new(seed ^ REFERENCES));
    let shape = Shape { reclaim, references, prepare: prepare(seed), ..shape };
    // In one of twelve the volume is sparse.
    let sparse = seed % 12 == 10;
    let shape = if sparse { spread(shape, &mut Random::new(seed ^ SPARSE)) } else { shape };
    // In two of ten the store knows how the flash below is written, and in one of these pads its pages.
    let shape = match seed % 10 {
        6 => Shape { pads: true, ..on_flash(shape, &mut Random::new(seed ^ PAGES)) },
        8 => on_flash(shape, &mut Random::new(seed ^ PAGES)),
        _ => shape,
    };
    let volume = volume_size(&shape);
    // With a paged map, what a discarded leaf leaves behind is looked at again when its page is
    // loaded: that takes many discards to go wrong.
    let discards = if shape.map == 1 && seed.is_multiple_of(2) { 20 } else { 6 };
    // One life in four has an operator, whose whims are apart from everything else.
    let operator = (seed % 4 == 3).then(|| Random::new(seed ^ OPERATOR));
    let switches = seed.is_multiple_of(2);
    // In one of eight, blocks are placed otherwise from time to time, and the store grows.
    let changes = (matches!(seed % 16, 7 | 8) && !sparse).then(|| Random::new(seed ^ CHANGES));
    // In another of eight, the device forgets what a flush that fails did not cover, and the store is
    // opened with other memory and other habits.
    let forgets = matches!(seed % 16, 2 | 15).then(|| Random::new(seed ^ FORGETS));
    // In one of three, many a write is of several ranges.
    let many = (seed % 3 == 1 || sparse).then(|| Random::new(seed ^ MANY));
    // In one of five, the volume is scrubbed from time to time.
    let scrubs = (seed % 5 == 4).then(|| Random::new(seed ^ SCRUBS));
    let (steps, growth) = (Vec::new(), 0);
    let mut maker = Maker {
        random,
        reclaims,
        changes,
        forgets,
        many,
        scrubs,
        switches,
        operator,
        shape,
        volume,
        growth,
        discards,
        steps,
    };
    maker.life();
    Plan { shape, steps: maker.steps }
}

fn shape(random: &mut Random) -> Shape {
    let small = Shape {
        segments: 28,
        segment_blocks: 256,
        volume: 300 + random.below(900),
        spare: SPARE_PERCENT,
        journal: 1024,
        runs: 2 + random.below(6) as u32,
        map: 0,
        trim: random.chance(50),
        placement: Placement::Apart,
        reclaim: Reclaim::CopyOut,
        references: 0,
        prepare: Prepare::Never,
        sparse: None,
        page_blocks: 1,
        pads: false,
    };
    let small = Shape { placement: placement(random), ..small };
    match random.below(20) {
        // As much as fits: cleaned all the time.
        0..5 => Shape { volume: 0, ..small },
        // Segments with room for a record of 256 blocks.
        5..9 => Shape { segments: 24, segment_blocks: 512, ..small },
        // More leaves than the map memory holds.
        9..12 => Shape { segments: 280, volume: 0, map: 1, ..small },
        _ => small,
    }
}

/// The same as a sparse volume: of more addresses than blocks, in windows that share leaves or have leaves
/// or roots of their own. Some are full all the time.
fn spread(shape: Shape, random: &mut Random) -> Shape {
    let spread = [WINDOW, 128, 512, 5000, 1 << 18, 3 << 30][random.below(6) as usize];
    let volume = WINDOW * (6 + random.below(30));
    let capacity = (200 + random.below(volume)).min(volume);
    let roots = if random.chance(20) { 3 + random.below(8) } else { 40 } as u32;
    let lists = random.chance(50);
    let sparse = Some(SparseShape { spread, capacity, roots, lists });
    // Room for all of it, whatever the rest of the shape was made for.
    let segments = shape.segments.max(40);
    Shape { volume, segments, sparse, ..shape }
}

/// The same as a store that knows the page size of the flash below.
fn on_flash(shape: Shape, random: &mut Random) -> Shape {
    let page_blocks = 1 << (1 + random.below(4));
    // Records begin at pages, so that they take more room.
    Shape { page_blocks, segments: shape.segments + 12, reclaim: Reclaim::Threaded, ..shape }
}

/// Most lives reach every stream; the others go as users' volumes do.
fn placement(random: &mut Random) -> Placement {
    match random.below(10) {
        0 => Placement::Mixed,
        1 | 2 => Placement::Apart,
        3 | 4 => Placement::Lifetime,
        _ => Placement::Scattered,
    }
}

/// Checkpoints refer to no record, to the long ones, to most, or to all.
pub(crate) fn references(random: &mut Random) -> u32 {
    [0, 16, 4, 1][random.below(4) as usize]
}

/// In one life of four the device prepares segments: it writes zeros into them, or lacks space for them.
fn prepare(seed: u64) -> Prepare {
    match seed % 8 {
        3 => Prepare::Blocks,
        6 => Prepare::Space,
        _ => Prepare::Never,
    }
}

/// A way that fills holes, mostly.
fn reclaim(random: &mut Random) -> Reclaim {
    match random.below(8) {
        0 => Reclaim::CopyOut,
        1..4 => Reclaim::HoleFill,
        _ => Reclaim::Threaded,
    }
}

/// Blocks of a shape's volume.
pub fn volume_size(shape: &Shape) -> u64 {
    if shape.sparse.is_some() {
        return shape.volume;
    }
    let options = crate::world::create_options(shape);
    coulter_engine::create::plan(&options).map_or(0, |(geometry, _)| geometry.volume_size)
}

/// The same once the device has so many segments more.
pub fn grown_volume_size(shape: &Shape, segments: u64) -> u64 {
    if segments == 0 {
        return volume_size(shape);
    }
    let larger = Shape { segments: shape.segments + segments, volume: 0, map: 0, ..*shape };
    volume_size(&larger).max(volume_size(shape))
}

struct Maker {
    random: Random,
    reclaims: Random,
    /// If it changes: what is drawn for that.
    changes: Option<Random>,
    /// If the device forgets: what is drawn for that.
    forgets: Option<Random>,
    /// If it writes several ranges at once, and asks what is mapped: what is drawn for that.
    many: Option<Random>,
    /// If it is scrubbed: what is drawn for that.
    scrubs: Option<Random>,
    operator: Option<Random>,
    /// Whether the way to reclaim changes in the middle of its life.
    switches: bool,
    shape: Shape,
    volume: u64,
    /// Segments by which it has grown.
    growth: u64,
    /// Of a hundred requests, how many discard.
    discards: u64,
    steps: Vec<Step>,
}

impl Maker {
    fn life(&mut self) {
        // A device may be honest or not; a dishonest one ends the life sooner.
        let dishonest = self.random.chance(15);
        let failing = !dishonest && self.random.chance(15);
        for _ in 0..CUTS {
            let requests = match self.random.below(100) {
                0..80 => 1 + self.random.below(30),
                80..98 => 30 + self.random.below(120),
                _ => 200 + self.random.below(1000),
            };
            self.work(requests);
            if dishonest && self.random.chance(40) {
                self.misbehave();
            }
            if failing && self.random.chance(40) {
                self.fail();
            }
            self.forget_and_configure();
            if self.random.chance(6) {
                self.steps.push(Step::Shutdown);
            }
            if self.switches && self.reclaims.chance(5) {
                let reclaim = reclaim(&mut self.reclaims);
                self.steps.push(Step::Reclaim(reclaim));
            }
            let grows = self.grow();
            let cut = self.cut();
            self.steps.push(cut);
            if grows {
                self.volume = grown_volume_size(&self.shape, self.growth);
            }
        }
    }

    /// A flush fails and what it should have covered is gone; or the store is opened otherwise from now on.
    fn forget_and_configure(&mut self) {
        let Some(forgets) = self.forgets.as_mut() else { return };
        if forgets.chance(25) {
            let frames = if forgets.chance(50) { 0 } else { forgets.below(600) };
            let records = 12 + forgets.below(5) as u16;
            let victims =
                VictimPolicy::NAMED[forgets.below(VictimPolicy::NAMED.len() as u64) as usize].1;
            let references = references(forgets);
            self.steps.push(Step::Configure { frames, records, victims, references });
        }
        if forgets.chance(25) {
            let fault = if forgets.chance(50) { Fault::Forgets } else { Fault::ForgetsLater };
            let number = 1 + forgets.below(5);
            self.steps.push(Step::Fault(fault, number));
            self.work(20);
        }
    }

    /// A larger device, which the next opening takes in. Whether that is so.
    fn grow(&mut self) -> bool {
        let Some(changes) = self.changes.as_mut() else { return false };
        let grows = self.growth < GROWTH_MAX && changes.chance(15);
        if grows {
            let segments = 1 + changes.below(12);
            self.steps.push(Step::Grow(segments));
            self.growth += segments;
        }
        grows
    }

    fn work(&mut self, requests: u64) {
        let burst = 1 + self.random.below(24);
        let eagerness = 1 + self.random.below(8);
        let single = 50 + self.random.below(50);
        let largest = *[8, 40, 256].get(self.random.below(3) as usize).unwrap_or(&8);
        let mut left = requests;
        while left > 0 {
            if let Some(operator) = self.operator.as_mut()
                && operator.chance(15)
            {
                let (_, setting) = SETTINGS[operator.below(SETTINGS.len() as u64) as usize];
                self.steps.push(Step::Tune(setting));
            }
            if self.scrubs.as_mut().is_some_and(|scrubs| scrubs.chance(8)) {
                self.steps.push(Step::Scrub);
            }
            if let Some(changes) = self.changes.as_mut()
                && changes.chance(10)
            {
                self.steps.push(Step::Place(placement(changes)));
            }
            let together = (1 + self.random.below(burst)).min(left);
            left -= together;
            for _ in 0..together {
                let step = self.request(single, largest);
                self.steps.push(step);
            }
            let events = self.random.below(together * eagerness + 2) as u32;
            let seed = self.random.below(1 << 32);
            self.steps.push(Step::Run { events, seed });
        }
    }

    fn request(&mut self, single: u64, largest: u64) -> Step {
        let largest = largest.min(u64::from(self.shape.segment_blocks) - 1).min(self.volume);
        let count = if self.random.chance(single) { 1 } else { 1 + self.random.below(largest) };
        // Half of all goes to an eighth of the volume.
        let room = self.volume - count + 1;
        let hot = self.random.chance(50);
        let lba = self.random.below(if hot { room.div_ceil(8) } else { room });
        let discards = self.discards;
        match self.random.below(100) {
            below if below < discards => {
                let (lba, count) = match self.random.below(10) {
                    0 | 1 => (lba, 1 + self.random.below(3000)),
                    // Whole leaves take ways of their own through the map.
                    2..5 => (lba / LEAF * LEAF, LEAF * (1 + self.random.below(2))),
                    _ => (lba, count),
                };
                Step::Discard { lba, count: count.min(self.volume - lba) }
            }
            below if below < discards + 5 => Step::Flush,
            below if below < discards + 16 => {
                let asks_only = self.many.as_mut().is_some_and(|many| many.chance(40));
                match asks_only {
                    true => Step::Presence { lba, count },
                    false => Step::Read { lba, count },
                }
            }
            _ => {
                let fua = self.random.chance(5);
                let changes = self.changes_at(lba, count);
                match changes.len() {
                    0 => Step::Write { lba, count, fua },
                    _ => Step::WriteMany { changes, fua },
                }
            }
        }
    }

    /// The ranges of a write of several, one of them the given one; none if the write is to be an
    /// ordinary one.
    fn changes_at(&mut self, lba: u64, count: u64) -> Vec<Change> {
        let data_max = (u64::from(self.shape.segment_blocks) - 1).min(256);
        let Some(many) = self.many.as_mut() else { return Vec::new() };
        if !many.chance(30) {
            return Vec::new();
        }
        let change = |lba, count: u64, kind| Change { lba: Lba(lba), count: count as u32, kind };
        let mut changes = vec![change(lba, count, ChangeKind::Write)];
        let (mut data, wanted) = (count, 1 + if many.chance(5) { 199 } else { many.below(9) });
        // What does not fit with the others is left out.
        for _ in 0..2 * wanted {
            if changes.len() as u64 > wanted {
                break;
            }
            let discards = many.chance(25);
            let longest = if discards && many.chance(30) { 2 * LEAF } else { 6 };
            let count = (1 + many.below(longest)).min(self.volume);
            let lba = many.below(self.volume - count + 1);
            if !discards && data + count > data_max {
                continue;
            }
            let kind = if discards { ChangeKind::Discard } else { ChangeKind::Write };
            changes.push(change(lba, count, kind));
            if check_changes(&changes).is_err() {
                changes.pop();
            } else if !discards {
                data += count;
            }
        }
        changes
    }

    fn cut(&mut self) -> Step {
        let loss = match self.random.below(8) {
            0 | 1 => Loss::Nothing,
            2 => Loss::Everything,
            3 | 4 => Loss::SomeWrites,
            5 => Loss::SomeBlocks,
            _ => Loss::SomeSectors,
        };
        let seed = self.random.below(1 << 32);
        let mut again = Vec::new();
        while again.len() < 4 && self.random.chance(30) {
            again.push(1 + self.random.below(60) as u32);
        }
        Step::Cut { loss, seed, again }
    }

    fn misbehave(&mut self) {
        let faults = [Fault::Lost, Fault::Misdirected, Fault::Rot];
        let fault = faults[self.random.below(3) as usize];
        let number = 1 + self.random.below(if fault == Fault::Rot { 1 << 20 } else { 30 });
        self.steps.push(Step::Fault(fault, number));
        self.work(20);
    }

    fn fail(&mut self) {
        let faults = [Fault::ReadError, Fault::WriteError, Fault::FlushError];
        let fault = faults[self.random.below(3) as usize];
        self.steps.push(Step::Fault(fault, 1 + self.random.below(10)));
        self.work(20);
    }
}
