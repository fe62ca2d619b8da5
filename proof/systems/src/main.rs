//! `power-cut`: cuts the power under file systems and databases, many times.

use clap::{Args, Parser, Subcommand, ValueEnum};
use coulter_systems::campaign::{self, Outcome, Plan};
use coulter_systems::{
    Blow, DiskOptions, FileSystem, Files, Layer, MariaDb, MountOutcome, MountPlan, Postgres,
    Prefix, Scratch, Shape, Sqlite, SystemsError, Workload, built, run_mounts, serve,
};
use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Cut the power under file systems and databases on a volume, at random moments, and see whether
/// all that was durable is there.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,

    /// Cuts for each workload on each file system
    #[arg(long, default_value_t = 40)]
    cuts: u64,

    /// What to run [default: everything]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    workloads: Option<Vec<Kind>>,

    /// What to run it on [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    file_systems: Option<Vec<FileSystem>>,

    /// What is drawn: the moments of the cuts, and what survives
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Directory for mount points and sockets; the disks are in memory
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,

    /// Kill the daemons of `fs` and `overlay` instead
    #[arg(long)]
    kills: bool,

    /// Print the outcomes as JSON
    #[arg(long)]
    json: bool,
}

/// Parts of it that are processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// The disk, the volume and the attach point of one machine
    #[command(hide = true)]
    Disk(Disk),
}

