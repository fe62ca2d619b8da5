//! `file-load`: a generated load on the files of a directory, where the test that measures it cannot be: in a guest.

use clap::Parser;
use coulter_flash::Workload;
use coulter_systems::{Replay, SystemsError};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Make files, overwrite as many blocks as they have, and then have a load on them for a while. What is dirty is written
/// out four times a second. Prints what was done as JSON.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the files are
    directory: PathBuf,

    /// Such as tiobench, tpcc or varmail
    load: Workload,

    /// Bytes of all files together
    bytes: u64,

    /// Time of the load
    milliseconds: u64,

    /// What is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Program to run before the load and after it, when nothing is dirty, with `before` or `after` as its argument
    #[arg(long, value_name = "PROGRAM")]
    count: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), SystemsError> {
    let replay = Replay::new(&arguments.directory, arguments.load, arguments.bytes, arguments.seed);
    let mut moments = ["before", "after"].into_iter();
    let measured = replay.measure(Duration::from_millis(arguments.milliseconds), || {
        let moment = moments.next().expect("it is counted twice");
        let status = Command::new(&arguments.count).arg(moment).status();
        let failed = |error| SystemsError::io("run", &arguments.count, error);
        match status.map_err(failed)? {
            status if status.success() => Ok(()),
            status => Err(failed(std::io::Error::other(format!("it ended with {status}")))),
        }
    })?;
    let done = measured.done;
    let done =
        serde_json::json!({ "operations": done.operations, "bytes_written": done.bytes_written });
    println!("{done}");
    Ok(())
}
