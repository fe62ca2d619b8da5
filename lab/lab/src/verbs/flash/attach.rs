//! `coulter-lab flash attach` and `serve`: an emulated drive as a block device, by itself or with a
//! volume on it.

use super::drive::{DriveOptions, refused};
use crate::emulated::{Emulation, Streams, VolumeShape};
use crate::error::LabError;
use crate::terminal;
use clap::{Args, ValueEnum};
use coulter_cli::new_store::parse_percent;
use coulter_cli::output::{Kind, Output};
use coulter_cli::verbs::serve::check_remote;
use coulter_cli::via::{self, ViaChoice};
use coulter_daemon::Opening;
use coulter_daemon::launch::{self, Readiness};
use coulter_daemon::logging;
use coulter_daemon::points::NbdServerPoint;
use coulter_daemon::setting::{self, Setting};
use coulter_daemon::state::{Entry, StateDirectory};
use coulter_daemon::status::Facts;
use coulter_daemon::{Job, Point, service};
use coulter_flash::{Pacing, Placement};
use coulter_net::nbd::Address;
use coulter_terminal::Report;
use coulter_terminal::Size;
use std::ffi::OsString;
use std::path::PathBuf;

/// Attach an emulated drive and print its block device
///
/// Data is kept in memory and lost at detach. `coulter status` shows the drive's counters, `coulter
/// detach` ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab flash attach --profile sata-tlc --size 1G   prints, for instance, /dev/loop0
  coulter-lab flash attach --ftl bast --via nbd-server    prints an nbd+unix:// URI; needs no root
  coulter-lab flash attach --volume --name stack          a Coulter volume on such a drive
  coulter status stack --json | jq .flash.nand.programs
  coulter detach stack")]
pub(crate) struct FlashAttach {
    #[command(flatten)]
    options: AttachOptions,

    /// Stay in the foreground, and print the drive's counters at the end
    #[arg(long)]
    pub(super) foreground: bool,

    /// Print the entry that `list --json` would show, and at the end the drive's figures, as JSON
    #[arg(long)]
    json: bool,
}

/// Serve an emulated drive over NBD until interrupted, then print what it has done
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  coulter-lab flash serve --nbd unix:/run/drive.sock
  coulter-lab flash serve --nbd tcp:127.0.0.1:10809 --ftl fast --pace real --json")]
pub(crate) struct FlashServe {
    #[command(flatten)]
    emulation: EmulationOptions,

    /// Where to listen: unix:PATH or tcp:ADDRESS:PORT (port 0 takes a free one)
    #[arg(long, value_name = "ADDRESS")]
    nbd: Address,

    /// Allow an address that other machines can reach
    #[arg(long)]
    allow_remote: bool,

    /// Print the entry that `list --json` would show, and at the end the drive's figures, as JSON
    #[arg(long)]
    json: bool,
}

/// Serve an emulated drive in a process of its own (used by `flash attach`).
#[derive(Debug, Args)]
pub(crate) struct FlashDaemon {
    #[command(flatten)]
    options: AttachOptions,
}

/// How to attach what.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
struct AttachOptions {
    #[command(flatten)]
    emulation: EmulationOptions,

    /// Attach point: a loop device over a FUSE file (needs root) or an NBD server on a unix socket;
    /// auto uses the best available one
    #[arg(long, value_parser = via::parser(), default_value = "auto")]
    via: ViaChoice,
}

/// What is emulated, and how.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
struct EmulationOptions {
    #[command(flatten)]
    drive: DriveOptions,

    /// When requests complete: virtual, at once, with virtual time in the figures; real, when the
    /// drive would complete them
    #[arg(long, value_enum, default_value = "virtual", value_name = "CLOCK")]
    pace: Pace,

    /// Number of write streams that the drive separates. By default the volume names the streams,
    /// as with placement hints. Without --volume, or with --stream-size, the drive detects segments
    /// that are written at the same time (page map only)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(2..=64))]
    #[arg(conflicts_with = "hot_cold")]
    streams: Option<u8>,

    /// Segment size for stream detection [default: without --volume 32M]
    #[arg(long, value_name = "SIZE", requires = "streams")]
    stream_size: Option<Size>,

    /// Also separate streams in garbage collection, as persistently isolated FDP handles do
    #[arg(long, requires = "streams")]
    isolate: bool,

    /// Put a Coulter volume on the drive, and attach the volume
    #[arg(long)]
    volume: bool,

    /// Over-provisioning of the volume, as a share of its size
    #[arg(long, default_value = "20%", value_name = "PERCENT", value_parser = parse_percent)]
    #[arg(requires = "volume")]
    volume_spare: u32,

    /// Segment size of the volume [default: 32M, down to 4M for small drives]
    #[arg(long, value_name = "SIZE", requires = "volume")]
    segment_size: Option<Size>,

