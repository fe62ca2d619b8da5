//! The plug pulled while a guest writes files, and the files looked at afterwards.
//!
//! The guest tells each file that it has made durable (`fsync` of file and directory), with its
//! checksum; only then is it told as durable here. After the cut the same disk goes into a new
//! machine: the store is checked, attached, mounted, every file compared, unmounted, and the file
//! system's own checker has a look.
//!
//! # What it does not show
//! QEMU's disk has no cache of its own that a killed process would lose. Lost caches are the
//! simulator's and `power-cut`'s to show.

use super::campaign::Lab;
use super::machine::Heard;
use super::scenario::Scenario;
use std::time::{Duration, Instant};

/// Files that are durable before the first plug may be pulled.
const FILES_MIN: usize = 5;
/// The plug is pulled between no time and this long after that.
const MOMENT_MAX_MS: u64 = 4000;

/// Cuts the power `cuts` times, on one disk; how many files were compared.
///
/// # Errors
/// What was lost, or what went wrong, with the end of the console.
pub(super) fn run(lab: &mut Lab, scenario: &Scenario, cuts: u32) -> Result<usize, String> {
    let told = |error: crate::SystemsError| error.to_string();
    let disk = lab.new_disk().map_err(told)?;
    let mut durable: Vec<String> = Vec::new();
    let mut compared = 0;
    for cut in 0..cuts {
        let plan = format!("{} write {cut}\n", scenario.script);
        let mut machine = lab.boot(&plan, &disk).map_err(told)?;
        let ago = Instant::now();
        // Different in each cut, and the same in each run: a step of the golden ratio.
        let moment = u64::from(cut + 1) * 2_531 % MOMENT_MAX_MS;
        let mut pull_at = None;
        let before = durable.len();
        loop {
            if pull_at.is_none() && durable.len() >= before + FILES_MIN {
                pull_at = Some(Instant::now() + Duration::from_millis(moment));
            }
            let deadline = pull_at.unwrap_or(ago + scenario.limit());
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
        compared += check(lab, scenario, &disk, &durable)?;
    }
    Ok(compared)
}

fn check(
    lab: &mut Lab,
    scenario: &Scenario,
    disk: &std::path::Path,
    durable: &[String],
) -> Result<usize, String> {
    let plan = format!("{} check {}\n", scenario.script, durable.len());
    let machine = lab.boot(&plan, disk).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + scenario.limit();
    let mut found = std::collections::BTreeSet::new();
    loop {
        match machine.hear(deadline.saturating_duration_since(Instant::now())) {
            Heard::Line(line) => match line.split_once(' ') {
                Some(("found", file)) => {
                    found.insert(file.to_owned());
                }
                Some(("end", "0")) => break,
                _ => return Err(format!("{line}\n{}", machine.console(0, 60))),
            },
            heard => return Err(format!("{heard:?}\n{}", machine.console(0, 60))),
        }
    }
    match durable.iter().find(|file| !found.contains(*file)) {
        None => Ok(durable.len()),
        Some(lost) => Err(format!("VIOLATION: durable, and lost or changed: {lost}")),
    }
}
