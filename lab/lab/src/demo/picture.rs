//! The picture: addresses over time, what the host wrote above, what reached the device below.
//!
//! It is an SVG drawn by hand, because it is one fixed figure whose every mark is meant: a dot per
//! host write, and a line per *furrow*, a run of device writes of which each begins where another
//! one ended. It needs no fonts of its own and follows the reader's light or dark setting.

use crate::trace::{Event, Trace};
use coulter_terminal::Size;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

/// Most dots in the upper panel; above that every k-th write is drawn.
const DOTS_MAX: usize = 8_000;

/// Longest stretch of time that is drawn.
const WINDOW_NS_MAX: u64 = 1_000_000_000;

/// Stretches are compared that differ by this part of their length.
const WINDOW_STEPS: u64 = 10;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 880.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 32.0;
const PANEL_HEIGHT: f64 = 262.0;
const UPPER_TOP: f64 = 208.0;
const LOWER_TOP: f64 = 550.0;

/// Where the bars begin, and the room that they have.
const BARS_LEFT: f64 = LEFT + 300.0;
const BARS_WIDTH: f64 = 560.0;
const BAR_HEIGHT: f64 = 16.0;
const BARS_TOP: f64 = 94.0;

/// What the picture says besides the addresses.
#[derive(Clone, Debug)]
pub(crate) struct Caption {
    /// Bytes that the host sees.
    pub(crate) volume_size: u64,
    /// Bytes of the store.
    pub(crate) store_size: u64,
    /// What wrote, and where.
    pub(crate) setting: String,
    /// What Coulter was compared with.
    pub(crate) baseline: &'static str,
    /// Writes a second with Coulter per write without, the device held back like a cloud volume.
    pub(crate) held_back: f64,
    /// The same on the disk as it is.
    pub(crate) straight: f64,
}

impl Caption {
    /// What came out, in a sentence.
    fn sentence(&self) -> String {
        format!(
            "Random writes a second: {:.1} times on a held-back device, {:.1} on the disk as it is",
            self.held_back, self.straight
        )
    }
}

/// Draws `trace`.
pub(crate) fn draw(trace: &Trace, caption: &Caption) -> String {
    let window = window_of(trace);
    let host = within(&trace.host, &window);
    let device = within(&trace.device, &window);
    let furrows = furrows_of(&device);
    let mut svg = header(caption);
    let upper = Panel::new(UPPER_TOP, &window, caption.volume_size);
    let lower = Panel::new(LOWER_TOP, &window, caption.store_size);
    let is_part = window.end - window.start == WINDOW_NS_MAX;
    let title =
        if is_part { "What the host wrote in the busiest second" } else { "What the host wrote" };
    upper.frame(&mut svg, title, &host_words(&host), "host address");
    dots(&mut svg, &upper, &host);
    lower.frame(
        &mut svg,
        "What reached the device",
        &device_words(&device, &furrows),
        "device address",
    );
    lines(&mut svg, &lower, &furrows);
    time_axis(&mut svg, &lower, &window);
    svg.push_str("</svg>\n");
    svg
}

/// The stretch in which the host wrote most. The two sides of the demonstration take turns, so
/// most of the recording may be silence.
fn window_of(trace: &Trace) -> Range<u64> {
    let ends = [&trace.host, &trace.device].map(|side| side.iter().map(|e| e.time_ns).max());
    // The side that filled its memory first ends the part of which both are known.
    let end = ends.into_iter().flatten().min().unwrap_or(0).max(1);
    let length = end.min(WINDOW_NS_MAX);
    let writes_from = |start: u64| {
        let window = start..start + length;
        trace.host.iter().filter(|event| window.contains(&event.time_ns)).count()
    };
    let starts = (0..=end - length).step_by((WINDOW_NS_MAX / WINDOW_STEPS) as usize);
    let start = starts.max_by_key(|start| writes_from(*start)).unwrap_or(0);
    start..start + length
}

fn within(events: &[Event], window: &Range<u64>) -> Vec<Event> {
    let mut events: Vec<Event> =
        events.iter().filter(|event| window.contains(&event.time_ns)).copied().collect();
    events.sort_by_key(|event| event.time_ns);
    events
}

/// A run of writes that follow each other on the device, as points of time and address.
type Furrow = Vec<(u64, u64)>;

