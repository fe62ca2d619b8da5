//! Bringing blocks home while a bar shows how far that is.

use super::report;
use crate::error::CliError;
use crate::terminal;
use coulter_fuse::files::overlay;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the bar is moved.
const PAUSE: Duration = Duration::from_millis(200);

/// Brings everything home, and waits for that.
pub(crate) fn settle_all(directory: &Path) -> Result<(), CliError> {
    let figures = || {
        let report = report(directory).unwrap_or_default();
        let number = |key: &str| report[key].as_u64().unwrap_or(0);
        (number("stored_bytes"), number("bytes_brought_home"))
    };
    let (total, begun) = figures();
    let bar = terminal::progress("bringing home", total);
    let (over, is_over) = channel();
    let settled = std::thread::scope(|scope| {
        let moved = bar.clone();
        scope.spawn(move || {
            while is_over.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                // What is written meanwhile comes home too.
                moved.set_position((figures().1 - begun).min(total));
            }
        });
        let settled = overlay::settle(directory);
        drop::<std::sync::mpsc::Sender<()>>(over);
        settled
    });
    bar.finish_and_clear();
    settled.map_err(|source| CliError::io("bring home the blocks of", directory, source))
}
