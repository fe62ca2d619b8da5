//! `vm`: runs scenarios on real kernels in virtual machines.

use clap::Parser;
use coulter_systems::vm::{
    Accelerator, Kernel, KernelName, Options, Report, SCENARIOS, Scenario, Set, run, summary,
    write_table,
};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run scenarios on real kernels in virtual machines.
#[derive(Debug, Parser)]
struct Arguments {
    /// Kernels, of Debian's packages
    #[arg(long, value_enum, value_delimiter = ',', default_value = "6.12")]
    kernels: Vec<KernelName>,

    /// The long scenarios too, which take the better part of an hour
    #[arg(long)]
    long: bool,

    /// Only scenarios whose names contain one of these
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    scenarios: Vec<String>,

    /// Name the scenarios and end
    #[arg(long)]
    list: bool,

    /// Fetch the kernels, print where their images are, and end
    #[arg(long)]
    fetch: bool,

    /// Who executes the guests [default: KVM where it works]
    #[arg(long, value_enum)]
    accelerator: Option<Accelerator>,

    /// Give the disk handles for the placement of data (FDP), by a newer QEMU, fetched
    #[arg(long)]
    placement: bool,

    /// Put what ran into the table of this document
    #[arg(long, value_name = "FILE")]
    write_table: Option<PathBuf>,

    /// Where kernels, disks and logs go
    #[arg(long, default_value = "target/vm")]
    directory: PathBuf,

    /// `coulter`, built for this host
    #[arg(long, default_value = "target/release/coulter")]
    coulter: PathBuf,

    /// The test program `conformance` of the attach points
    #[arg(long)]
    conformance: Option<PathBuf>,

    /// The test program `conformance` of the devices
    #[arg(long)]
    device_conformance: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match try_main(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(count) => {
            eprintln!("{count} failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what is asked for; how many scenarios failed.
fn try_main(arguments: &Arguments) -> Result<usize, Box<dyn Error>> {
    let scenarios: Vec<&'static Scenario> =
        SCENARIOS.iter().filter(|scenario| is_wanted(arguments, scenario)).collect();
    if scenarios.is_empty() {
        return Err("no scenario has such a name; see --list".into());
    }
    if arguments.list {
        scenarios.iter().for_each(|scenario| println!("{}", scenario.name));
        return Ok(0);
    }
    std::fs::create_dir_all(&arguments.directory)?;
    let directory = arguments.directory.canonicalize()?;
    if arguments.fetch {
        for kernel in &arguments.kernels {
            println!("{}", Kernel::fetch(*kernel, &directory)?.image.display());
        }
        return Ok(0);
    }
    let mut programs = vec![("coulter".to_owned(), arguments.coulter.canonicalize()?)];
    // They were built beside this one.
    for name in ["pages", "nvme-compare"] {
        programs.push((name.to_owned(), std::env::current_exe()?.with_file_name(name)));
    }
    if let Some(conformance) = &arguments.conformance {
        programs.push(("conformance".to_owned(), conformance.canonicalize()?));
    }
    if let Some(conformance) = &arguments.device_conformance {
        programs.push(("device-conformance".to_owned(), conformance.canonicalize()?));
    }
    let options = Options {
        directory,
        scripts: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vm"),
        programs,
        accelerator: arguments.accelerator,
        placement: arguments.placement,
    };
    let mut reports: Vec<Report> = Vec::new();
    let mut written = Ok(());
    for kernel in &arguments.kernels {
        let fitting: Vec<_> =
            scenarios.iter().copied().filter(|scenario| scenario.fits(*kernel)).collect();
        run(&options, *kernel, &fitting, &mut |report| {
            println!("{}", summary(&report));
            if let Some(failure) = &report.failure {
                println!("{failure}\n");
            }
            // At once, so that a run that is cut short is not for nothing.
            if let Some(document) = &arguments.write_table
                && written.is_ok()
            {
                written = write_table(document, std::slice::from_ref(&report));
            }
            reports.push(report);
        })?;
    }
    written?;
    let failed = reports.iter().filter(|report| report.failure.is_some()).count();
    println!("{} passed, {failed} failed", reports.len() - failed);
    Ok(failed)
}

/// By name if names are given, else by set.
fn is_wanted(arguments: &Arguments, scenario: &Scenario) -> bool {
    match arguments.scenarios.as_slice() {
        [] => arguments.long || scenario.set == Set::Short,
        names => names.iter().any(|name| scenario.name.contains(name.as_str())),
    }
}