fn furrows_of(events: &[Event]) -> Vec<Furrow> {
    let mut furrows: Vec<Furrow> = Vec::new();
    let mut by_end: BTreeMap<u64, usize> = BTreeMap::new();
    for event in events {
        let end = event.offset + event.length;
        let index = by_end.remove(&event.offset).unwrap_or_else(|| {
            furrows.push(vec![(event.time_ns, event.offset)]);
            furrows.len() - 1
        });
        furrows[index].push((event.time_ns, end));
        by_end.insert(end, index);
    }
    furrows
}

fn host_words(events: &[Event]) -> String {
    let mean = mean_length(events);
    let count = grouped(events.len());
    format!("a dot for each of {count} writes, of {} on average, all over the volume", Size(mean))
}

fn device_words(events: &[Event], furrows: &[Furrow]) -> String {
    let (count, mean) = (grouped(events.len()), Size(mean_length(events)));
    let lines = grouped(furrows.len());
    format!(
        "{count} writes of {mean} on average; a line for each of {lines} runs without a gap: data, what is cleaned, \
         metadata"
    )
}

/// Rounded to whole KiB, since a picture is not read to the byte.
fn mean_length(events: &[Event]) -> u64 {
    let sum: u64 = events.iter().map(|event| event.length).sum();
    let mean = sum / (events.len() as u64).max(1);
    if mean < 1024 { mean } else { (mean + 512) / 1024 * 1024 }
}

/// `12,345`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && index % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rectangle with time from left to right and addresses from bottom to top.
struct Panel {
    top: f64,
    start_ns: f64,
    length_ns: f64,
    address_max: f64,
    step: u64,
}

impl Panel {
    fn new(top: f64, window: &Range<u64>, size: u64) -> Panel {
        // At most six lines, at powers of two, the largest step that gives at least three.
        let step = (size / 3).max(1).checked_ilog2().map_or(1, |power| 1 << power);
        Panel {
            top,
            start_ns: window.start as f64,
            length_ns: (window.end - window.start) as f64,
            address_max: size.max(1) as f64,
            step,
        }
    }

    fn x(&self, time_ns: u64) -> f64 {
        LEFT + (time_ns as f64 - self.start_ns) / self.length_ns * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, address: u64) -> f64 {
        self.top + PANEL_HEIGHT * (1.0 - address as f64 / self.address_max)
    }

    /// Title, words, background, and a line with a label at each step of the address.
    fn frame(&self, svg: &mut String, title: &str, words: &str, axis: &str) {
        let (bottom, width) = (self.top + PANEL_HEIGHT, WIDTH - LEFT - RIGHT);
        let _ = write!(
            svg,
            "<text class=\"t\" x=\"{LEFT}\" y=\"{:.1}\">{title}\
             <tspan class=\"w\" dx=\"14\">{words}</tspan></text>\n\
             <rect class=\"p\" x=\"{LEFT}\" y=\"{}\" width=\"{width}\" height=\"{PANEL_HEIGHT}\"/>\n",
            self.top - 14.0,
            self.top,
        );
        for address in (0..=self.address_max as u64).step_by(self.step as usize) {
            let y = self.y(address);
            let label = if address == 0 { "0".to_owned() } else { Size(address).to_string() };
            let _ = writeln!(
                svg,
                "<path class=\"g\" d=\"M{LEFT} {y:.1}h{width}\"/>\
                 <text class=\"a e\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                LEFT - 10.0,
                y + 4.0,
            );
        }
        let middle = (self.top + bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<text class=\"a m\" transform=\"translate(18 {middle:.1}) rotate(-90)\">{axis}</text>"
        );
    }
}

fn dots(svg: &mut String, panel: &Panel, events: &[Event]) {
    let every = events.len().div_ceil(DOTS_MAX).max(1);
    svg.push_str("<path class=\"h\" d=\"");
    for event in events.iter().step_by(every) {
        let _ = write!(svg, "M{:.1} {:.1}h0", panel.x(event.time_ns), panel.y(event.offset));
    }
    svg.push_str("\"/>\n");
    if every > 1 {
        let (x, y) = (WIDTH - RIGHT, panel.top - 14.0);
        let _ = writeln!(svg, "<text class=\"a e\" x=\"{x}\" y=\"{y}\">1 in {every} drawn</text>");
    }
}

