//! The rules: measures a house, and compares the figures with the rule book.

use crate::graph;
use crate::house::{Commit, Crate, History, House};
use crate::source::Source;
use crate::table::{Counts, Limits, Measured, Part, RuleBook};
use anyhow::{Context, Result};
use regex_lite::Regex;
use std::collections::BTreeMap;

/// Lines of a file, at most.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function, at most.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a line, at most, comments included.
const COLUMNS_MAX: usize = 100;
/// Files in a circle of imports, at most.
const CIRCLE_FILES_MAX: usize = 3;

/// A rule that is broken, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offence {
    pub(crate) rule: Rule,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Entry,
    Lints,
    Assertions,
    FileLength,
    FunctionLength,
    Columns,
    Circles,
    Imports,
    Unsafe,
    Names,
    Words,
    Tics,
    Commits,
}

/// A habit or a length that the rule book still allows, with its place.
pub(crate) struct Finding {
    pub(crate) place: String,
    pub(crate) text: String,
}

pub(crate) struct Tics(Vec<Regex>);

impl Tics {
    pub(crate) fn new(patterns: &[String]) -> Result<Tics> {
        let regex =
            |pattern: &String| Regex::new(pattern).with_context(|| format!("tic {pattern}"));
        Ok(Tics(patterns.iter().map(regex).collect::<Result<_>>()?))
    }

    fn count(&self, line: &str) -> usize {
        self.0.iter().map(|tic| tic.find_iter(line).count()).sum()
    }

    fn count_text(&self, text: &str) -> usize {
        text.lines().map(|line| self.count(line)).sum()
    }

    fn find(&self, place: &str, text: &str, findings: &mut Vec<Finding>) {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| self.count(line) > 0) {
            let place = format!("{place}:{}", index + 1);
            findings.push(Finding { place, text: line.trim().to_owned() });
        }
    }
}

pub(crate) fn measure(house: &House, book: &RuleBook, tics: &Tics) -> Measured {
    let texts = || house.documents.values();
    let crates = house.crates.iter().map(|member| {
        let limits = figures(member, book, tics);
        (member.name.clone(), limits)
    });
    Measured {
        words: texts().map(|text| words(text)).sum(),
        document_tics: texts().map(|text| tics.count_text(text)).sum(),
        shared_names: shared_names(house),
        crates: crates.collect(),
    }
}

/// Words of a text. The bars of a table and other marks without a letter or digit are none.
fn words(text: &str) -> usize {
    let is_word = |token: &&str| token.contains(char::is_alphanumeric);
    text.split_whitespace().filter(is_word).count()
}

fn figures(member: &Crate, book: &RuleBook, tics: &Tics) -> Limits {
    let files = &member.files;
    let code = code(files);
    let lines: usize = code.iter().map(|file| file.code_lines).sum();
    let assertions: usize = code.iter().map(|file| file.assertions).sum();
    // Rounded down, so that a few lines without an assertion are no offence.
    let density = (1000.0 * assertions as f64 / lines.max(1) as f64).floor() / 10.0;
    let circles = graph::circles(files, CIRCLE_FILES_MAX);
    Limits {
        assertions_min: density,
        wide_lines_max: files.iter().map(|file| wide_lines(file).count()).sum(),
        tics_max: files.iter().map(|file| tics.count_text(&file.text)).sum(),
        circled_files_max: circles.iter().map(Vec::len).sum(),
        largest_circle_max: circles.iter().map(Vec::len).max().unwrap_or(0),
        imports: forbidden_imports(member, book),
        long_files: files.iter().filter_map(long_file).collect(),
        long_functions: files.iter().flat_map(long_functions).collect(),
    }
}

/// Files of `src` that are no tests.
fn code(files: &[Source]) -> Vec<&Source> {
    let module = |file: &Source| graph::module_path(&file.path, false);
    let tests = files.iter().flat_map(|file| {
        let module = module(file).unwrap_or_default();
        file.test_modules.iter().map(move |name| [&module[..], std::slice::from_ref(name)].concat())
    });
    let tests: Vec<_> = tests.collect();
    let is_test = |file: &Source| {
        let module = module(file).unwrap_or_default();
        tests.iter().any(|test| module.starts_with(test))
    };
    files.iter().filter(|file| file.is_code() && !is_test(file)).collect()
}