    /// Page size of the flash, for the volume to know: records begin at pages, and host data goes into holes of
    /// segments. --segment-size is to be the erase block then
    #[arg(long, value_name = "SIZE", requires = "segment_size")]
    page_size: Option<Size>,

    /// Also fill pages of which only some blocks are dead, writing the others there again
    #[arg(long, requires = "page_size")]
    pad_pages: bool,

    /// Start with this setting of `coulter tune`, such as reclaim=hole-fill; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting::at_opening)]
    #[arg(requires = "volume")]
    tune: Vec<Setting>,

    /// Name for `detach` and `status` [default: the profile's]
    #[arg(long)]
    name: Option<String>,

    /// At the end, write the output of `status --json` to this file
    #[arg(long, value_name = "FILE")]
    statistics: Option<PathBuf>,
}

/// What may be written behind `--pace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pace {
    Virtual,
    Real,
}

/// Bytes of a segment where none is given: a store's default.
const STREAM_SIZE_DEFAULT: u64 = 32 << 20;

impl EmulationOptions {
    /// # Errors
    /// A drive that cannot be.
    fn emulation(&self) -> Result<Emulation, LabError> {
        let mut ftl_options = self.drive.options();
        let segment_size = self.stream_size.map(|size| size.0);
        if self.stream_size == Some(Size(0)) {
            return Err(refused("a stream size of 0 bytes holds nothing".to_owned(), true));
        }
        let streams = self.streams.map(|count| Streams {
            count,
            segment_size: match self.volume {
                true => segment_size,
                false => Some(segment_size.unwrap_or(STREAM_SIZE_DEFAULT)),
            },
        });
        if let Some(count) = self.streams {
            ftl_options.placement = match self.isolate {
                true => Placement::Isolated { count },
                false => Placement::Handles { count },
            };
        }
        let volume = self.volume.then(|| VolumeShape {
            spare_percent: self.volume_spare,
            segment_size: self.segment_size.map(|size| size.0),
            page_size: self.page_size.map(|size| size.0),
            pad_pages: self.pad_pages,
            tuning: setting::retuning(&self.tune).expect("settings are checked when they are read"),
        });
        Ok(Emulation {
            profile: self.drive.profile()?,
            ftl: self.drive.ftl,
            ftl_options,
            pacing: match self.pace {
                Pace::Virtual => Pacing::Virtual,
                Pace::Real => Pacing::Real,
            },
            streams,
            volume,
        })
    }

    /// # Errors
    /// As [`EmulationOptions::emulation`]; when the file of statistics cannot be written.
    fn job(&self, point: Box<dyn Point>) -> Result<Job, LabError> {
        self.check_statistics()?;
        let opening = Opening { name: self.name.clone(), ..Opening::default() };
        let source = Box::new(self.emulation()?);
        Ok(Job { source, point, opening, recover: false })
    }

    /// Writes what is known at the end to the file that was asked for.
    fn keep(&self, facts: Option<&Facts>) -> Result<(), LabError> {
        let (Some(path), Some(facts)) = (&self.statistics, facts) else { return Ok(()) };
        let failed = |source| LabError::io("write", path, source);
        let text = serde_json::to_string_pretty(facts).map_err(|error| failed(error.into()))?;
        Ok(Output::check(path, Kind::STATISTICS)?.write((text + "\n").as_bytes())?)
    }

    /// A file of statistics that cannot be written should fail now, not when the drive is gone.
    fn check_statistics(&self) -> Result<(), LabError> {
        if let Some(path) = &self.statistics {
            Output::check(path, Kind::STATISTICS)?;
        }
        Ok(())
    }

    /// The words that make this on a command line that is read in another directory.
    fn words(&self) -> Vec<OsString> {
        let mut words = self.drive.words();
        let mut word = |text: String| words.push(text.into());
        match self.pace {
            Pace::Virtual => word("--pace=virtual".to_owned()),
            Pace::Real => word("--pace=real".to_owned()),
        }
        if let Some(count) = self.streams {
            word(format!("--streams={count}"));
        }
        if let Some(size) = self.stream_size {
            word(format!("--stream-size={}", size.0));
        }
        if self.isolate {
            word("--isolate".to_owned());
        }
        if self.volume {
            word("--volume".to_owned());
            word(format!("--volume-spare={}", self.volume_spare));
        }
        if let Some(size) = self.segment_size {
            word(format!("--segment-size={}", size.0));
        }
        if let Some(size) = self.page_size {
            word(format!("--page-size={}", size.0));
        }
        if self.pad_pages {
            word("--pad-pages".to_owned());
        }
        self.tune.iter().for_each(|setting| word(format!("--tune={setting}")));
        if let Some(name) = &self.name {
            word(format!("--name={name}"));
        }
        if let Some(path) = &self.statistics {
            let mut word = OsString::from("--statistics=");
            word.push(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
            words.push(word);
        }
        words
    }
}

impl AttachOptions {
    /// The command line of the daemon, behind the state directory.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["flash".into(), "daemon".into()];
        words.push(format!("--via={}", self.via).into());
        words.extend(self.emulation.words());
        words
    }
}

