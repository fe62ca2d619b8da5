//! The report as text.

use super::{Advice, Figures, Report, Row, Summary, Worth};
use crate::figures::{bytes, percent};
use std::fmt::Write;

const WRITTEN: &str = "a string takes all text";

impl Report {
    /// The report as text, for a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.trace.write_to(&mut text);
        if self.copies > 1 {
            let copies = self.copies;
            writeln!(text, "replayed    as {copies} such hosts side by side: one is too small")
                .expect(WRITTEN);
        }
        rows(&mut text, &self.rows);
        if let Some(advice) = &self.advice {
            advice.write_to(&mut text);
        }
        text
    }
}

impl Summary {
    fn write_to(&self, text: &mut String) {
        let Summary { format, lines, bad_lines, devices, .. } = self;
        writeln!(text, "trace       {format}, {lines} lines, {bad_lines} bad, {devices} devices")
            .expect(WRITTEN);
        if *devices > 1 {
            let more = if self.device_names.len() < *devices as usize { ", …" } else { "" };
            let names = self.device_names.join(", ");
            writeln!(
                text,
                "devices     {names}{more}: side by side in one volume; --device NAME takes one"
            )
            .expect(WRITTEN);
        }
        if !self.ignored_columns.is_empty() {
            let names = self.ignored_columns.join(", ");
            writeln!(text, "ignored     columns {names}").expect(WRITTEN);
        }
        for (reason, count) in &self.bad_lines_by_reason {
            writeln!(text, "  bad       {count}: {reason}").expect(WRITTEN);
        }
        if let Some(first) = self.bad_line_examples.first() {
            writeln!(text, "  first at  line {first}").expect(WRITTEN);
        }
        let (writes, reads) = (self.host_writes, self.host_reads);
        writeln!(
            text,
            "writes      {} of {}, {} different; runs of {:.1} blocks, {} partial\n\
             reads       {} of {}; runs of {:.1} blocks",
            self.writes,
            bytes(self.write_bytes),
            bytes(self.footprint_blocks * 4096),
            writes.run_blocks_mean,
            percent(self.partial_writes as f64 / self.writes.max(1) as f64),
            self.reads,
            bytes(self.read_bytes),
            reads.run_blocks_mean,
        )
        .expect(WRITTEN);
    }
}

fn rows(text: &mut String, rows: &[Row]) {
    let width = rows.iter().map(|row| row.behaviour.len()).max().unwrap_or(0).max(6);
    writeln!(
        text,
        "\n{:width$}  spare  amplification  relocated  metadata  device runs  map",
        "policy"
    )
    .expect(WRITTEN);
    for row in rows {
        let spare = format!("{:.0} %", row.spare * 100.0);
        write!(text, "{:width$}  {spare:>5}  ", row.behaviour).expect(WRITTEN);
        let line = match (&row.figures, &row.impossible) {
            (Some(figures), _) => figures.line(),
            (None, reason) => format!("impossible: {}", reason.as_deref().unwrap_or("no figures")),
        };
        writeln!(text, "{line}").expect(WRITTEN);
    }
}

impl Figures {
    fn line(&self) -> String {
        format!(
            "{:>13.3}  {:>9.3}  {:>8.3}  {:>11.0}  {}",
            self.write_amplification,
            self.written.relocated,
            self.written.metadata(),
            self.device_writes.run_blocks_mean,
            bytes(self.map_bytes),
        )
    }
}

impl Advice {
    fn write_to(&self, text: &mut String) {
        writeln!(text, "\nWith {} and {:.0} % spare, writes are:", self.behaviour, {
            self.spare * 100.0
        })
        .expect(WRITTEN);
        for gain in &self.gains {
            let worth = match gain.worth {
                Worth::Yes => "worth it",
                Worth::Even => "about even",
                Worth::No => "not worth it",
            };
            let (name, times) = (gain.device.name, gain.times_as_fast);
            writeln!(text, "  {name:25}  {times:>8.2} times as fast  {worth}").expect(WRITTEN);
        }
        if let Some(blocks) = self.break_even_blocks {
            let kib = blocks * 4.0;
            writeln!(
                text,
                "Break-even: a device that could write {kib:.1} KiB in the time of a seek."
            )
            .expect(WRITTEN);
        }
        writeln!(text, "{}", self.sentence).expect(WRITTEN);
    }
}
