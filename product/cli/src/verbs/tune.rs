//! `coulter tune`: what a volume does meanwhile can be changed.

use crate::error::{CliError, DaemonError};
use crate::terminal;
use clap::Args;
use coulter_daemon::control::{self, Reply, Request};
use coulter_daemon::setting::Setting;
use coulter_daemon::state::StateDirectory;

/// Change settings of an attached volume, or show them when none is given.
///
/// Changes take effect at once and last until the volume is detached or restarted. Settings given
/// at attach (`coulter attach --tune KEY=VALUE`) apply again after every restart.
#[derive(Debug, Args)]
#[command(after_help = "\
Settings:
  cleaning=paced        paced by host writes (default)
  cleaning=paused       only as much as host writes need
  cleaning=drain        as fast as the device allows until nothing is worth cleaning, then paced
  policy=NAME           choice of the next segment to clean: damped-age (default),
                        cost-benefit, greedy
  placement=NAME        choice of blocks that share segments: lifetime (default), apart, mixed
  reclaim=NAME          how space is reclaimed: copy-out (default), hole-fill, threaded
  cleaning-rate=SIZE    bytes per second that cleaning may read, from 1M to 1T, or none (default)
  latency-target=TIME   cleaning pauses while more than 1% of writes take longer, from 100us to
                        10s, or none (default)
  idle-cleaning=on|off  clean ahead while the host is idle (default: off)
  idle-after=TIME       time without requests after which the host is idle, from 10ms to 1h
                        (default: 1s)
  defrag=on|off         pass over the volume once and rewrite scattered blocks in order, so that
                        sequential reads are sequential on the device; ends by itself
  space-patience=TIME   time that writes wait for space below the store before they fail with
                        ENOSPC, from 1s to 24h (default: 60s)

Examples:
  coulter tune disk                        show the settings
  coulter tune disk cleaning=paused        before a load that must not be disturbed
  coulter tune disk cleaning=drain         in quiet hours
  coulter tune disk cleaning-rate=50M latency-target=20ms
  coulter tune disk policy=greedy placement=apart")]
pub(crate) struct Tune {
    /// Name, store or device of the volume
    #[arg(value_name = "NAME")]
    pub(crate) volume: String,

    /// Settings to change
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
