//! What `status --watch` draws on a terminal: for each volume the rates of the last minute and how
//! full everything is.
//!
//! Drawing is a pure function from facts to lines, cut to the size of the terminal. [`Screen`] puts
//! them there and gives the terminal back as it was, whatever ends the program short of a kill.

use crate::terminal::{BAD, BOLD, GREEN};
use anstyle::Style;
use coulter_daemon::status::{Facts, Rates, Status};
use std::collections::VecDeque;
use std::io::{self, Write};

/// Rates that are remembered: a minute.
const HISTORY_MAX: usize = 60;

/// Columns of a curve, if there is room.
const CURVE_WIDTH: usize = 30;

/// Columns of a bar.
const BAR_WIDTH: usize = 20;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Share of the segments below which few are empty.
const FEW_EMPTY: f64 = 0.02;

/// The rates of the last minute.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    rates: VecDeque<Rates>,
}

impl History {
    /// Remembers the newest.
    pub(crate) fn push(&mut self, rates: Rates) {
        if self.rates.len() == HISTORY_MAX {
            self.rates.pop_front();
        }
        self.rates.push_back(rates);
    }

    fn latest(&self) -> Option<&Rates> {
        self.rates.back()
    }

    /// The latest values as a curve, the newest to the right, the highest touching the top.
    fn curve(&self, of: impl Fn(&Rates) -> f64) -> String {
        let skipped = self.rates.len().saturating_sub(CURVE_WIDTH);
        let values: Vec<f64> = self.rates.iter().skip(skipped).map(of).collect();
        let highest = values.iter().copied().fold(0.0, f64::max);
        let level = |value: f64| {
            let share = if highest > 0.0 { value / highest } else { 0.0 };
            LEVELS[((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
        };
        let drawn: String = values.into_iter().map(level).collect();
        format!("{drawn:>CURVE_WIDTH$}")
    }
}

/// A bar that is filled up to a share.
fn bar(share: f64) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let filled = (share * BAR_WIDTH as f64).round() as usize;
    format!("[{}{}]", "█".repeat(filled), "·".repeat(BAR_WIDTH - filled))
}

/// All that is attached, as lines; `wrong` says who does not answer, and what else there is.
pub(crate) fn draw(facts: &[(&Facts, &History)], wrong: &[String]) -> Vec<String> {
    if facts.is_empty() && wrong.is_empty() {
        return vec!["nothing is attached".to_owned()];
    }
    let mut lines = Vec::new();
    for (facts, history) in facts {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        // The first line says who it is, on a terminal and elsewhere.
        lines.extend(facts.to_string().lines().next().map(str::to_owned));
        rates(&mut lines, history);
        if let Facts::Volume(status) = facts {
            state(&mut lines, status);
        }
    }
    lines.extend(wrong.iter().map(|words| format!("{BAD}{words}{BAD:#}")));
    lines
}

fn rates(lines: &mut Vec<String>, history: &History) {
    let Some(rates) = history.latest() else {
        lines.push("  rates      after a second".to_owned());
        return;
    };
    let mib = f64::from(1 << 20);
    let mut row = |name: &str, value: String, curve: String| {
        lines.push(format!("  {name:<10} {value:>14}  {curve}"));
    };
    let of = |of: fn(&Rates) -> f64| (of(rates), history.curve(of));
    let (value, curve) = of(|rates| rates.host_writes_per_second);
    row("writes", format!("{value:.0} /s"), curve);
    let (value, curve) = of(|rates| rates.host_reads_per_second);
    row("reads", format!("{value:.0} /s"), curve);
    let (value, curve) = of(|rates| rates.host_written_bytes_per_second);
    row("host", format!("{:.1} MiB/s", value / mib), curve);
    let (value, curve) = of(|rates| rates.device_written_bytes_per_second);
    row("device", format!("{:.1} MiB/s", value / mib), curve);
    let (value, curve) = of(|rates| rates.write_amplification);
    row("WAF", format!("{value:.2}"), curve);
}

fn state(lines: &mut Vec<String>, status: &Status) {
    let number = |group, counter| status.number(&[group, counter]) as f64;
    let total = number("space", "segments_total").max(1.0);
    let empty = number("space", "segments_empty");
    let used = number("space", "valid_bytes") / (total * number("space", "segment_size_bytes"));
    let style = if empty / total < FEW_EMPTY { BAD } else { GREEN };
    lines.push(format!(
        "  space      {} {:.1} % in use, {style}{empty:.0} of {total:.0} empty{style:#}",
        bar(used),
        used * 100.0
    ));
    let limit = number("map", "memory_limit_bytes").max(1.0);
    let memory = number("map", "memory_bytes") / limit;
    let lookups = number("map", "hits") + number("map", "misses");
    let hits = if lookups > 0.0 { number("map", "hits") / lookups } else { 1.0 };
    lines.push(format!(
        "  map        {} {:.1} % of its memory, {:.2} % hit",
        bar(memory),
        memory * 100.0,
        hits * 100.0
    ));
    // What a person reads besides is worded as `status` does.
    let text = Facts::Volume(status.clone()).to_string();
    let wanted = ["  buffered", "  written", "  log", "  waiting", "  latency"];
    let wanted = |line: &&str| wanted.iter().any(|start| line.starts_with(start));
    lines.extend(text.lines().filter(wanted).map(str::to_owned));
    let corrupt = number("log", "corrupt_blocks");
    if corrupt > 0.0 {
        lines
            .push(format!("  {BAD}{corrupt:.0} damaged blocks: run `coulter check --data`{BAD:#}"));
    }
}

/// The terminal while it shows the dashboard.
pub(crate) struct Screen {
    terminal: console::Term,
}

impl Screen {
    /// Takes the terminal over that standard output is.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn take_over() -> io::Result<Screen> {
        let mut screen = Screen { terminal: console::Term::stdout() };
        // The alternate screen, and no cursor.
        screen.write("\u{1b}[?1049h\u{1b}[?25l")?;
        Ok(screen)
    }

    /// Shows these lines, cut to the terminal's size.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(crate) fn show(&mut self, lines: &[String]) -> io::Result<()> {
        let (rows, columns) = self.terminal.size();
        let end = format!("{BOLD}Ctrl-C ends{BOLD:#}");
        let shown = lines.iter().take(usize::from(rows).saturating_sub(1)).chain([&end]);
        let mut text = String::from("\u{1b}[H");
        for (row, line) in shown.enumerate() {
            let line = console::truncate_str(line, columns.into(), "…");
            let separator = if row == 0 { "" } else { "\n" };
            // The rest of the line may show what was there before.
            text +=
                &format!("{separator}{line}{reset}\u{1b}[K", reset = Style::new().render_reset());
        }
        self.write(&(text + "\u{1b}[J"))
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        // Takes colours away where they are not wanted, and leaves the rest.
        let text = if console::colors_enabled() { text.to_owned() } else { without_colours(text) };
        self.terminal.write_all(text.as_bytes())?;
        Write::flush(&mut self.terminal)
    }
}

