//! Goal: lives of stores with damaged metadata find out an engine that forgets what is in doubt, and one that answers it.
//! It is the oracle that does: each is shown by what a read gives.

use coulter_engine::canary::{self, Canary};
use coulter_sim::{Simulator, lives, ruined};

/// Lives in which each must be found.
const LIVES: u64 = 20;

/// What a life says of an engine with this mistake, if any does.
fn caught(mistake: Canary) -> Option<String> {
    canary::choose(Some(mistake));
    let mut simulator = Simulator::default();
    simulator.asserts_invariants = false;
    let found = (0..LIVES).find_map(|seed| lives::run(&mut simulator, &ruined::plan(seed)).err());
    canary::choose(None);
    found
}

#[test]
fn doubt_that_is_forgotten_and_doubt_that_is_answered_are_found_out() {
    std::panic::set_hook(Box::new(|_| {}));
    let found = [Canary::DoubtForgotten, Canary::DoubtAnswered].map(caught);
    let _ = std::panic::take_hook();
    for what in found {
        let what = what.expect("it is caught");
        let is_wrong =
            ["no prefix of operations", "read as"].iter().any(|part| what.contains(part));
        assert!(is_wrong, "{what}");
    }
}