#[derive(Debug, Args)]
struct Disk {
    #[arg(long)]
    point: PathBuf,
    #[arg(long)]
    volume_size: u64,
    #[arg(long)]
    lies: bool,
    #[arg(long)]
    plain: bool,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Files,
    Sqlite,
    Postgresql,
    /// PostgreSQL without full-page writes
    PostgresqlPagesOnce,
    /// MariaDB without its double-write buffer
    MariadbPagesOnce,
    /// Files on `coulter fs`
    Fs,
    /// Files on `coulter overlay`
    Overlay,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.part {
        Some(Part::Disk(Disk { point, volume_size, lies, plain })) => {
            let options = DiskOptions { volume_size, is_plain: plain, point, lies };
            serve(options).map_err(Into::into)
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
    let kinds = arguments.workloads.as_deref().unwrap_or(Kind::value_variants());
    let file_systems = arguments.file_systems.as_deref().unwrap_or(&FileSystem::ALL);
    let mut outcomes = Vec::new();
    let mut mounts = Vec::new();
    for kind in kinds {
        if let Some(layers) = layers(*kind, file_systems) {
            for layer in layers {
                mounts.push(mount(arguments, layer, &scratch)?);
            }
            continue;
        }
        for file_system in file_systems {
            let Some(mut workload) = make(*kind, *file_system, &scratch, arguments.seed)? else {
                eprintln!("SKIPPED: {kind:?} is not installed");
                continue;
            };
            let plan = Plan {
                file_system: *file_system,
                cuts: arguments.cuts,
                seed: arguments.seed,
                shape: Shape {
                    program: std::env::current_exe()?,
                    volume_size: 448 << 20,
                    is_plain: false,
                    lies: false,
                },
                commands_max: 4000,
                work_max: Duration::from_millis(1500),
            };
            let outcome = campaign::run(&plan, &mut *workload, &scratch, &mut show)?;
            if !arguments.json {
                println!("{}", line(&outcome));
            }
            outcomes.push(outcome);
        }
    }
    if arguments.json {
        let all = serde_json::json!({ "volumes": outcomes, "mounts": mounts });
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        let on_volumes = outcomes.iter().map(|outcome| (outcome.cuts, outcome.verified.durable));
        let mounted = mounts.iter().map(|outcome| (outcome.blows, outcome.verified.durable));
        let (cuts, durable) = on_volumes.chain(mounted).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let what = if arguments.kills { "kills" } else { "cuts" };
        println!("{cuts} {what}, {durable} durable things compared, nothing lost");
    }
    Ok(())
}

/// What is mounted, if this is no workload on volumes.
fn layers(kind: Kind, file_systems: &[FileSystem]) -> Option<Vec<Layer>> {
    let over = |lower: &FileSystem| {
        [false, true].map(|is_apart| Layer::Overlay { lower: *lower, is_apart })
    };
    match kind {
        Kind::Fs => Some(vec![Layer::Fs]),
        Kind::Overlay => Some(file_systems.iter().flat_map(over).collect()),
        Kind::Files | Kind::Sqlite | Kind::Postgresql => None,
        Kind::PostgresqlPagesOnce | Kind::MariadbPagesOnce => None,
    }
}

/// Cuts or kills under a mount. The store of an overlay is on its disk for half of them, and on another one
/// for the other half.
fn mount(
    arguments: &Arguments,
    layer: Layer,
    scratch: &Scratch,
) -> Result<MountOutcome, Box<dyn Error>> {
    let own = std::env::current_exe()?;
    let blows = match layer {
        Layer::Fs => arguments.cuts,
        Layer::Overlay { .. } => arguments.cuts.div_ceil(2),
    };
    let plan = MountPlan {
        layer,
        blow: if arguments.kills { Blow::Kill } else { Blow::Cut },
        blows,
        seed: arguments.seed,
        program: built::beside(&own, "coulter-cli", "coulter"),
        shape: Shape { program: own, volume_size: 0, is_plain: true, lies: false },
        commands_max: 4000,
        work_max: Duration::from_millis(1500),
    };
    let mut workload: Vec<Box<dyn Workload>> = vec![Box::new(Files::new(arguments.seed))];
    if layer == Layer::Fs {
        workload.push(Box::new(Prefix::new(arguments.seed)));
    }
    let mut tell = |outcome: &MountOutcome| {
        let mut out = std::io::stderr();
        if out.is_terminal() {
            let _ = write!(out, "\r{outcome}\r");
        }
    };
    let outcome = run_mounts(&plan, &mut workload, scratch, &mut tell)?;
    if !arguments.json {
        println!("{outcome}");
    }
    Ok(outcome)
}

/// The workload, if what it needs is installed.
fn make(
    kind: Kind,
    file_system: FileSystem,
    scratch: &Scratch,
    seed: u64,
) -> Result<Option<Box<dyn Workload>>, SystemsError> {
    Ok(match kind {
        Kind::Files => Some(Box::new(Files::new(seed))),
        Kind::Sqlite => Sqlite::is_installed().then(|| Box::new(Sqlite::default()) as Box<_>),
        Kind::Postgresql => {
            let outside = scratch.make_directory(&format!("socket-{file_system}"))?;
            Postgres::new(outside)?.map(|postgres| Box::new(postgres) as Box<_>)
        }
        Kind::PostgresqlPagesOnce => {
            let outside = scratch.make_directory(&format!("socket-once-{file_system}"))?;
            let postgres = Postgres::new(outside)?;
            postgres.map(|postgres| Box::new(postgres.without_full_pages()) as Box<_>)
        }
        Kind::MariadbPagesOnce => {
            let outside = scratch.make_directory(&format!("mariadb-{file_system}"))?;
            MariaDb::new(outside).map(|mariadb| Box::new(mariadb) as Box<_>)
        }
        Kind::Fs | Kind::Overlay => None,
    })
}

fn show(outcome: &Outcome) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r{}\r", line(outcome));
    }
}

fn line(outcome: &Outcome) -> String {
    format!(
        "{:<10} on {:<5} {:>4} cuts ({:>2} while opening)  {:>8} durable things, {:>6} MiB \
         compared  slowest recovery {:.2} s  {:>4.0} s",
        outcome.workload,
        outcome.file_system.name(),
        outcome.cuts,
        outcome.cuts_while_opening,
        outcome.verified.durable,
        outcome.verified.bytes >> 20,
        outcome.recovery_seconds_max,
        outcome.seconds
    )
}