fn wide_lines(file: &Source) -> impl Iterator<Item = (usize, &str)> {
    let lines = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| line.chars().count() > COLUMNS_MAX)
}

fn long_file(file: &Source) -> Option<(String, usize)> {
    let lines = file.text.lines().count();
    (lines > FILE_LINES_MAX).then(|| (file.path.clone(), lines))
}

fn long_functions(file: &Source) -> impl Iterator<Item = (String, usize)> {
    let long = file.functions.iter().filter(|&(_, &lines)| lines > FUNCTION_LINES_MAX);
    long.map(|(name, &lines)| (format!("{} {name}", file.path), lines))
}

/// Normal dependencies of a product crate on a crate of the lab or the proof.
fn forbidden_imports(member: &Crate, book: &RuleBook) -> Vec<String> {
    let part = |name: &str| book.crates.get(name).map(|rules| rules.part);
    if part(&member.name) != Some(Part::Product) {
        return Vec::new();
    }
    let forbidden = |name: &&String| matches!(part(name), Some(Part::Lab | Part::Proof));
    member.imports.iter().filter(forbidden).cloned().collect()
}

/// Public types of the workspace that share their name with another, with their number.
fn shared_names(house: &House) -> Counts {
    let mut counts = Counts::new();
    for member in &house.crates {
        for name in code(&member.files).into_iter().flat_map(|file| &file.types) {
            *counts.entry(name.clone()).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count > 1);
    counts
}

/// Compares what is there with what the rule book allows.
pub(crate) fn check(house: &House, book: &RuleBook, measured: &Measured) -> Vec<Offence> {
    let mut offences = Offences::default();
    for member in &house.crates {
        let now = &measured.crates[&member.name];
        check_crate(&mut offences, member, now, book);
    }
    for name in book.crates.keys().filter(|name| !measured.crates.contains_key(*name)) {
        offences.add(Rule::Entry, format!("{name}: the crate is gone; run --tighten"));
    }
    for (name, count) in &measured.shared_names {
        let allowed = book.shared_names.get(name).copied().unwrap_or(1);
        let what = format!("public types named {name}");
        offences.above(Rule::Names, &what, *count, allowed);
    }
    let words_max = book.words_max.max(book.words_aim);
    offences.above(Rule::Words, "words in all documents", measured.words, words_max);
    let allowed = book.document_tics_max;
    offences.above(Rule::Tics, "tics in all documents", measured.document_tics, allowed);
    if let History::Read(commits) = &house.commits {
        let bare = commits.iter().filter(|commit| !has_body(commit));
        bare.for_each(|commit| {
            let subject = commit.message.lines().next().unwrap_or_default();
            offences.add(Rule::Commits, format!("{} has no body: {subject}", commit.id));
        });
    }
    offences.0
}

fn check_crate(offences: &mut Offences, member: &Crate, now: &Limits, book: &RuleBook) {
    let name = &member.name;
    if !member.inherits_lints {
        offences.add(Rule::Lints, format!("{name}: add `[lints] workspace = true`"));
    }
    for file in &member.files {
        for line in &file.unexplained {
            let place = format!("{}/{}:{line}", member.folder, file.path);
            offences.add(Rule::Unsafe, format!("{place}: unsafe without a SAFETY comment"));
        }
    }
    let entry = book.crates.get(name).and_then(|rules| Some((rules.part, rules.limits.as_ref()?)));
    let Some((part, limits)) = entry else {
        let missing = "no entry in tidy.toml; add its part and run --tighten";
        offences.add(Rule::Entry, format!("{name}: {missing}"));
        return;
    };
    if member.folder.split('/').next() != Some(part.folder()) {
        let wrong = format!("{name}: {} is not in {}/", member.folder, part.folder());
        offences.add(Rule::Entry, wrong);
    }
    if part == Part::Product && now.assertions_min < limits.assertions_min {
        let (now, min) = (now.assertions_min, limits.assertions_min);
        let message = format!("{name}: {now:.1} assertions per 100 lines of code, floor {min:.1}");
        offences.add(Rule::Assertions, message);
    }
    let of = |what: &str| format!("{name}: {what}");
    let what = of(&format!("lines over {COLUMNS_MAX} columns"));
    offences.above(Rule::Columns, &what, now.wide_lines_max, limits.wide_lines_max);
    offences.above(Rule::Tics, &of("tics"), now.tics_max, limits.tics_max);
    let (files, largest) = (now.circled_files_max, now.largest_circle_max);
    offences.above(Rule::Circles, &of("files in circles"), files, limits.circled_files_max);
    offences.above(Rule::Circles, &of("largest circle"), largest, limits.largest_circle_max);
    for import in now.imports.iter().filter(|import| !limits.imports.contains(import)) {
        offences.add(Rule::Imports, format!("{name}: a product crate imports {import}"));
    }
    for (rule, lengths, allowed, max) in [
        (Rule::FileLength, &now.long_files, &limits.long_files, FILE_LINES_MAX),
        (Rule::FunctionLength, &now.long_functions, &limits.long_functions, FUNCTION_LINES_MAX),
    ] {
        for (place, lines) in lengths {
            let allowed = allowed.get(place).copied().unwrap_or(max);
            let what = format!("{}/{place}: lines", member.folder);
            offences.above(rule, &what, *lines, allowed);
        }
    }
}

#[derive(Default)]
struct Offences(Vec<Offence>);

impl Offences {
    fn add(&mut self, rule: Rule, message: String) {
        self.0.push(Offence { rule, message });
    }

    fn above(&mut self, rule: Rule, what: &str, now: usize, max: usize) {
        if now > max {
            self.add(rule, format!("{what}: {now}, limit {max}"));
        }
    }
}

/// True if text follows the subject; trailers such as `Signed-off-by:` do not count.
fn has_body(commit: &Commit) -> bool {
    let is_trailer = |line: &str| {
        let key = line.split_once(": ").map(|(key, _)| key);
        key.is_some_and(|key| key.contains('-') && !key.contains(' '))
    };
    let mut body = commit.message.lines().skip(1).map(str::trim);
    body.any(|line| !line.is_empty() && !is_trailer(line))
}

/// The place of each offence that the rule book still allows.
pub(crate) fn list(house: &House, tics: &Tics) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &house.crates {
        for file in &member.files {
            let place = format!("{}/{}", member.folder, file.path);
            for (line, text) in wide_lines(file) {
                let text = format!("columns: {}", text.trim());
                findings.push(Finding { place: format!("{place}:{line}"), text });
            }
            tics.find(&place, &file.text, &mut findings);
        }
        for circle in graph::circles(&member.files, CIRCLE_FILES_MAX) {
            let text = format!("circle of {}: {}", circle.len(), circle.join(" "));
            findings.push(Finding { place: member.folder.clone(), text });
        }
    }
    for (name, count) in shared_names(house) {
        findings.push(Finding { place: name, text: format!("{count} public types") });
    }
    for (path, text) in &house.documents {
        tics.find(path, text, &mut findings);
    }
    findings
}

/// One line for each crate: its figures beside the aim.
pub(crate) fn summary(house: &House, book: &RuleBook, measured: &Measured) -> String {
    let folder: BTreeMap<_, _> =
        house.crates.iter().map(|member| (&member.name, &member.folder)).collect();
    let mut text = String::from("asserts/100  wide  tics  circled  long files, functions\n");
    for (name, now) in &measured.crates {
        let (asserts, wide, tics) = (now.assertions_min, now.wide_lines_max, now.tics_max);
        let (files, functions) = (now.long_files.len(), now.long_functions.len());
        let circled = now.circled_files_max;
        let place = folder[name];
        text += &format!(
            "{asserts:>11.1} {wide:>5} {tics:>5} {circled:>8} {files:>11}, {functions:<9}  {place}\n"
        );
    }
    let (words, tics) = (measured.words, measured.document_tics);
    let names = measured.shared_names.len();
    let aim = book.words_aim;
    text += &format!("{words} words in documents (aim {aim}), {tics} tics; {names} shared names\n");
    text
}
