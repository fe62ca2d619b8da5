//! `coulter tune`: what a volume does meanwhile can be changed.

use crate::error::{CliError, DaemonError};
use crate::terminal;
use clap::Args;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::setting::Setting;
use coulter_daemon::state::StateDirectory;

/// Change settings of an attached volume, or show them when none is given.
///
/// They take effect at once and last until the volume is detached or restarted. Those with which it is
/// opened (`coulter attach --tune KEY=VALUE`) come back with every restart.
#[derive(Debug, Args)]
#[command(after_help = "\
Settings:
  cleaning=paced        in step with the host's writes (as it is at first)
  cleaning=paused       only what it takes for the host to go on
  cleaning=drain        as fast as the device allows until nothing is worth cleaning, then paced
  policy=NAME           which segment is cleaned next: damped-age (as it is at first),
                        cost-benefit, greedy
  placement=NAME        which blocks share segments: lifetime (as it is at first), apart, mixed
  reclaim=NAME          how space is reclaimed: copy-out (as it is at first), hole-fill, threaded
  cleaning-rate=SIZE    what cleaning may read in a second, from 1M to 1T, or none
  latency-target=TIME   cleaning waits while more than one write in a hundred takes longer:
                        from 100us to 10s, or none
  idle-cleaning=on|off  clean ahead while the host asks for nothing (off at first)
  idle-after=TIME       how long it asks for nothing before it counts as idle: from 10ms to 1h
                        (1s at first)
  defrag=on|off         go over the volume once and write what is scattered anew in order, so that
                        sequential reads are sequential on the device; ends by itself

Examples:
  coulter tune disk                        show the settings
  coulter tune disk cleaning=paused        before something that must not be disturbed
  coulter tune disk cleaning=drain         while there is time
  coulter tune disk cleaning-rate=50M latency-target=20ms
  coulter tune disk policy=greedy placement=apart")]
pub(crate) struct Tune {
    /// Name, store or device of the volume
    #[arg(value_name = "NAME")]
    pub(crate) volume: String,

    /// What to change
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<Setting>,

    /// Print the settings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Tune {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let entry = state.find(&self.volume)?;
        let request = Request::Tune { settings: self.settings.clone() };
        let Reply::Settings(settings) = control::ask(state, &entry, &request)? else {
            return Err(DaemonError::silent(&entry).into());
        };
        if self.json {
            return terminal::print_json(&settings);
        }
        if self.settings.is_empty() {
            return terminal::print(settings.to_string().trim_end());
        }
        Ok(())
    }
}
