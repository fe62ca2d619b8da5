//! One HTML page of all outcomes, with everything in it: no script, no link to another host.

use super::{Outcome, Plot, Setting, Shape, Table, Verdict};
use std::fmt::Write;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.7em}h2{font-size:1.25em;margin-top:2.5em;border-top:1px solid #ccc;padding-top:.6em}\
table{border-collapse:collapse;margin:1em 0;font-size:.9em}td,th{padding:.25em .7em;text-align:right;\
border-bottom:1px solid #e5e5e5}td:first-child,th:first-child{text-align:left}\
.verdict{display:inline-block;padding:.1em .6em;border-radius:.3em;color:#fff;font-size:.85em}\
.holds{background:#2a7d3f}.partly{background:#a07000}.differs{background:#a33}.ours{background:#667}\
p.k{margin:.3em 0}b{font-weight:600}svg{max-width:100%;height:auto}a{color:#246}";

const COLOURS: [&str; 4] = ["#31688e", "#e07b39", "#35a06d", "#8e4b8e"];

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page. Writing to a string cannot fail, hence no error.
pub fn page(setting: &Setting, outcomes: &[Outcome]) -> String {
    let mut html = String::new();
    let count = |verdict| outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"generator\" content=\"coulter\"><title>The published \
         experiments, run again</title><style>{STYLE}</style></head><body>\n<h1>The published \
         experiments, run again</h1>\n<p>On emulated flash drives, in virtual time: but for what is called measured, \
         nothing here depends on the machine that made the page. Scale: {}; seed: {}. Of the experiments that can be compared, \
         the shape holds in {}, in part in {}, differs in {}. The papers: <b>BL</b> Han and Son, IEEE \
         Access 2021; <b>NV</b> Sung et al., IEEE Access 2022; <b>SL</b> Choi, Gwak and Shin 2015; \
         <b>SV</b> Hwang et al. 2024. What the model assumes and cannot tell: docs/flash.md. Made by \
         <code>coulter-lab report</code>.</p>\n",
        setting.scale.name(),
        setting.seed,
        count(Verdict::Holds),
        count(Verdict::Partly),
        count(Verdict::Differs),
    );
    html.push_str("<table><tr><th>experiment</th><th></th><th>verdict</th></tr>\n");
    for outcome in outcomes {
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td style=\"text-align:left\">{1}</td><td>{2}</td></tr>",
            escape(&outcome.id),
            escape(&outcome.title),
            badge(outcome.verdict),
        );
    }
    html.push_str("</table>\n");
    outcomes.iter().for_each(|outcome| section(&mut html, outcome));
    html.push_str("</body></html>\n");
    html
}

fn badge(verdict: Verdict) -> String {
    let class = match verdict {
        Verdict::Holds => "holds",
        Verdict::Partly => "partly",
        Verdict::Differs => "differs",
        Verdict::Ours => "ours",
    };
    format!("<span class=\"verdict {class}\">{}</span>", verdict.name())
}

fn section(html: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        html,
        "<h2 id=\"{0}\">{0}. {1}</h2>\n<p class=\"k\">{2}</p>\n<p class=\"k\"><b>Paper.</b> {3}</p>\n\
         <p class=\"k\"><b>Here.</b> {4}</p>",
        escape(&outcome.id),
        escape(&outcome.title),
        badge(outcome.verdict),
        escape(&outcome.paper),
        escape(&outcome.setup),
    );
    outcome.tables.iter().for_each(|figures| table(html, figures));
    for plot in &outcome.plots {
        match plot.shape {
            Shape::Bars => draw(html, plot, bars),
            Shape::Lines => draw(html, plot, lines),
        }
    }
    let _ = writeln!(html, "<p class=\"k\"><b>Why.</b> {}</p>", escape(&outcome.reason));
}

fn table(html: &mut String, table: &Table) {
    let row = |html: &mut String, cells: &[String], tag: &str| {
        html.push_str("<tr>");
        for cell in cells {
            let _ = write!(html, "<{tag}>{}</{tag}>", escape(cell));
        }
        html.push_str("</tr>\n");
    };
    html.push_str("<table>");
    row(html, &table.heading, "th");
    table.rows.iter().for_each(|cells| row(html, cells, "td"));
    html.push_str("</table>\n");
}

const WIDTH: f64 = 720.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;
const HEIGHT: f64 = 190.0;

/// A round number at or above every value.
fn ceiling(plot: &Plot) -> f64 {
    let most = plot.series.iter().flat_map(|(_, values)| values).fold(0.0, |a: f64, b| a.max(*b));
    let mut unit = 1e-6;
    while unit * 10.0 < most {
        unit *= 10.0;
    }
    let steps = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * unit).find(|top| *top >= most).unwrap_or(1.0)
}

fn draw(html: &mut String, plot: &Plot, body: fn(&mut String, &Plot, f64)) {
    let top = ceiling(plot);
    let long = plot.shape == Shape::Bars && plot.labels.len() > 6;
    let below = if long { 160.0 } else { 40.0 };
    let _ = write!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" width=\"{WIDTH}\" font-size=\"12\" role=\"img\">\
         <text x=\"{LEFT}\" y=\"14\" font-weight=\"600\">{}</text>",
        TOP + HEIGHT + below + 20.0,
        escape(&plot.title),
    );
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let y = TOP + HEIGHT * (1.0 - share);
        let _ = write!(
            html,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            number(top * share),
        );
    }
    labels(html, plot, long);
    body(html, plot, top);
    let mut x = LEFT;
    for (index, (name, _)) in plot.series.iter().enumerate() {
        let y = TOP + HEIGHT + below + 4.0;
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(
            html,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            x + 16.0,
            y + 10.0,
            escape(name),
        );
        x += 34.0 + name.chars().count() as f64 * 7.0;
    }
    html.push_str("</svg>\n");
}

