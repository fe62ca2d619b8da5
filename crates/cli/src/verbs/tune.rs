//! `coulter tune`: what a volume does meanwhile can be changed.

use crate::control::{self, Reply, Request};
use crate::error::{CliError, DaemonError};
use crate::state::StateDirectory;
use crate::terminal;
use clap::Args;
use coulter::tuning::{CleaningMode, Placement, Reclaim, Retuning, Tuning, VictimPolicy};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Change settings of an attached volume, or show them when none is given.
///
/// They take effect at once and last until the volume is detached or restarted.
#[derive(Debug, Args)]
#[command(after_help = "\
Settings:
  cleaning=paced     in step with the host's writes (as it is at first)
  cleaning=paused    only what it takes for the host to go on
  cleaning=drain     as fast as the device allows until nothing is worth cleaning, then paced
  policy=NAME        which segment is cleaned next: damped-age (as it is at first), cost-benefit,
                     greedy
  placement=NAME     which blocks share segments: lifetime (as it is at first), apart, mixed
  reclaim=NAME       how space is reclaimed: copy-out (as it is at first), hole-fill, threaded

Examples:
  coulter tune disk                        show the settings
  coulter tune disk cleaning=paused        before something that must not be disturbed
  coulter tune disk cleaning=drain         while there is time
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

/// One setting, as it is written on the command line and sent to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Setting {
    /// When the cleaner works, by its name.
    Cleaning(String),
    /// Which segment is cleaned next, by its name.
    Policy(String),
    /// Which blocks share segments, by its name.
    Placement(String),
    /// How space is reclaimed, by its name.
    Reclaim(String),
}

impl Setting {
    /// Adds the setting to those that are to be changed.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub(crate) fn add_to(&self, retuning: &mut Retuning) -> Result<(), String> {
        let wrong = |error: &dyn std::error::Error| error.to_string();
        match self {
            Setting::Cleaning(name) => {
                retuning.cleaning = Some(name.parse().map_err(|error| wrong(&error))?);
            }
            Setting::Policy(name) => {
                retuning.policy = Some(name.parse().map_err(|error| wrong(&error))?);
            }
            Setting::Placement(name) => {
                retuning.placement = Some(name.parse().map_err(|error| wrong(&error))?);
            }
            Setting::Reclaim(name) => {
                retuning.reclaim = Some(name.parse().map_err(|error| wrong(&error))?);
            }
        }
        Ok(())
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
        match key {
            "cleaning" => {
                let mode: CleaningMode = value.parse().map_err(|error| format!("{error}"))?;
                Ok(Setting::Cleaning(mode.name().to_owned()))
            }
            "policy" => {
                let policy: VictimPolicy =
                    value.parse().map_err(|error| format!("policy is {error}"))?;
                Ok(Setting::Policy(policy.to_string()))
            }
            "placement" => {
                let placement: Placement =
                    value.parse().map_err(|error| format!("placement is {error}"))?;
                Ok(Setting::Placement(placement.to_string()))
            }
            "reclaim" => {
                let reclaim: Reclaim =
                    value.parse().map_err(|error| format!("reclaim is {error}"))?;
                Ok(Setting::Reclaim(reclaim.to_string()))
            }
            _ => Err(format!(
                "there is no setting `{key}`; there are `cleaning`, `policy`, `placement` and \
                 `reclaim`"
            )),
        }
    }
}

/// All settings, as `--json` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// When the cleaner works, by its name.
    pub(crate) cleaning: String,
    /// Which segment is cleaned next, by its name.
    pub(crate) policy: String,
    /// Which blocks share segments, by its name.
    pub(crate) placement: String,
    /// How space is reclaimed, by its name.
    pub(crate) reclaim: String,
}

impl From<Tuning> for Settings {
    fn from(tuning: Tuning) -> Settings {
        Settings {
            cleaning: tuning.cleaning.name().to_owned(),
            policy: tuning.policy.to_string(),
            placement: tuning.placement.to_string(),
            reclaim: tuning.reclaim.to_string(),
        }
    }
}

impl Tune {
    pub(crate) fn run(&self, state: &StateDirectory) -> Result<(), CliError> {
        let entry = state.find(&self.volume)?;
        let request = Request::Tune { settings: self.settings.clone() };
        let Reply::Settings(settings) = control::ask(state, &entry, &request)? else {
            let (name, pid) = (entry.name.clone(), entry.process.pid);
            return Err(DaemonError::DaemonSilent { name, pid }.into());
        };
        if self.json {
            return terminal::print_json(&settings);
        }
        if self.settings.is_empty() {
            let Settings { cleaning, policy, placement, reclaim } = settings;
            return terminal::print(&format!(
                "cleaning={cleaning}\npolicy={policy}\nplacement={placement}\nreclaim={reclaim}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_nonsense_is_told_apart() {
        let paused = Setting::Cleaning("paused".to_owned());
        assert_eq!("cleaning=paused".parse(), Ok(paused));
        for (text, reason) in [
            ("cleaning=fast", "paced, paused or drain"),
            ("policy=best", "policy is not one of greedy"),
            ("placement=left", "placement is not one of mixed"),
            ("reclaim=magic", "reclaim is not one of copy-out"),
            ("speed=9", "no setting `speed`"),
            ("cleaning", "KEY=VALUE"),
        ] {
            let error = text.parse::<Setting>().expect_err("nonsense");
            assert!(error.contains(reason), "{error}");
        }
    }
}