impl FlashAttach {
    pub(super) fn run(&self, state: &StateDirectory) -> Result<(), LabError> {
        let options = &self.options;
        let job = options.emulation.job(options.via.point_of_mortal()?)?;
        if !self.foreground {
            let entry = launch::launch(state, options.words())?;
            return tell(&entry, self.json);
        }
        let facts = service::run(state, job, &mut |entry| Ok(tell(entry, self.json)?))?;
        finish(&options.emulation, facts.as_ref(), self.json)
    }
}

impl FlashServe {
    pub(super) fn run(&self, state: &StateDirectory) -> Result<(), LabError> {
        check_remote(&self.nbd, self.allow_remote, false)?;
        let point = NbdServerPoint::at(self.nbd.clone(), self.allow_remote);
        let job = self.emulation.job(Box::new(point))?;
        let facts = service::run(state, job, &mut |entry| Ok(tell(entry, self.json)?))?;
        finish(&self.emulation, facts.as_ref(), self.json)
    }
}

impl FlashDaemon {
    pub(super) fn run(&self, state: &StateDirectory) -> Result<(), LabError> {
        let mut readiness = Readiness::on_standard_output();
        let result = self.serve(state, &mut readiness);
        if let Err(error) = &result {
            let report: Report = error.report();
            readiness.tell_failure(&report);
        }
        result
    }

    fn serve(&self, state: &StateDirectory, readiness: &mut Readiness) -> Result<(), LabError> {
        service::leave_session();
        let options = &self.options;
        let job = options.emulation.job(options.via.point_of_mortal()?)?;
        let facts = service::run(state, job, &mut |entry| {
            logging::move_to_file(state, &entry.name)?;
            readiness.tell_success(entry)
        })?;
        options.emulation.keep(facts.as_ref())
    }
}

fn tell(entry: &Entry, json: bool) -> Result<(), LabError> {
    if json {
        return terminal::print_json(entry);
    }
    terminal::print(entry.device.as_deref().unwrap_or_default())
}

/// Says what the drive has done.
fn finish(options: &EmulationOptions, facts: Option<&Facts>, json: bool) -> Result<(), LabError> {
    options.keep(facts)?;
    match facts {
        Some(facts) if json => terminal::print_json(facts),
        Some(facts) => terminal::print(&facts.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandLine, Verb};
    use crate::verbs::flash::What;
    use clap::Parser;

    fn options(words: &[&str]) -> AttachOptions {
        let words = ["coulter-lab", "flash", "attach"].iter().chain(words);
        let line = CommandLine::try_parse_from(words).expect("the words are a command line");
        let Verb::Flash(flash) = line.verb else { panic!("another verb: {:?}", line.verb) };
        let What::Attach(attach) = flash.what else { panic!("another verb: {:?}", flash.what) };
        attach.options
    }

    #[test]
    fn the_daemon_understands_the_command_line_that_it_is_given() {
        for words in [
            &[][..],
            &["--ftl=fast", "--log-blocks=7", "--via=nbd", "--pace=real", "--profile=openssd"],
            &["--size=100M", "--spare=9%", "--hot-cold", "--victims=oldest", "--map-cache=9"],
            &[
                "--streams=4",
                "--stream-size=8M",
                "--isolate",
                "--name=-odd",
                "--statistics=/s.json",
            ],
            &["--volume", "--volume-spare=30", "--segment-size=2M", "--profile=/drive.profile"],
            &["--volume", "--segment-size=2M", "--page-size=16K", "--pad-pages"],
            &["--volume", "--tune=reclaim=threaded", "--tune", "latency-target=1500us"],
        ] {
            let options = options(words);
            let line = [OsString::from("coulter-lab")].into_iter().chain(options.words());
            let line = CommandLine::try_parse_from(line).expect("the daemon understands it");
            let Verb::Flash(flash) = line.verb else { panic!("another verb: {:?}", line.verb) };
            let What::Daemon(daemon) = flash.what else { panic!("another: {:?}", flash.what) };
            assert_eq!(daemon.options, options);
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for words in [
            &["--streams=4", "--hot-cold"][..],
            &["--streams=1"],
            &["--stream-size=8M"],
            &["--isolate"],
            &["--volume-spare=30"],
            &["--segment-size=2M"],
            &["--tune=policy=greedy"],
            &["--volume", "--page-size=16K"],
            &["--volume", "--segment-size=2M", "--pad-pages"],
            &["--volume", "--tune=defrag=on"],
            &["--pace=slow"],
        ] {
            let line = ["coulter-lab", "flash", "attach"].iter().chain(words);
            assert!(CommandLine::try_parse_from(line).is_err(), "{words:?}");
        }
    }
}
