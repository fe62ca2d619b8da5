//! Every decision of a run: by a seed, or by a script of those that differ from the first choice.

use coulter_sim::random::Random;
use std::collections::BTreeMap;

/// Makes decisions. The first choice is always the one in which nothing happens.
#[derive(Clone, Debug)]
pub enum Chooser {
    /// By weight, from a seed.
    Random(Random),
    /// The first choice, but for the decisions that it names.
    Script {
        /// Decisions by their number, and what is chosen.
        script: BTreeMap<usize, usize>,
        /// How many choices each decision so far had.
        counts: Vec<usize>,
    },
}

impl Chooser {
    /// By a seed.
    pub fn of_seed(seed: u64) -> Chooser {
        Chooser::Random(Random::new(seed))
    }

    /// By a script.
    pub fn of_script(script: BTreeMap<usize, usize>) -> Chooser {
        Chooser::Script { script, counts: Vec::new() }
    }

    /// Chooses one of several. A script does not heed weights, but what has none is never chosen.
    pub fn pick(&mut self, weights: &[u32]) -> usize {
        match self {
            Chooser::Random(random) => {
                let total: u32 = weights.iter().sum();
                let mut draw = random.below(total.into()) as u32;
                for (index, weight) in weights.iter().enumerate() {
                    if draw < *weight {
                        return index;
                    }
                    draw -= weight;
                }
                unreachable!("a draw is below the sum of the weights")
            }
            Chooser::Script { script, counts } => {
                let possible = weights.iter().filter(|weight| **weight > 0).count();
                let choice = script.get(&counts.len()).copied().unwrap_or(0).min(possible - 1);
                counts.push(possible);
                let mut indexes = (0..weights.len()).filter(|index| weights[*index] > 0);
                indexes.nth(choice).expect("the choice is one of those that are possible")
            }
        }
    }

    /// Chooses one of several that are alike.
    pub fn any(&mut self, count: usize) -> usize {
        self.pick(&vec![1; count])
    }
}