fn lines(svg: &mut String, panel: &Panel, furrows: &[Furrow]) {
    svg.push_str("<path class=\"d\" d=\"");
    for furrow in furrows {
        let mut last = (f64::MIN, f64::MIN);
        for (index, (time_ns, address)) in furrow.iter().enumerate() {
            let point = (panel.x(*time_ns), panel.y(*address));
            let (dx, dy) = (point.0 - last.0, point.1 - last.1);
            let is_end = index == 0 || index + 1 == furrow.len();
            // Points closer than this are one on any screen.
            if !is_end && dx.abs() + dy.abs() < 1.0 {
                continue;
            }
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(svg, "{command}{:.1} {:.1}", point.0, point.1);
            last = point;
        }
    }
    svg.push_str("\"/>\n");
}

fn time_axis(svg: &mut String, panel: &Panel, window: &Range<u64>) {
    let length_ms = (window.end - window.start) as f64 / 1e6;
    let y = panel.top + PANEL_HEIGHT;
    for tenth in 0..=10_u64 {
        let x = panel.x(window.start + (window.end - window.start) * tenth / 10);
        let label = length_ms * tenth as f64 / 10.0;
        let _ = writeln!(
            svg,
            "<path class=\"k\" d=\"M{x:.1} {y}v6\"/>\
             <text class=\"a m\" x=\"{x:.1}\" y=\"{:.1}\">{label:.0}</text>",
            y + 22.0,
        );
    }
    let x = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = writeln!(
        svg,
        "<text class=\"a m\" x=\"{x}\" y=\"{:.1}\">time in milliseconds</text>",
        y + 44.0
    );
}

fn header(caption: &Caption) -> String {
    let (setting, title) = (escaped(&caption.setting), escaped(&caption.sentence()));
    let bars = bars(caption);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"Inter, 'Segoe UI', Helvetica, \
         'DejaVu Sans', Arial, sans-serif\">\n<!-- made by coulter -->\n{STYLE}\
         <rect class=\"b\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"H\" x=\"{LEFT}\" y=\"44\">{title}</text>\n\
         <text class=\"w\" x=\"{LEFT}\" y=\"70\">{setting}</text>\n{bars}"
    )
}

/// A bar for each ratio, and a line at what the other side does.
fn bars(caption: &Caption) -> String {
    let longest = caption.held_back.max(caption.straight).max(1.0);
    let scale = |ratio: f64| ratio.max(0.0) / longest * BARS_WIDTH;
    let rows = [
        ("held back like a cloud volume", caption.held_back),
        ("the disk as it is", caption.straight),
    ];
    let mut svg = String::new();
    let mut y = BARS_TOP;
    for (label, ratio) in rows {
        let (x, width, middle) = (BARS_LEFT + scale(ratio), scale(ratio), y + BAR_HEIGHT - 3.0);
        let _ = writeln!(
            svg,
            "<text class=\"w e\" x=\"{:.1}\" y=\"{middle:.1}\">{label}</text>\
             <rect class=\"R\" x=\"{BARS_LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\"/>\
             <text class=\"r\" x=\"{:.1}\" y=\"{middle:.1}\">{ratio:.2} times</text>",
            BARS_LEFT - 12.0,
            x + 10.0,
        );
        y += BAR_HEIGHT + 8.0;
    }
    let (one, top) = (BARS_LEFT + scale(1.0), BARS_TOP - 6.0);
    let _ = writeln!(
        svg,
        "<path class=\"k\" d=\"M{one:.1} {top:.1}V{y:.1}\"/>\
         <text class=\"a m\" x=\"{one:.1}\" y=\"{:.1}\">{} = 1</text>",
        y + 12.0,
        escaped(caption.baseline),
    );
    svg
}

