//! fio as the papers use it: eight threads, 4 KiB, buffered or direct, each on its own file.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const THREAD_COUNT: u64 = 8;

pub(crate) struct Fio {
    directory: PathBuf,
    direct: bool,
    file_bytes: u64,
}

impl Fio {
    pub(super) fn prepare(directory: &Path, direct: bool, bytes: u64) -> Fio {
        let file_bytes = bytes / THREAD_COUNT / 4096 * 4096;
        let fio = Fio { directory: directory.to_owned(), direct, file_bytes };
        fio.report(&["--rw=write", "--bs=1M", "--direct=1"]);
        // Every block three times, in random order: until collection is nearly in balance.
        fio.report(&["--rw=randwrite", "--bs=4k", "--direct=1", "--iodepth=8", "--loops=3"]);
        fio
    }

    pub(super) fn run(&self, time: Duration) -> f64 {
        let runtime = format!("--runtime={}", time.as_secs().max(1));
        let direct = format!("--direct={}", u8::from(self.direct));
        let report = self.report(&[
            "--rw=randwrite",
            "--bs=4k",
            "--norandommap",
            "--time_based",
            "--iodepth=4",
            "--end_fsync=1",
            &direct,
            &runtime,
        ]);
        report["jobs"][0]["write"]["total_ios"].as_f64().expect("fio counts")
    }

    fn report(&self, arguments: &[&str]) -> Value {
        let mut fio = Command::new("fio");
        fio.args(["--name=f", "--thread", "--randseed=7", "--ioengine=io_uring"]);
        fio.args(["--group_reporting", "--output-format=json", "--fallocate=none"]);
        fio.arg(format!("--directory={}", self.directory.display()));
        fio.arg(format!("--numjobs={THREAD_COUNT}")).arg(format!("--size={}", self.file_bytes));
        let output = fio.args(arguments).stdin(Stdio::null()).output().expect("fio can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{fio:?}: {said}");
        // fio may note something before the report.
        let begin = output.stdout.iter().position(|byte| *byte == b'{').expect("there is JSON");
        serde_json::from_slice(&output.stdout[begin..]).expect("fio writes JSON")
    }
}
