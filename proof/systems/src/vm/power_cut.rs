//! The plug pulled while a guest writes files, and the files looked at afterwards.
//!
//! The guest tells each file that it has made durable (`fsync` of file and directory), with its
//! checksum; only then is it told as durable here. After the cut the same disk goes into a new
//! machine: the store is checked, attached, mounted, every file compared, unmounted, and the file
//! system's own checker has a look. Then that machine goes on to write, until its plug is pulled.
//!
//! # What it does not show
//! QEMU's disk has no cache of its own that a killed process would lose. Lost caches are the
//! simulator's and `power-cut`'s to show.

use super::campaign::Lab;
use super::machine::{Guest, Heard};
use super::scenario::Scenario;
use std::time::{Duration, Instant};

/// Files that are durable before the first plug may be pulled.
const FILES_MIN: usize = 5;
/// The plug is pulled between no time and this long after that.
const MOMENT_MAX_MS: u64 = 4000;

/// Cuts the power `cuts` times, on one disk; what the guests measured, and how many files were compared.
///
/// # Errors
/// What was lost, or what went wrong, with the end of the console.
pub(super) fn run(
    lab: &mut Lab,
    scenario: &Scenario,
    cuts: u32,
) -> Result<Vec<(String, f64)>, String> {
    let told = |error: crate::SystemsError| error.to_string();
    let disk = lab.new_disk().map_err(told)?;
    let mut durable: Vec<String> = Vec::new();
    let mut figures = vec![("files compared".to_owned(), 0.0)];
    for round in 0..=cuts {
        let (is_first, is_last) = (round == 0, round == cuts);
        let mut plan = String::new();
        for (part, is_wanted) in [("check", !is_first), ("write", !is_last)] {
            if is_wanted {
                plan += &format!("{} {part} {round}\n", scenario.script);
            }
        }
        let mut machine = lab.boot(&plan, &disk).map_err(told)?;
        if !is_first {
            check(&machine, scenario, &durable, &mut figures)?;
        }
        if !is_last {
            // Different in each round, and the same in each run: a step of the golden ratio.
            let moment = u64::from(round + 1) * 2_531 % MOMENT_MAX_MS;
            write(&mut machine, scenario, Duration::from_millis(moment), &mut durable)?;
        }
    }
    Ok(figures)
}

/// Lets a guest write, and pulls the plug at some moment after a few files.
fn write(
    machine: &mut Guest,
    scenario: &Scenario,
    moment: Duration,
    durable: &mut Vec<String>,
) -> Result<(), String> {
    let (start, before) = (Instant::now(), durable.len());
    let mut pull_at = None;
    loop {
        if pull_at.is_none() && durable.len() >= before + FILES_MIN {
            pull_at = Some(Instant::now() + moment);
        }
        let deadline = pull_at.unwrap_or(start + scenario.limit());
        match machine.hear(deadline.saturating_duration_since(Instant::now())) {
            Heard::Line(line) => match line.strip_prefix("durable ") {
                Some(file) => durable.push(file.to_owned()),
                None => return Err(format!("{line}\n{}", machine.console(0, 40))),
            },
            Heard::Silence if pull_at.is_some() => break,
            _ => return Err(format!("it wrote too little\n{}", machine.console(0, 40))),
        }
    }
    machine.cut();
    // What it managed to say before it went is durable as well.
    while let Heard::Line(line) = machine.hear(Duration::from_millis(200)) {
        // The last line may be cut short.
        let whole = line.strip_prefix("durable ").filter(|file| file.ends_with('.'));
        durable.extend(whole.map(str::to_owned));
    }
    Ok(())
}

/// Lets a guest look at what is there, and compares that with what must be.
fn check(
    machine: &Guest,
    scenario: &Scenario,
    durable: &[String],
    figures: &mut Vec<(String, f64)>,
) -> Result<(), String> {
    let deadline = Instant::now() + scenario.limit();
    let mut found = std::collections::BTreeSet::new();
    loop {
        match machine.hear(deadline.saturating_duration_since(Instant::now())) {
            Heard::Line(line) => match line.split_once(' ') {
                Some(("found", file)) => {
                    found.insert(file.to_owned());
                }
                Some(("figure", figure)) => {
                    let (value, name) = figure.split_once(' ').unwrap_or_default();
                    add(figures, name, value.parse().unwrap_or(f64::NAN));
                }
                Some(("end", "0")) => break,
                _ => return Err(format!("{line}\n{}", machine.console(0, 60))),
            },
            heard => return Err(format!("{heard:?}\n{}", machine.console(0, 60))),
        }
    }
    add(figures, "files compared", durable.len() as f64);
    match durable.iter().find(|file| !found.contains(*file)) {
        None => Ok(()),
        Some(lost) => Err(format!("VIOLATION: durable, and lost or changed: {lost}")),
    }
}

/// Figures of several guests are added up.
fn add(figures: &mut Vec<(String, f64)>, name: &str, value: f64) {
    match figures.iter_mut().find(|(known, _)| known == name) {
        Some((_, sum)) => *sum += value,
        None => figures.push((name.to_owned(), value)),
    }
}