const STYLE: &str = "<style>
.b{fill:#fdfcf9}.p{fill:#fff;stroke:#d9d3c7}.g{stroke:#efebe3}.k{stroke:#a8a29e}
text{fill:#292524}.H{font-size:22px;font-weight:700}.t{font-size:17px;font-weight:600}
.w{font-size:14.5px;font-weight:400;fill:#6b645c}.r{font-size:15px;font-weight:600;fill:#166534}.R{fill:#15803d;fill-opacity:.75}
.a{font-size:12.5px;fill:#78716c}.e{text-anchor:end}.m{text-anchor:middle}
.h{stroke:#c2410c;stroke-width:2;stroke-linecap:round;stroke-opacity:.55;fill:none}
.d{stroke:#15803d;stroke-width:2.4;stroke-linecap:round;stroke-linejoin:round;fill:none}
@media (prefers-color-scheme:dark){.b{fill:#1c1917}.p{fill:#231f1d;stroke:#44403c}.g{stroke:#35302d}
text{fill:#f5f5f4}.w,.a{fill:#a8a29e}.r{fill:#86efac}.R{fill:#4ade80}.h{stroke:#fb923c}.d{stroke:#4ade80}}
</style>
";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time_ns: u64, offset: u64, length: u64) -> Event {
        Event { time_ns, offset, length }
    }

    fn caption() -> Caption {
        Caption {
            volume_size: 1 << 30,
            store_size: 5 << 28,
            setting: "fio & <co>".to_owned(),
            baseline: "plain loop",
            held_back: 2.85,
            straight: 0.9,
        }
    }

    #[test]
    fn writes_that_follow_each_other_make_one_furrow_even_when_two_logs_alternate() {
        let events = [
            event(0, 0, 10),
            event(1, 100, 5),
            event(2, 10, 10),
            event(3, 105, 5),
            event(4, 50, 1),
        ];
        let furrows = furrows_of(&events);
        assert_eq!(
            furrows,
            [
                vec![(0, 0), (0, 10), (2, 20)],
                vec![(1, 100), (1, 105), (3, 110)],
                vec![(4, 50), (4, 51)],
            ]
        );
    }

    #[test]
    fn the_window_is_the_busiest_stretch_that_both_sides_know() {
        let at = |times: &[u64]| times.iter().map(|time| event(time * 1_000_000, 0, 1)).collect();
        let trace = Trace {
            host: at(&[0, 1500, 1600, 1700, 3900, 3910, 3920, 3930]),
            device: at(&[0, 3000]),
        };
        let window = window_of(&trace);
        assert_eq!(window.end - window.start, 1_000_000_000);
        assert!(window.contains(&1_500_000_000) && window.contains(&1_700_000_000));
    }

    #[test]
    fn an_empty_recording_still_makes_a_picture() {
        let svg = draw(&Trace::default(), &caption());
        assert!(svg.starts_with("<svg "));
        assert!(svg.contains("fio &amp; &lt;co&gt;"));
        assert!(!svg.contains("NaN"));
        assert!(svg.contains("2.9 times on a held-back device, 0.9 on the disk as it is"));
        assert!(svg.contains("2.85 times") && svg.contains("0.90 times"), "both ratios are drawn");
        assert!(svg.contains("plain loop = 1"));
    }

    /// A letter of the bold title is about 12.4 wide.
    #[test]
    fn the_title_fits_its_frame() {
        let widest = Caption { held_back: 13.25, straight: 10.44, ..caption() };
        let width = widest.sentence().len() as f64 * 12.4;
        assert!(width < WIDTH - LEFT - RIGHT, "{width}");
    }

    #[test]
    fn a_long_recording_is_thinned_out_and_says_so() {
        let host = (0..30_000).map(|i| event(i * 1000, i * 4096, 4096)).collect();
        let svg = draw(&Trace { host, device: vec![event(29_999_000, 0, 1)] }, &caption());
        assert!(svg.contains("1 in 4 drawn"));
        assert!(svg.len() < 400_000, "{} bytes", svg.len());
    }

    #[test]
    fn numbers_are_grouped_in_threes() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    /// To look at the drawing without a store: `COULTER_PICTURE=a.svg cargo test picture`.
    #[test]
    fn a_made_up_recording_can_be_looked_at() {
        let Some(path) = std::env::var_os("COULTER_PICTURE") else { return };
        let mut random = super::super::content::Random::new(1);
        let mut trace = Trace::default();
        let (mut user, mut cleaning) = (0, 3 << 28);
        for step in 0..1200_u64 {
            let time = step * 1_000_000;
            for part in 0..50 {
                let offset = random.below(1 << 18) << 12;
                trace.host.push(event(time + part * 20_000, offset, 4096));
            }
            trace.device.push(event(time, user, 1 << 18));
            user = (user + (1 << 18)) % (3 << 28);
            if step % 3 == 0 {
                trace.device.push(event(time, cleaning, 1 << 18));
                cleaning += 1 << 18;
            }
        }
        std::fs::write(path, draw(&trace, &caption())).expect("the file is writable");
    }
}
