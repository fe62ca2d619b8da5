//! `coulter status`: what a volume is doing.

use crate::control::{self, Reply, Request};
use crate::dashboard::{self, History, Screen};
use crate::demo::Interrupt;
use crate::error::{CliError, DaemonError};
use crate::process::Process;
use crate::state::{Entry, StateDirectory};
use crate::status::{Facts, Rates};
use crate::terminal;
use clap::Args;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;

/// Show what attached volumes are doing: rates, write amplification by cause, free space, map
/// cache, latency.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter status                           every attached volume
  coulter status disk --watch              one of them, again every second
  coulter status disk --json | jq .write_amplification")]
pub(crate) struct StatusOf {
    /// Name, store or device of the volume [default: all]
    #[arg(value_name = "NAME")]
    pub(crate) volume: Option<String>,

    /// Print an object for the volume, or an array of them when none is named
    #[arg(long)]
    pub(crate) json: bool,

    /// Show it again every second, with the rates of the last minute, until interrupted: drawn on a
    /// terminal, else a line each time
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Time between two looks of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

impl StatusOf {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        if self.watch {
            return self.watch(state);
        }
        let statuses = self.statuses(state)?;
        match (&self.volume, self.json) {
            (Some(_), true) => statuses.iter().try_for_each(terminal::print_json),
            (None, true) => terminal::print_json(&statuses),
            (_, false) if statuses.is_empty() => {
                terminal::note("nothing is attached");
                Ok(())
            }
            (_, false) => {
                statuses.iter().try_for_each(|status| terminal::print(&status.to_string()))
            }
        }
    }

    /// The status of the volume that was named, or of all.
    fn statuses(&self, state: &StateDirectory) -> Result<Vec<Facts>, CliError> {
        let entries = match &self.volume {
            Some(volume) => vec![state.find(volume)?],
            None => state.attached()?,
        };
        entries.iter().map(|entry| status_of(state, entry)).collect()
    }

    /// Shows rates until interrupted, until the volume is gone or nobody reads: drawn on a terminal,
    /// else line by line.
    fn watch(&self, state: &StateDirectory) -> Result<(), CliError> {
        let mut before = self.statuses(state)?;
        if !self.json && terminal::can_draw() {
            return self.draw(state, before);
        }
        // Where nobody reads any more, nobody watches.
        while !terminal::reader_leaves_within(INTERVAL) {
            let after = self.statuses(state)?;
            for status in &after {
                let Some(rates) = rates_since(&before, status) else { continue };
                if self.json {
                    terminal::print_json_line(&Watched { status, rates })?;
                } else {
                    terminal::print(&format!("{:<12} {rates}", status.entry().name))?;
                }
            }
            before = after;
        }
        Ok(())
    }

    fn draw(&self, state: &StateDirectory, mut before: Vec<Facts>) -> Result<(), CliError> {
        let interrupt = Interrupt::take_over()?;
        let failed = |source| CliError::io("write to", "the terminal".as_ref(), source);
        let mut screen = Screen::take_over().map_err(failed)?;
        let mut histories: HashMap<Process, History> = HashMap::new();
        loop {
            histories.retain(|process, _| before.iter().any(|s| s.entry().process == *process));
            for status in &before {
                histories.entry(status.entry().process).or_default();
            }
            let shown: Vec<_> =
                before.iter().map(|status| (status, &histories[&status.entry().process])).collect();
            screen.show(&dashboard::draw(&shown)).map_err(failed)?;
            if interrupt.sleep(INTERVAL).is_err() {
                return Ok(());
            }
            let after = self.statuses(state)?;
            for status in &after {
                if let Some(rates) = rates_since(&before, status) {
                    histories.entry(status.entry().process).or_default().push(rates);
                }
            }
            before = after;
        }
    }
}

/// What happened to what `status` is about since it was looked at before.
fn rates_since(before: &[Facts], status: &Facts) -> Option<Rates> {
    let same = |other: &&Facts| other.entry().process == status.entry().process;
    before.iter().find(same).map(|earlier| Rates::between(earlier, status))
}

/// One line of `status --watch --json`.
#[derive(Serialize)]
struct Watched<'a> {
    #[serde(flatten)]
    status: &'a Facts,
    rates: Rates,
}

fn status_of(state: &StateDirectory, entry: &Entry) -> Result<Facts, CliError> {
    match control::ask(state, entry, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        // The daemon is another build, with other answers.
        Reply::Done | Reply::Settings(_) | Reply::FirstData { .. } | Reply::Failed(_) => {
            Err(DaemonError::silent(entry).into())
        }
    }
}
