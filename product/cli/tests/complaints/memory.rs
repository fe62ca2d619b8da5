//! Short memory: programs that write back wait for the daemon, which needs memory.

use crate::overlaid::{Overlaid, assert_holds, put_over};
use crate::sandbox::{can_mount, skipped};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes for the writer, the daemon and all pages that they bring in.
const LIMIT: u64 = 40 << 20;
/// Bytes that are written: several times that.
const SIZE: usize = 160 << 20;
/// How long it may take; a deadlock takes for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// A memory cgroup, which goes with this.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Cgroup> {
        let old = Path::new("/sys/fs/cgroup/memory");
        let root = if old.exists() { old } else { Path::new("/sys/fs/cgroup") };
        let path = root.join(format!("coulter-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let made = Cgroup(path);
        let names = ["memory.limit_in_bytes", "memory.max"];
        names.iter().any(|name| made.set(name, LIMIT)).then_some(made)
    }

    fn set(&self, name: &str, value: u64) -> bool {
        let path = self.0.join(name);
        path.exists() && fs::write(path, value.to_string()).is_ok()
    }

    /// How often something did not get memory at once.
    fn waits(&self) -> u64 {
        if let Ok(count) = fs::read_to_string(self.0.join("memory.failcnt")) {
            return count.trim().parse().expect("it is a number");
        }
        let events = fs::read_to_string(self.0.join("memory.events")).expect("it is there");
        let max = events.lines().find_map(|line| line.strip_prefix("max ")).expect("it counts");
        max.parse().expect("it is a number")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let processes = self.0.join("cgroup.procs");
        let above = self.0.parent().map(|root| root.join("cgroup.procs"));
        for pid in fs::read_to_string(&processes).unwrap_or_default().lines() {
            let _ = above.as_ref().map(|above| fs::write(above, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_writer_and_the_daemon_in_little_memory_never_wait_for_each_other() {
    let Some(_right) = can_mount("short memory") else { return };
    for cache in ["through", "back"] {
        let Some(cgroup) = Cgroup::new() else {
            return skipped("short memory: there can be no memory cgroup");
        };
        let overlaid = Overlaid::new();
        overlaid.sandbox.ok(&["overlay", "detach", "data"]);
        let pid = put_over(&overlaid.sandbox, "data", &["--cache", cache]);
        let source: Vec<u8> = (0..SIZE).map(|at| (at / 4096 * 31) as u8 ^ at as u8).collect();
        let from = overlaid.sandbox.path("source");
        fs::write(&from, &source).expect("it is writable");
        let (to, processes) = (overlaid.path("file"), cgroup.0.join("cgroup.procs"));
        fs::write(&processes, pid.to_string()).expect("root may");
        // In order, synced often enough that what waits to be written fits the limit; and then a part of it again,
        // as pieces that come in another order.
        let script = format!(
            "echo $$ >{processes} && for at in $(seq 0 19); do dd if={from} of={to} bs=8M count=1 \
             skip=$at seek=$at conv=notrunc,fsync iflag=fullblock status=none || exit 1; done; \
             for at in 7 3 9 1 8 2 6 4; do for part in 5 1 4 2 0 3; do dd if={from} of={to} bs=64k \
             skip=$((at * 256 + part * 31)) seek=$((at * 256 + part * 31)) count=3 \
             conv=notrunc,fsync status=none || exit 1; done; done",
            processes = processes.display(),
            from = from.display(),
            to = to.display(),
        );
        let mut writer = Command::new("sh").args(["-c", &script]).spawn().expect("it can be run");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = writer.try_wait().expect("it is ours") {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                // The daemon first: a writer that waits for it cannot be killed.
                crate::send(pid, "KILL");
                writer.kill().and_then(|()| writer.wait()).expect("it is ours");
                panic!("with --cache {cache} they wait for each other");
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "--cache {cache}: {status}");
        assert!(cgroup.waits() > 0, "memory was short");
        assert_holds(&crate::open(&to), &source);
        drop(cgroup);
        overlaid.detach();
    }
}
