//! What a process is doing, for whoever reads of a test that gave up waiting for it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Lines of a log that are shown.
const LOG_LINES_MAX: usize = 60;

/// The threads of a process: what each is called, its state, and where in the kernel it sleeps.
pub fn threads_of(pid: u32) -> String {
    let mut text =
        format!("process {pid}: {}\n", read(&format!("/proc/{pid}/cmdline")).replace('\0', " "));
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks.map(|task| task.path()) {
        let of = |name: &str| read(&task.join(name).display().to_string());
        let status = of("status");
        let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("State: ?");
        let id = task.file_name().unwrap_or_default().display().to_string();
        let (name, place) = (of("comm"), of("wchan"));
        // Only what the kernel lets us see of it.
        let stack = of("stack").replace('\n', "\n      ");
        let (name, place, stack) = (name.trim_end(), place.trim_end(), stack.trim_end());
        let _ = writeln!(text, "  thread {id} {name}: {state}, waits in {place}\n      {stack}");
    }
    text
}

/// The end of a log.
pub fn end_of(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_MAX)..];
    format!("{}:\n  {}\n", log.display(), shown.join("\n  "))
}

fn read(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_shown_with_what_it_sleeps_in() {
        let (wake, woken) = std::sync::mpsc::channel::<()>();
        let builder = std::thread::Builder::new().name("sleeper".to_owned());
        let sleeper = builder.spawn(move || woken.recv()).expect("there are threads");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let text = threads_of(std::process::id());
        drop(wake);
        let _ = sleeper.join();
        let line = text.lines().find(|line| line.contains(" sleeper: ")).expect("it is there");
        assert!(line.contains("State:\tS (sleeping)"), "{line}");
    }

    #[test]
    fn of_a_long_log_the_end_is_shown() {
        let scratch = crate::Scratch::new(Path::new("/var/tmp")).expect("there is room");
        let file = scratch.path("log");
        let text: String = (0..1000).map(|line| format!("line {line}\n")).collect();
        fs::write(&file, text).expect("there is room");
        let shown = end_of(&file);
        assert!(shown.contains("line 999") && !shown.contains("line 900\n"), "{shown}");
        assert!(end_of(Path::new("/no/such/log")).contains("/no/such/log"));
    }
}
