//! fio as the papers use it: eight threads, 4 KiB, buffered or direct, each on its own file.

use crate::error::SystemsError;
use crate::tool;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const THREAD_COUNT: u64 = 8;

#[derive(Debug)]
pub(super) struct Fio {
    directory: PathBuf,
    direct: bool,
    file_bytes: u64,
}

impl Fio {
    pub(super) fn prepare(directory: &Path, direct: bool, bytes: u64) -> Result<Fio, SystemsError> {
        let file_bytes = bytes / THREAD_COUNT / 4096 * 4096;
        let fio = Fio { directory: directory.to_owned(), direct, file_bytes };
        fio.report(&["--rw=write", "--bs=1M", "--direct=1"])?;
        // Every block three times, in random order: until collection is nearly in balance.
        fio.report(&["--rw=randwrite", "--bs=4k", "--direct=1", "--iodepth=8", "--loops=3"])?;
        Ok(fio)
    }

    pub(super) fn run(&self, time: Duration) -> Result<f64, SystemsError> {
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
        ])?;
        Ok(report["jobs"][0]["write"]["total_ios"].as_f64().expect("fio counts"))
    }

    fn report(&self, arguments: &[&str]) -> Result<Value, SystemsError> {
        let mut fio = tool::command("fio");
        fio.args(["--name=f", "--thread", "--randseed=7", "--ioengine=io_uring"]);
        fio.args(["--group_reporting", "--output-format=json", "--fallocate=none"]);
        fio.arg(format!("--directory={}", self.directory.display()));
        fio.arg(format!("--numjobs={THREAD_COUNT}")).arg(format!("--size={}", self.file_bytes));
        let output = tool::run(fio.args(arguments), "fio")?;
        // fio may note something before the report.
        let begin = output.stdout.iter().position(|byte| *byte == b'{');
        let report = begin.map(|begin| serde_json::from_slice(&output.stdout[begin..]));
        report.and_then(Result::ok).ok_or_else(|| SystemsError::Program {
            command: tool::described(&fio),
            output: tool::words_of(&output),
        })
    }
}
