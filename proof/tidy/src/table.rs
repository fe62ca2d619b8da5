//! The rule book: one TOML table with today's limits, which only get stricter.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Name to a count or a length.
pub(crate) type Counts = BTreeMap<String, usize>;

/// What stands above the table.
const HEADING: &str = "\
# The rule book. `cargo run -p coulter-tidy` checks it; `-- --tighten` records what improved;
# `-- --list` prints the place of each offence that is still allowed.
#
# A crate needs an entry `[crates.NAME]` with `part = \"product\"`, `\"lab\"` or `\"proof\"`; `--tighten`
# adds its figures. No other limit may be loosened.

";

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleBook {
    /// Commits after this one need a body.
    pub(crate) base_commit: String,
    /// Words of all documents: the aim, and today's limit.
    pub(crate) words_aim: usize,
    pub(crate) words_max: usize,
    /// Tics in all documents.
    pub(crate) document_tics_max: usize,
    /// Patterns of the habits that PLAIN English avoids.
    pub(crate) tics: Vec<String>,
    /// Names that several public types have, with the number of types.
    #[serde(default)]
    pub(crate) shared_names: Counts,
    pub(crate) crates: BTreeMap<String, Rules>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    Product,
    Lab,
    Proof,
}

impl Part {
    /// The folder of the workspace that holds its crates.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Part::Product => "product",
            Part::Lab => "lab",
            Part::Proof => "proof",
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    pub(crate) part: Part,
    /// Figures as of the last `--tighten`; none before the first.
    #[serde(flatten)]
    pub(crate) limits: Option<Limits>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub(crate) struct Limits {
    /// Assertions per 100 lines of code.
    pub(crate) assertions_min: f64,
    pub(crate) wide_lines_max: usize,
    pub(crate) tics_max: usize,
    /// Files in circles of imports that are too large, and the largest such circle.
    pub(crate) circled_files_max: usize,
    pub(crate) largest_circle_max: usize,
    /// Lab and proof crates that the crate still imports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) imports: Vec<String>,
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub(crate) long_files: Counts,
    #[serde(default, skip_serializing_if = "Counts::is_empty")]
    pub(crate) long_functions: Counts,
}

impl RuleBook {
    pub(crate) fn read(path: &Path) -> Result<RuleBook> {
        let place = || path.display().to_string();
        let text = fs::read_to_string(path).with_context(place)?;
        toml::from_str(&text).with_context(place)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = HEADING.to_owned() + &toml::to_string(self).context("encode the rule book")?;
        fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Adopts each measured figure that is stricter, and the figures of new crates.
    pub(crate) fn tighten(&mut self, measured: &Measured) {
        self.words_max = measured.words.min(self.words_max).max(self.words_aim);
        self.document_tics_max = self.document_tics_max.min(measured.document_tics);
        tighten_counts(&mut self.shared_names, &measured.shared_names);
        self.crates.retain(|name, _| measured.crates.contains_key(name));
        for (name, rules) in &mut self.crates {
            let now = &measured.crates[name];
            match &mut rules.limits {
                None => rules.limits = Some(now.clone()),
                Some(limits) => limits.tighten(now),
            }
        }
    }
}

impl Limits {
    fn tighten(&mut self, now: &Limits) {
        self.assertions_min = self.assertions_min.max(now.assertions_min);
        for (limit, now) in [
            (&mut self.wide_lines_max, now.wide_lines_max),
            (&mut self.tics_max, now.tics_max),
            (&mut self.circled_files_max, now.circled_files_max),
            (&mut self.largest_circle_max, now.largest_circle_max),
        ] {
            *limit = now.min(*limit);
        }
        self.imports.retain(|name| now.imports.contains(name));
        tighten_counts(&mut self.long_files, &now.long_files);
        tighten_counts(&mut self.long_functions, &now.long_functions);
    }
}

fn tighten_counts(limits: &mut Counts, now: &Counts) {
    limits.retain(|name, _| now.contains_key(name));
    limits.iter_mut().for_each(|(name, limit)| *limit = now[name].min(*limit));
}

/// What the workspace has now, in the terms of the rule book.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) words: usize,
    pub(crate) document_tics: usize,
    pub(crate) shared_names: Counts,
    pub(crate) crates: BTreeMap<String, Limits>,
}