/// Drops what sets colours, `ESC [ … m`, and keeps what moves the cursor.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
        match part[end..].strip_prefix('m') {
            Some(rest) => plain += rest,
            None => plain += &format!("\u{1b}[{part}"),
        }
    }
    plain
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.write("\u{1b}[?25h\u{1b}[?1049l");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_daemon::state::Entry;
    use coulter_daemon::status::facts_of;
    use coulter_system::process::Process;
    use std::time::Duration;

    fn rates(writes: f64) -> Rates {
        Rates {
            interval_seconds: 1.0,
            host_written_bytes_per_second: writes * 4096.0,
            host_writes_per_second: writes,
            host_reads_per_second: 0.0,
            device_written_bytes_per_second: writes * 8192.0,
            write_amplification: 2.0,
        }
    }

    fn facts() -> Facts {
        let entry = Entry {
            store: "/srv/disk.img".into(),
            device: Some("/dev/loop0".into()),
            volume_size_bytes: 1 << 30,
            attached_at_unix_seconds: 3,
            ..Entry::sample("disk", Process { pid: 1, start_ticks: 2 })
        };
        let mut statistics = facts_of(&coulter::Statistics::default());
        for (name, value) in
            [("segments_total", 100), ("segments_empty", 1), ("segment_size_bytes", 1000)]
        {
            statistics["space"][name] = value.into();
        }
        statistics["space"]["valid_bytes"] = 50_000.into();
        statistics["log"]["corrupt_blocks"] = 2.into();
        Facts::Volume(Status::new(entry, "running".into(), Duration::from_secs(61), statistics))
    }

    fn drawn(history: &History) -> String {
        without_colours(&draw(&[(&facts(), history)], &[]).join("\n"))
    }

    #[test]
    fn a_volume_is_drawn_with_curves_and_bars() {
        let mut history = History::default();
        assert!(drawn(&history).contains("after a second"), "{}", drawn(&history));
        (0..100).for_each(|second| history.push(rates(f64::from(second))));
        let text = drawn(&history);
        assert!(text.contains("99 /s"), "{text}");
        assert!(text.contains("50.0 % in use, 1 of 100 empty"), "{text}");
        assert!(text.contains("2 damaged blocks"), "{text}");
        let writes = text.lines().find(|line| line.contains("writes ")).expect("writes are drawn");
        let curve: String = writes.chars().filter(|c| LEVELS.contains(c)).collect();
        assert_eq!(curve.chars().count(), CURVE_WIDTH, "{writes}");
        assert!(curve.ends_with('█') && curve.starts_with('▆'), "from 70 to 99: {writes}");
        assert!(!text.contains('\u{1b}'), "no colour is left");
    }

    #[test]
    fn who_does_not_answer_is_named_below_the_others() {
        let silent = ["the daemon of 'other' (process 7) does not answer".to_owned()];
        let lines = draw(&[(&facts(), &History::default())], &silent);
        assert!(lines[0].contains("disk"), "{lines:?}");
        assert!(lines.last().is_some_and(|line| line.contains("'other'")), "{lines:?}");
        assert_eq!(draw(&[], &silent).len(), 1);
        assert_eq!(draw(&[], &[]), ["nothing is attached"]);
    }

    #[test]
    fn bars_and_curves_take_any_number() {
        assert_eq!(bar(0.5).matches('█').count(), BAR_WIDTH / 2);
        for odd in [f64::NAN, f64::INFINITY, -1.0, 7.0] {
            assert_eq!(bar(odd).chars().count(), BAR_WIDTH + 2, "{odd}");
        }
        let mut history = History::default();
        history.push(rates(0.0));
        assert_eq!(history.curve(|rates| rates.host_reads_per_second).trim_start(), "▁");
    }

    #[test]
    fn colours_go_and_moves_stay() {
        assert_eq!(
            without_colours("\u{1b}[1ma\u{1b}[0m\u{1b}[Kb\u{1b}[?25h"),
            "a\u{1b}[Kb\u{1b}[?25h"
        );
        assert_eq!(without_colours("plain"), "plain");
    }
}
