//! `coulter status`: what a volume is doing.

use crate::dashboard::{self, History, Screen};
use crate::error::{CliError, DaemonError, Error, StateError};
use crate::interrupt::Interrupt;
use crate::terminal;
use crate::verbs::list::{mount_points, nothing_attached};
use clap::Args;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::killed::Killed;
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::status::{Facts, Rates};
use coulter_daemon::store_fate::StoreFate;
use coulter_system::process::Process;
use serde::Serialize;
use std::collections::HashMap;
use std::mem;
use std::path::PathBuf;
use std::thread;
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

    /// Print an object for a named volume, otherwise an array
    #[arg(long)]
    pub(crate) json: bool,

    /// Repeat every second with the rates of the last minute, until interrupted: drawn on a
    /// terminal, otherwise one line each
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Time between two looks of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

/// What came of asking.
#[derive(Default)]
struct Heard {
    /// Of the volumes whose daemon answered.
    statuses: Vec<Facts>,
    /// Those whose daemon did not: it is silent, or was killed.
    silent: Vec<Silent>,
}

/// A daemon that did not answer.
struct Silent {
    process: Process,
    error: CliError,
}

impl Silent {
    /// One that has answered, and can do less than it should.
    fn of_failed(status: &Facts) -> Option<Silent> {
        let error = Error::from(status.less()?).into();
        Some(Silent { process: status.entry().process, error })
    }
}

impl StatusOf {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        if self.watch {
            return self.watch(state);
        }
        state.await_dying()?;
        let Heard { statuses, mut silent } = self.hear(state, Vec::new())?;
        let shown: Vec<Shown<'_>> = statuses.iter().map(Shown::new).collect();
        self.print(&shown, silent.is_empty())?;
        for warning in shown.iter().filter_map(Shown::warning) {
            terminal::note(&warning);
        }
        silent.extend(statuses.iter().filter_map(Silent::of_failed));
        // All are told; the last of them is the error of the command.
        let last = silent.pop();
        silent.iter().for_each(Silent::tell);
        last.map_or(Ok(()), |silent| Err(silent.error))
    }

    fn print(&self, shown: &[Shown<'_>], is_all: bool) -> Result<(), CliError> {
        match (&self.volume, self.json) {
            (Some(_), true) => shown.iter().try_for_each(terminal::print_json),
            (None, true) => terminal::print_json(&shown),
            (_, false) if shown.is_empty() && is_all => {
                terminal::note(&nothing_attached());
                Ok(())
            }
            (_, false) => shown.iter().try_for_each(|one| terminal::print(&one.text())),
        }
    }

    /// The status of the volume that was named, or of all. Who was silent `before` is not asked
    /// again while it is stopped.
    fn hear(&self, state: &StateDirectory, before: Vec<Silent>) -> Result<Heard, CliError> {
        let entries = match &self.volume {
            Some(volume) => vec![find(state, volume)?],
            None => state.attached()?,
        };
        let is_stopped = |silent: &Silent| silent.process.is_stopped();
        let mut heard =
            Heard { silent: before.into_iter().filter(is_stopped).collect(), ..Heard::default() };
        let asked = entries.iter().filter(|entry| !heard.has_silent(entry.process));
        let asked: Vec<&Entry> = asked.collect();
        // Side by side: each that does not answer may take as long as anybody waits for it.
        let answers: Vec<Result<Facts, CliError>> = thread::scope(|scope| {
            let ask = |entry| scope.spawn(move || status_of(state, entry));
            let asking: Vec<_> = asked.iter().copied().map(ask).collect();
            asking.into_iter().map(|asking| asking.join().expect("it does not panic")).collect()
        });
        for (entry, answer) in asked.into_iter().zip(answers) {
            let process = entry.process;
            match answer {
                Ok(status) => heard.statuses.push(status),
                // It was detached in the meantime.
                Err(CliError::Service(Error::State(StateError::NotAttached { .. })))
                    if self.volume.is_none() => {}
                Err(_) if self.volume.is_none() && !state.is_alive(entry) => {}
                Err(error) => heard.silent.push(Silent { process, error }),
            }
        }
        if self.volume.is_none() {
            let killed = state.killed()?;
            heard.silent.extend(killed.iter().map(|entry| Silent {
                process: entry.process,
                error: Killed::new(state, entry).error().into(),
            }));
        }
        Ok(heard)
    }

    /// Shows rates until interrupted, until the volume is gone or nobody reads: drawn on a terminal,
    /// else line by line. Daemons that do not answer are told of, and the others are shown.
    fn watch(&self, state: &StateDirectory) -> Result<(), CliError> {
        let mut before = self.hear(state, Vec::new())?;
        if self.volume.is_some()
            && let Some(silent) = before.silent.pop()
        {
            return Err(silent.error);
        }
        if !self.json && terminal::can_draw() {
            return self.draw(state, before);
        }
        before.silent.iter().for_each(Silent::tell);
        // Where nobody reads any more, nobody watches.
        while !terminal::reader_leaves_within(INTERVAL) {
            let known: Vec<Process> = before.silent.iter().map(|silent| silent.process).collect();
            let after = self.hear(state, mem::take(&mut before.silent))?;
            let is_news = |silent: &&Silent| !known.contains(&silent.process);
            after.silent.iter().filter(is_news).for_each(Silent::tell);
            for status in &after.statuses {
                let Some(rates) = rates_since(&before.statuses, status) else { continue };
                if self.json {
                    terminal::print_json_line(&Watched { shown: Shown::new(status), rates })?;
                } else {
                    terminal::print(&format!("{:<12} {rates}", status.entry().name))?;
                }
            }
            before = after;
        }
        Ok(())
    }

    fn draw(&self, state: &StateDirectory, mut before: Heard) -> Result<(), CliError> {
        let interrupt = Interrupt::take_over()?;
        let failed = |source| CliError::io("write to", "the terminal".as_ref(), source);
        let mut screen = Screen::take_over().map_err(failed)?;
        let mut histories: HashMap<Process, History> = HashMap::new();
        loop {
            histories.retain(|process, _| before.has(*process));
            for status in &before.statuses {
                histories.entry(status.entry().process).or_default();
            }
            let history = |status: &Facts| &histories[&status.entry().process];
            let shown: Vec<_> =
                before.statuses.iter().map(|status| (status, history(status))).collect();
            let warnings = before.statuses.iter().filter_map(|status| Shown::new(status).warning());
            let silent = before.silent.iter().map(|silent| silent.error.to_string());
            let wrong: Vec<String> = warnings.chain(silent).collect();
            screen.show(&dashboard::draw(&shown, &wrong)).map_err(failed)?;
            if interrupt.sleep(INTERVAL).is_err() {
                return Ok(());
            }
            let after = self.hear(state, mem::take(&mut before.silent))?;
            for status in &after.statuses {
                if let Some(rates) = rates_since(&before.statuses, status) {
                    histories.entry(status.entry().process).or_default().push(rates);
                }
            }
            before = after;
        }
    }
}

