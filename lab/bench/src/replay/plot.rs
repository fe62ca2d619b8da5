//! Write amplification over spare space, one line for each behaviour, as an SVG picture.

use super::Report;
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 8] =
    ["#31688e", "#e07b39", "#35a06d", "#8e4b8e", "#a33", "#667", "#c2a400", "#0a7e8c"];
const WRITTEN: &str = "a string takes all text";

/// Draws a report.
pub fn plot(report: &Report) -> String {
    let lines = lines(report);
    let points = || lines.iter().flat_map(|(_, points)| points);
    let x_max = points().map(|(x, _)| *x).fold(0.0, f64::max).max(0.01);
    let y_max = points().map(|(_, y)| *y).fold(1.5, f64::max).ceil();
    let x = |spare: f64| LEFT + spare / x_max * (WIDTH - LEFT - RIGHT);
    let y = |times: f64| HEIGHT - BOTTOM - (times - 1.0) / (y_max - 1.0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<!-- made by coulter -->\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\">Write amplification over spare space</text>\n"
    );
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let ticks = (y_max as u32).div_ceil(8).max(1);
    for tick in (1..=y_max as u32).step_by(ticks as usize) {
        let at = y(tick.into());
        writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            LEFT - 8.0,
            at + 4.0
        )
        .expect(WRITTEN);
    }
    let mut spares: Vec<f64> = points().map(|(x, _)| *x).collect();
    spares.sort_by(f64::total_cmp);
    spares.dedup();
    for spare in spares {
        let (at, percent) = (x(spare), spare * 100.0);
        writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{percent:.0} %</text>",
            bottom + 20.0
        )
        .expect(WRITTEN);
    }
    for (place, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<_> = points
            .iter()
            .map(|(spare, times)| format!("{:.1},{:.1}", x(*spare), y(*times)))
            .collect();
        let path = path.join(" ");
        writeln!(
            svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        )
        .expect(WRITTEN);
        for (spare, times) in points {
            let (cx, cy) = (x(*spare), y(*times));
            writeln!(svg, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{colour}\"/>")
                .expect(WRITTEN);
        }
        let (key_x, key_y) = (right + 16.0, TOP + 10.0 + 20.0 * place as f64);
        writeln!(
            svg,
            "<rect x=\"{key_x}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{key_y:.1}\">{}</text>",
            key_y - 6.0,
            key_x + 18.0,
            escape(name)
        )
        .expect(WRITTEN);
    }
    svg.push_str("</svg>\n");
    svg
}

/// The replays with figures, by behaviour.
fn lines(report: &Report) -> Vec<(&str, Vec<(f64, f64)>)> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for row in &report.rows {
        let Some(figures) = &row.figures else { continue };
        let point = (row.spare, figures.write_amplification);
        match lines.last_mut().filter(|(name, _)| *name == row.behaviour) {
            Some((_, points)) => points.push(point),
            None => lines.push((&row.behaviour, vec![point])),
        }
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
