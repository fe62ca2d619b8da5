//! The published experiments, run again on emulated drives: what a paper reports, what comes out
//! here, whether the shape is the same, and if not, why.
//!
//! An [`Experiment`] makes an [`Outcome`]: a table, perhaps a plot, a verdict that is *computed*
//! from the table, and a sentence. [`page::page`] makes one HTML page of all of them.
//!
//! # Determinism contract
//! An outcome depends on the experiment, the scale and the seed, and on nothing else; so the page
//! is the same to the byte, whoever makes it and whether it was interrupted between experiments.
//!
//! # Does not
//! write files. The caller keeps outcomes and takes up where it stopped.

mod ablations;
mod flash;
mod memory;
mod mixes;
mod page;
mod remapping;
mod setting;

pub use page::page;
pub use setting::{Scale, Setting};

use crate::run::RunError;
use serde::{Deserialize, Serialize};

/// Whether our figures have the shape of the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// They have.
    Holds,
    /// In part.
    Partly,
    /// They have not.
    Differs,
    /// There is nothing to compare with: the figures stand for themselves.
    Ours,
}

impl Verdict {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Holds => "the shape holds",
            Verdict::Partly => "holds in part",
            Verdict::Differs => "differs",
            Verdict::Ours => "not in the papers",
        }
    }

    /// All, some or none of the conditions hold.
    fn of(conditions: &[bool]) -> Verdict {
        match conditions.iter().filter(|holds| **holds).count() {
            0 => Verdict::Differs,
            count if count == conditions.len() => Verdict::Holds,
            _ => Verdict::Partly,
        }
    }
}

/// Figures in rows and columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What each column is, its unit included.
    pub heading: Vec<String>,
    /// The rows; the first cell says of what.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heading: &[&str]) -> Table {
        Table { heading: heading.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heading.len(), "a row has as many cells as the heading");
        self.rows.push(cells);
    }
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Groups of bars.
    Bars,
    /// Lines over the labels.
    Lines,
}

/// A picture of figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// What is drawn, and its unit.
    pub title: String,
    /// Bars or lines.
    pub shape: Shape,
    /// The groups, or the places on the horizontal axis.
    pub labels: Vec<String>,
    /// Names, each with a value for every label.
    pub series: Vec<(String, Vec<f64>)>,
}

/// What came out of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The experiment's short name.
    pub id: String,
    /// What it is about.
    pub title: String,
    /// What the paper did and reports.
    pub paper: String,
    /// What was done here.
    pub setup: String,
    /// The figures.
    pub tables: Vec<Table>,
    /// The pictures.
    pub plots: Vec<Plot>,
    /// Whether the shape is the same.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
}

/// One experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its short name: D1 and so on for those of the papers, A1 for ours.
    pub id: &'static str,
    run: fn(&Setting) -> Result<Outcome, RunError>,
}

impl std::fmt::Debug for Experiment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Experiment({})", self.id)
    }
}

impl Experiment {
    /// Runs it.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(&self, setting: &Setting) -> Result<Outcome, RunError> {
        let outcome = (self.run)(setting)?;
        assert_eq!(outcome.id, self.id, "an outcome names its experiment");
        Ok(outcome)
    }
}

/// Every experiment, in the order of the page.
pub const EXPERIMENTS: [Experiment; 24] = [
    Experiment { id: "D1", run: remapping::d1 },
    Experiment { id: "D2", run: remapping::d2 },
    Experiment { id: "D3", run: remapping::d3 },
    Experiment { id: "D4", run: mixes::d4 },
    Experiment { id: "D5", run: mixes::d5 },
    Experiment { id: "D6", run: remapping::d6 },
    Experiment { id: "D7", run: remapping::d7 },
    Experiment { id: "D8", run: remapping::d8 },
    Experiment { id: "D9", run: remapping::d9 },
    Experiment { id: "D10", run: mixes::d10 },
    Experiment { id: "D11", run: mixes::d11 },
    Experiment { id: "D12", run: mixes::d12 },
    Experiment { id: "D13", run: remapping::d13 },
    Experiment { id: "D14", run: memory::d14 },
    Experiment { id: "D15", run: remapping::d15 },
    Experiment { id: "D16", run: flash::d16 },
    Experiment { id: "D17", run: flash::d17 },
    Experiment { id: "D18", run: flash::d18 },
    Experiment { id: "D19", run: memory::d19 },
    Experiment { id: "D20", run: memory::d20 },
    Experiment { id: "D21", run: memory::d21 },
    Experiment { id: "A1", run: ablations::a1 },
    Experiment { id: "A2", run: ablations::a2 },
    Experiment { id: "A3", run: ablations::a3 },
];