impl Heard {
    fn has_silent(&self, process: Process) -> bool {
        self.silent.iter().any(|silent| silent.process == process)
    }

    fn has(&self, process: Process) -> bool {
        let answered = self.statuses.iter().any(|status| status.entry().process == process);
        answered || self.has_silent(process)
    }
}

impl Silent {
    fn tell(&self) {
        terminal::print_error(&self.error.report());
    }
}

/// What happened to what `status` is about since it was looked at before.
fn rates_since(before: &[Facts], status: &Facts) -> Option<Rates> {
    let same = |other: &&Facts| other.entry().process == status.entry().process;
    before.iter().find(same).map(|earlier| Rates::between(earlier, status))
}

/// One volume, with what only whoever looks at it from outside knows.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a Facts,
    /// Left out if the store is where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_fate: Option<StoreFate>,
    /// Where file systems on it are mounted.
    mount_points: Vec<PathBuf>,
}

impl Shown<'_> {
    fn new(status: &Facts) -> Shown<'_> {
        let entry = status.entry();
        Shown { status, store_fate: StoreFate::of(entry), mount_points: mount_points(entry) }
    }

    fn text(&self) -> String {
        let mut text = self.status.to_string();
        for directory in &self.mount_points {
            text += &format!("\n  mounted    on {}", terminal::path(directory));
        }
        text
    }

    fn warning(&self) -> Option<String> {
        self.store_fate?.warning(self.status.entry())
    }
}

/// One line of `status --watch --json`.
#[derive(Serialize)]
struct Watched<'a> {
    #[serde(flatten)]
    shown: Shown<'a>,
    rates: Rates,
}

/// The volume that is named.
///
/// # Errors
/// [`DaemonError::Killed`] besides those of [`StateDirectory::find`].
fn find(state: &StateDirectory, volume: &str) -> Result<Entry, CliError> {
    match state.find(volume) {
        Err(not_attached @ Error::State(StateError::NotAttached { .. })) => {
            let killed = state.find_killed(volume)?;
            Err(killed
                .map_or(not_attached.into(), |entry| Killed::new(state, &entry).error().into()))
        }
        found => Ok(found?),
    }
}

fn status_of(state: &StateDirectory, entry: &Entry) -> Result<Facts, CliError> {
    match control::ask(state, entry, &Request::Status)? {
        Reply::Status(status) => Ok(*status),
        // The daemon is another build, with other answers.
        Reply::Done
        | Reply::Settings(_)
        | Reply::Grown(_)
        | Reply::Scrub(_)
        | Reply::Copying(_)
        | Reply::FirstData { .. }
        | Reply::Failed(_) => Err(DaemonError::silent(entry).into()),
    }
}
