//! `programs`: databases, mail and files on a volume and beside it.

use clap::{Args, Parser, Subcommand};
use coulter_device::wrap::SlowModel;
use coulter_systems::{
    Compared, Comparison, FileSystem, Program, Scratch, SideFigures, SideOptions, compare,
    serve_side,
};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Have programs work on a volume and beside it, in turns, on file systems of the same size.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,

    /// What to run [default: everything]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    programs: Vec<Program>,

    /// Hold both devices back to 3000 operations and 125 MiB a second, a millisecond each, as clouds do
    #[arg(long)]
    held_back: bool,

    /// Seconds of a turn
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Turns of each side
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,

    /// MiB of the device below the volume
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(256..1 << 24))]
    size_mib: u64,

    /// How much of the room on the volume files take, in percent
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=90))]
    fill: u64,

    /// What lies on both devices
    #[arg(long, value_enum, default_value = "ext4")]
    file_system: FileSystem,

    /// Directory for the devices, on the disk that is to be measured
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,

    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Parts of it that are processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// One side's device and attach point
    #[command(hide = true)]
    Side(SideArguments),
}

#[derive(Debug, Args)]
struct SideArguments {
    #[arg(long)]
    file: PathBuf,
    #[arg(long)]
    point: PathBuf,
    #[arg(long)]
    volume: bool,
    #[arg(long)]
    held_back: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.part {
        Some(Part::Side(SideArguments { file, point, volume, held_back })) => {
            let model = held_back.then_some(SlowModel::CLOUD_VOLUME);
            serve_side(&SideOptions { file, point, is_volume: volume, model }).map_err(Into::into)
        }
        None => run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new(&arguments.directory)?;
    // Servers of other users work in it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scratch.directory(), open)?;
    let comparison = Comparison {
        executable: std::env::current_exe()?,
        size: arguments.size_mib << 20,
        fill_percent: arguments.fill,
        is_held_back: arguments.held_back,
        file_system: arguments.file_system,
        turns: arguments.turns,
        turn: Duration::from_secs(arguments.seconds),
    };
    let programs = match &arguments.programs[..] {
        [] => &Program::ALL,
        chosen => chosen,
    };
    let mut all = serde_json::Map::new();
    if !arguments.json {
        println!("{}", head());
    }
    for program in programs {
        if let Some(missing) = program.missing() {
            eprintln!("SKIPPED: {program}: {missing} is not installed");
            continue;
        }
        let compared = compare(&comparison, *program, &scratch)?;
        if arguments.json {
            all.insert(program.to_string(), serde_json::to_value(compared)?);
        } else {
            println!("{}", line(*program, &compared));
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}

fn head() -> &'static str {
    "| program | plain, per s | volume, per s | ratio | device commands each: plain | volume | KiB \
     written each: plain | volume |\n|---|---|---|---|---|---|---|---|"
}

fn line(program: Program, compared: &Compared) -> String {
    let Compared { plain, volume } = compared;
    let commands = |side: &SideFigures| side.device_commands as f64 / side.operations;
    let kib = |side: &SideFigures| side.device_written_bytes as f64 / 1024.0 / side.operations;
    format!(
        "| {program} | {:.1} | {:.1} | {:.2} | {:.3} | {:.3} | {:.1} | {:.1} |",
        plain.rate(),
        volume.rate(),
        compared.ratio(),
        commands(plain),
        commands(volume),
        kib(plain),
        kib(volume),
    )
}
