//! Goal: the simulator finds what it is there to find. Each deliberate mistake of the engine must be caught
//! within the seeds that the smoke test runs; without a mistake these seeds hold.

mod seeds;

use coulter_engine::canary::{self, Canary};
use coulter_sim::{Simulator, generate, lives, shrink};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seeds of a smoke run, in which every mistake must be found.
const SMOKE_SEEDS: u64 = 120;

/// Plans that once failed, made short. Lives seldom come to where these mistakes matter; these always
/// do.
const KNOWN: [(Canary, &str); 2] = [
    (Canary::UnchangedReleased, include_str!("../../../sim/tests/released.plan")),
    (Canary::ThirdNamedEarly, include_str!("../../../sim/tests/grown.plan")),
];

/// Those that lives come to too seldom, and that a scenario catches: see `holes.rs`,
/// `recovery_memory.rs`, `superblocks.rs`, `copies.rs`, `unreadable_log.rs`, `scrub.rs`, `log_headers.rs` and `degraded.rs`; of the last one, which takes two threads, the model in
/// `proof/model-reads`.
const BY_SCENARIO: [Canary; 12] = [
    Canary::HoleReaderIgnored,
    Canary::StaleHeaderBelieved,
    Canary::SuperblockSingle,
    Canary::RecoveryOverfilled,
    Canary::CopyUnused,
    Canary::UnreadableDropped,
    Canary::EchoUnverified,
    Canary::ScrubSkipsSegment,
    Canary::ScrubBelieves,
    Canary::DoubtForgotten,
    Canary::DoubtAnswered,
    Canary::CachedReadUnchecked,
];

/// Seeds in which nothing else may show them; it has shown them by then.
const BLIND_SEEDS: u64 = 30;

/// Those that nothing shows but the engine's own counts, made anew.
const BY_INVARIANTS: [Canary; 2] = [Canary::RelocationKept, Canary::PromiseKept];

/// A seed, or known plan (then zero), that finds the mistake, and what it says. The seed that found it before is tried
/// first: that spares all those that find nothing.
fn caught(mistake: Canary) -> Option<(u64, String)> {
    if let Some((_, text)) = KNOWN.iter().find(|(known, _)| *known == mistake) {
        canary::choose(Some(mistake));
        let plan = text.parse().expect("a plan of this version");
        let result = lives::run(&mut Simulator::default(), &plan);
        canary::choose(None);
        return result.err().map(|what| (0, what));
    }
    let noted = seeds::FOUND_BY.iter().find(|(known, _)| *known == mistake);
    if let Some((_, seed)) = noted
        && *seed < SMOKE_SEEDS
        && let Some(caught) = caught_within(*seed..*seed + 1, Simulator::default(), mistake)
    {
        return Some(caught);
    }
    let caught = caught_within(0..SMOKE_SEEDS, Simulator::default(), mistake);
    if let Some((seed, _)) = caught {
        println!("seeds.rs is out of date: (Canary::{mistake:?}, {seed}),");
    }
    caught
}

fn caught_within(
    mut seeds: Range<u64>,
    mut simulator: Simulator,
    mistake: Canary,
) -> Option<(u64, String)> {
    canary::choose(Some(mistake));
    let found = seeds.find_map(|seed| {
        let result = lives::run(&mut simulator, &generate::plan(seed));
        result.err().map(|what| (seed, what))
    });
    canary::choose(None);
    found
}

/// Panics are expected here, and are told as what they found.
fn be_quiet() {
    std::panic::set_hook(Box::new(|_| {}));
}

#[test]
fn every_canary_is_caught_within_the_smoke_seeds() {
    be_quiet();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut missed = Vec::new();
        while let Some(mistake) = Canary::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            if BY_SCENARIO.contains(mistake) {
                continue;
            }
            match caught(*mistake) {
                Some((seed, what)) => {
                    let what: String = what.chars().take(110).collect();
                    println!("{mistake:?}: seed {seed}: {what}");
                }
                None => missed.push(*mistake),
            }
        }
        missed
    };
    let missed = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        [work(), other.join().expect("its panics are caught")].concat()
    });
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught in {SMOKE_SEEDS} seeds: {missed:?}");
}

/// What they are for: no oracle and no checker would see these.
#[test]
fn some_mistakes_are_seen_by_the_invariants_alone() {
    for mistake in BY_INVARIANTS {
        let mut blind = Simulator::default();
        blind.asserts_invariants = false;
        assert_eq!(caught_within(0..BLIND_SEEDS, blind, mistake), None, "{mistake:?}");
        let seeing = caught_within(0..BLIND_SEEDS, Simulator::default(), mistake);
        let (seeds, what) = seeing.expect("the invariants show it");
        println!("{mistake:?}: {} seeds: {what}", seeds + 1);
    }
}

/// What fails is made short enough to be read, and goes on failing when it is read back.
#[test]
fn a_failing_plan_is_shrunk_to_a_few_steps() {
    be_quiet();
    canary::choose(Some(Canary::DiscardForgotten));
    let mut simulator = Simulator::default();
    let plan = (0..SMOKE_SEEDS).map(generate::plan);
    let mut failing = plan.filter(|plan| lives::run(&mut simulator, plan).is_err());
    let plan = failing.next().expect("it is caught");
    let (shrunk, what) = shrink::shrink(&plan, 2000).expect("it still fails");
    assert!(shrunk.steps.len() <= 8, "{} of {}:\n{shrunk}", shrunk.steps.len(), plan.steps.len());
    let test = shrink::as_test("found", &shrunk, &what);
    assert!(test.contains("#[test]"), "{test}");
    let read = shrunk.to_string().parse().expect("it was written by the same version");
    assert!(lives::run(&mut simulator, &read).is_err());
    canary::choose(None);
    assert!(lives::run(&mut simulator, &read).is_ok(), "the plan itself is a fair one");
}

#[test]
fn without_a_mistake_the_same_engine_holds() {
    let total = lives::run_seeds(0..10, 1, |_, _| true);
    assert!(total.failures.is_empty(), "{:?}", total.failures[0].what);
}
