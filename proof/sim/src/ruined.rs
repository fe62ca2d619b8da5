//! Lives of stores of which metadata is damaged between openings, at times beyond repair.
//!
//! They are lives as others are, on honest devices; before some of their cuts something is ruined. What makes a store
//! read-only comes last, for nothing changes any more then.

use crate::generate;
use crate::plan::{Plan, Ruin, Step};
use crate::random::Random;

/// Keeps these lives' randomness apart from that of all others.
const RUINED: u64 = 0x7275_696e_6564_2121;

/// Openings of a life at most.
const OPENINGS: u64 = 9;

/// Of these, the last ones may be of a store that is read-only.
const LAST_OPENINGS: u64 = 3;

/// What leaves a store that takes writes, and how often it is chosen.
const MENDABLE: [(Ruin, u64); 5] = [
    (Ruin::HeaderAndPayload, 10),
    (Ruin::Header, 3),
    (Ruin::Copy, 3),
    (Ruin::Referred, 2),
    (Ruin::Leaf, 2),
];

/// What need not.
const OTHERS: [(Ruin, u64); 6] = [
    (Ruin::Run, 3),
    (Ruin::Headers, 3),
    (Ruin::ReferredPair, 3),
    (Ruin::Table, 1),
    (Ruin::Root, 1),
    (Ruin::HeaderAndPayload, 2),
];

/// Makes the plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed ^ RUINED);
    let life = generate::life(random.below(1 << 32));
    let mut steps = Vec::new();
    let mut openings = 0;
    for step in life.steps {
        match step {
            // The device is honest, and does not grow.
            Step::Fault(..) | Step::Grow(_) => continue,
            Step::Cut { .. } | Step::Shutdown => {
                openings += 1;
                let is_last = openings > OPENINGS - LAST_OPENINGS;
                if random.chance(50) {
                    let ruin = drawn(if is_last { &OTHERS } else { &MENDABLE }, &mut random);
                    steps.push(Step::Ruin(ruin, random.below(1 << 40)));
                }
            }
            _ => {}
        }
        steps.push(step);
        if openings == OPENINGS {
            break;
        }
    }
    Plan { shape: life.shape, steps }
}

fn drawn(ruins: &[(Ruin, u64)], random: &mut Random) -> Ruin {
    let mut left = random.below(ruins.iter().map(|(_, share)| share).sum());
    for (ruin, share) in ruins {
        match left.checked_sub(*share) {
            None => return *ruin,
            Some(rest) => left = rest,
        }
    }
    unreachable!("less was drawn than there is")
}
