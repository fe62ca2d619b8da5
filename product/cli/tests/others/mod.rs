//! fsx and stress-ng, as more than one test program runs them.

#![allow(dead_code, reason = "each test program uses a part of this")]

use crate::sandbox::Sandbox;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What fsx does on a file system, mapped reads and writes included.
pub(crate) const ON_FILE_SYSTEM: &str = "
flen = 33554432
[opsize]
max = 262144
[weights]
close_open = 1
posix_fadvise = 8
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 2
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 4
copy_file_range = 2
sendfile = 1
";

/// fsx: does random operations on one file, and compares with what it should hold.
pub(crate) struct Fsx<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) program: PathBuf,
}

impl Fsx<'_> {
    /// Runs each seed on `target` with this number of operations. If fsx finds a fault, the test fails.
    pub(crate) fn run(&self, target: &Path, settings: &str, seeds: Range<u32>, operations: u32) {
        let config = self.sandbox.path("fsx.toml");
        fs::write(&config, settings).expect("the directory is writable");
        for seed in seeds {
            let mut fsx = Command::new(&self.program);
            fsx.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string()]);
            fsx.arg("-f").arg(&config).arg("-P").arg(self.sandbox.path("")).arg(target);
            let output = fsx.output().expect("it can be run");
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{fsx:?}: {said}");
        }
    }
}

/// Exit codes of stress-ng that find nothing wrong: all well; something is missing for a stressor, in
/// the system or in stress-ng.
const HARMLESS: [i32; 3] = [0, 3, 4];

/// Not run: they are about other file systems; fanotify is told of all that happens on the machine, and
/// hardly ends while much does.
const STRESSORS_EXCLUDED: &str = "binderfs,procfs,verity,fanotify";

/// Seconds that the stressors may take, of which each gets one.
const STRESS_MAX: &str = "900";

/// Runs the stressors of file systems; how many of them there were.
pub(crate) fn stress(directory: &Path) -> usize {
    let mut stress = Command::new("timeout");
    stress.args(["--kill-after=10", STRESS_MAX, "stress-ng"]);
    stress.args(["--class", "filesystem", "--exclude", STRESSORS_EXCLUDED]);
    stress.args(["--sequential", "2", "--timeout", "1s", "--verify", "--metrics-brief"]);
    stress.arg("--temp-path").arg(directory);
    let output = stress.output().expect("it can be run");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let is_harmless = output.status.code().is_some_and(|code| HARMLESS.contains(&code));
    let is_whole = said.contains("successful run completed") && !said.contains(" fail: ");
    assert!(is_harmless && is_whole, "{stress:?}, {}: {said}", output.status);
    let dispatched = said.lines().find_map(|line| line.split_once("dispatching hogs: "));
    dispatched.map_or(0, |(_, hogs)| hogs.split(',').count())
}