fn number(value: f64) -> String {
    if value >= 100.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn slot(plot: &Plot) -> f64 {
    (WIDTH - LEFT) / plot.labels.len().max(1) as f64
}

fn labels(html: &mut String, plot: &Plot, long: bool) {
    let step = if plot.shape == Shape::Lines { plot.labels.len().div_ceil(16).max(1) } else { 1 };
    for (index, label) in plot.labels.iter().enumerate().step_by(step) {
        let x = LEFT + slot(plot) * (index as f64 + 0.5);
        let y = TOP + HEIGHT + 16.0;
        let (anchor, turn) = match long {
            true => ("end", format!(" transform=\"rotate(-50 {x:.1} {y:.1})\"")),
            false => ("middle", String::new()),
        };
        let _ = write!(
            html,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{turn}>{}</text>",
            escape(label),
        );
    }
}

fn bars(html: &mut String, plot: &Plot, top: f64) {
    let width = slot(plot) * 0.8 / plot.series.len().max(1) as f64;
    for (number, (_, values)) in plot.series.iter().enumerate() {
        for (index, value) in values.iter().enumerate() {
            let height = HEIGHT * value / top;
            let x = LEFT + slot(plot) * (index as f64 + 0.1) + width * number as f64;
            let _ = write!(
                html,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\">\
                 <title>{value:.3}</title></rect>",
                TOP + HEIGHT - height,
                width * 0.94,
                COLOURS[number % COLOURS.len()],
            );
        }
    }
}

fn lines(html: &mut String, plot: &Plot, top: f64) {
    for (number, (_, values)) in plot.series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let _ = write!(
            html,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\""
        );
        for (index, value) in values.iter().enumerate() {
            let x = LEFT + slot(plot) * (index as f64 + 0.5);
            let _ = write!(html, "{x:.1},{:.1} ", TOP + HEIGHT * (1.0 - value / top));
        }
        html.push_str("\"/>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scale;

    #[test]
    fn a_page_is_whole_and_what_it_shows_cannot_break_it() {
        let outcome = Outcome {
            id: "D0".into(),
            title: "<script>".into(),
            paper: "a & b".into(),
            setup: String::new(),
            tables: vec![Table { heading: vec!["x".into()], rows: vec![vec!["1 < 2".into()]] }],
            plots: vec![Plot {
                title: "rate".into(),
                shape: Shape::Bars,
                labels: vec!["one".into(), "two".into()],
                series: vec![("ours".into(), vec![1.0, 0.0])],
            }],
            verdict: Verdict::Holds,
            reason: String::new(),
        };
        let html = page(&Setting { scale: Scale::Short, seed: 1 }, &[outcome]);
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</body></html>\n"));
        assert!(!html.contains("<script>"));
        assert!(html.contains("1 &lt; 2") && html.contains("<svg"));
        assert!(!html.contains("http"), "nothing is fetched");
    }
}
