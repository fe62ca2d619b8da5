//! Settings of an open volume: as they are typed, sent to its daemon, and shown.

use coulter::tuning::{
    CleaningMode, CleaningRate, IdleAfter, LatencyTarget, Placement, Reclaim, Retuning,
    SpacePatience, Tuning, VictimPolicy,
};
use coulter_terminal::Size;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The keys of all settings.
pub fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.split(", ")
}

/// The keys, for who types another one.
const KEYS: &str = "cleaning, policy, placement, reclaim, cleaning-rate, latency-target, idle-cleaning, \
                    idle-after, defrag, space-patience";

/// One setting to be changed. Names and numbers, so that a daemon of another version can tell what
/// it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// When the cleaner works, by its name.
    Cleaning(String),
    /// Which segment is cleaned next, by its name.
    Policy(String),
    /// Which blocks share segments, by its name.
    Placement(String),
    /// How space is reclaimed, by its name.
    Reclaim(String),
    /// Bytes per second that cleaning may read; `None` for any number.
    CleaningRate(Option<u64>),
    /// Nanoseconds that writes should take at the most; `None` for any time.
    LatencyTarget(Option<u64>),
    /// Whether segments are cleaned ahead while the host is idle.
    IdleCleaning(bool),
    /// Nanoseconds without a request after which the host is idle.
    IdleAfter(u64),
    /// Whether to write what is scattered anew in the host's order.
    Defrag(bool),
    /// Nanoseconds that writes wait for space below the store.
    SpacePatience(u64),
}

impl Setting {
    /// Adds the setting to those that are to be changed.
    ///
    /// # Errors
    /// What is wrong with the value.
    fn add_to(&self, retuning: &mut Retuning) -> Result<(), String> {
        match self {
            Setting::Cleaning(name) => retuning.cleaning = Some(checked(name.parse())?),
            Setting::Policy(name) => retuning.policy = Some(checked(name.parse())?),
            Setting::Placement(name) => retuning.placement = Some(checked(name.parse())?),
            Setting::Reclaim(name) => retuning.reclaim = Some(checked(name.parse())?),
            Setting::CleaningRate(bytes) => retuning.cleaning_rate = Some(rate(*bytes)?),
            Setting::LatencyTarget(ns) => retuning.latency_target = Some(target(*ns)?),
            Setting::Defrag(is_on) => retuning.defrag = Some(*is_on),
            Setting::IdleCleaning(is_on) => retuning.idle_cleaning = Some(*is_on),
            Setting::IdleAfter(ns) => {
                retuning.idle_after = Some(checked(IdleAfter::after(Duration::from_nanos(*ns)))?);
            }
            Setting::SpacePatience(ns) => {
                let patience = SpacePatience::of(Duration::from_nanos(*ns));
                retuning.space_patience = Some(checked(patience)?);
            }
        }
        Ok(())
    }
}

/// All of them together; of those with the same key the last.
///
/// # Errors
/// What is wrong with one of them.
pub fn retuning(settings: &[Setting]) -> Result<Retuning, String> {
    let mut retuning = Retuning::default();
    settings.iter().try_for_each(|setting| setting.add_to(&mut retuning))?;
    Ok(retuning)
}

/// A setting with which a volume is to be opened.
///
/// # Errors
/// What is wrong with it; and for a command, which would be given anew by every restart.
pub fn at_opening(text: &str) -> Result<Setting, String> {
    match text.parse()? {
        Setting::Defrag(_) => {
            Err("defrag is no setting to begin with: it goes over an open volume once; give it \
                 to `coulter tune`"
                .to_owned())
        }
        setting => Ok(setting),
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
        let setting = match key {
            "cleaning" => value
                .parse::<CleaningMode>()
                .map_err(said)
                .map(|mode| Setting::Cleaning(mode.to_string())),
            "policy" => value
                .parse::<VictimPolicy>()
                .map_err(said)
                .map(|policy| Setting::Policy(policy.to_string())),
            "placement" => value
                .parse::<Placement>()
                .map_err(said)
                .map(|placement| Setting::Placement(placement.to_string())),
            "reclaim" => value
                .parse::<Reclaim>()
                .map_err(said)
                .map(|reclaim| Setting::Reclaim(reclaim.to_string())),
            "cleaning-rate" => unless_none(value, bytes_of).map(Setting::CleaningRate),
            "latency-target" => unless_none(value, nanoseconds_of).map(Setting::LatencyTarget),
            "idle-cleaning" => on_or_off(value).map(Setting::IdleCleaning),
            "defrag" => on_or_off(value).map(Setting::Defrag),
            "idle-after" => nanoseconds_of(value).map(Setting::IdleAfter),
            "space-patience" => nanoseconds_of(value).map(Setting::SpacePatience),
            _ => return Err(format!("there is no setting `{key}`; there are {KEYS}")),
        };
        let told = |reason: String| format!("{key} is {reason}");
        let setting = setting.map_err(told)?;
        // What the daemon would refuse is refused before it is asked.
        setting.add_to(&mut Retuning::default()).map_err(told)?;
        Ok(setting)
    }
}

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

fn checked<T, E: fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(said)
}

fn rate(bytes: Option<u64>) -> Result<CleaningRate, String> {
    bytes.map_or(Ok(CleaningRate::NONE), |bytes| checked(CleaningRate::limited_to(bytes)))
}

fn target(ns: Option<u64>) -> Result<LatencyTarget, String> {
    let within = |ns| checked(LatencyTarget::within(Duration::from_nanos(ns)));
    ns.map_or(Ok(LatencyTarget::NONE), within)
}

fn unless_none<T>(
    value: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if value == "none" {
        return Ok(None);
    }
    parse(value).map(Some).map_err(|reason| format!("{reason}, or none"))
}

/// Bytes in a second; `50M` and `50M/s` are the same.
fn bytes_of(value: &str) -> Result<u64, String> {
    let size = value.strip_suffix("/s").unwrap_or(value).parse::<Size>();
    size.map(|size| size.0).map_err(|error| format!("no rate: {error}"))
}

fn nanoseconds_of(value: &str) -> Result<u64, String> {
    let time = humantime::parse_duration(value);
    let time = time.map_err(|error| format!("no time such as 20ms or 1s: {error}"))?;
    // What does not fit is out of any range all the same.
    Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn on_or_off(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("either on or off".to_owned()),
    }
}

/// All settings, as `--json` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// When the cleaner works, by its name.
    pub cleaning: String,
    /// Which segment is cleaned next, by its name.
    pub policy: String,
    /// Which blocks share segments, by its name.
    pub placement: String,
    /// How space is reclaimed, by its name.
    pub reclaim: String,
    /// What cleaning may read in a second; `null` without a limit.
    pub cleaning_rate_bytes_per_second: Option<u64>,
    /// Above what latency of the host's writes cleaning waits; `null` without a target.
    pub latency_target_ns: Option<u64>,
    /// Whether segments are cleaned ahead while the host is idle.
    pub idle_cleaning: bool,
    /// How long the host asks for nothing before it counts as idle.
    pub idle_after_ns: u64,
    /// Whether what is scattered is being written anew in the host's order.
    pub defrag: bool,
    /// How long writes wait for space below the store.
    pub space_patience_ns: u64,
}

impl From<Tuning> for Settings {
    fn from(tuning: Tuning) -> Settings {
        // The longest time that a setting can have is a day.
        let ns = |time: Duration| {
            assert!(time.as_secs() <= 86_400, "a time longer than a setting can have");
            time.as_nanos() as u64
        };
        Settings {
            cleaning: tuning.cleaning.to_string(),
            policy: tuning.policy.to_string(),
            placement: tuning.placement.to_string(),
            reclaim: tuning.reclaim.to_string(),
            cleaning_rate_bytes_per_second: tuning.cleaning_rate.bytes_per_second(),
            latency_target_ns: tuning.latency_target.time().map(ns),
            idle_cleaning: tuning.idle_cleaning,
            idle_after_ns: ns(tuning.idle_after.time()),
            defrag: tuning.defrag,
            space_patience_ns: ns(tuning.space_patience.time()),
        }
    }
}

impl Settings {
    /// One by one.
    fn each(&self) -> [Setting; 10] {
        [
            Setting::Cleaning(self.cleaning.clone()),
            Setting::Policy(self.policy.clone()),
            Setting::Placement(self.placement.clone()),
            Setting::Reclaim(self.reclaim.clone()),
            Setting::CleaningRate(self.cleaning_rate_bytes_per_second),
            Setting::LatencyTarget(self.latency_target_ns),
            Setting::IdleCleaning(self.idle_cleaning),
            Setting::IdleAfter(self.idle_after_ns),
            Setting::Defrag(self.defrag),
            Setting::SpacePatience(self.space_patience_ns),
        ]
    }
}

impl fmt::Display for Settings {
    /// As they would be typed, one a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.each().iter().try_for_each(|setting| writeln!(f, "{setting}"))
    }
}

impl fmt::Display for Setting {
    /// As it would be typed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = || "none".to_owned();
        let time = |ns| humantime::format_duration(Duration::from_nanos(ns)).to_string();
        let switch = |is_on| if is_on { "on" } else { "off" };
        match self {
            Setting::Cleaning(name) => write!(f, "cleaning={name}"),
            Setting::Policy(name) => write!(f, "policy={name}"),
            Setting::Placement(name) => write!(f, "placement={name}"),
            Setting::Reclaim(name) => write!(f, "reclaim={name}"),
            Setting::CleaningRate(bytes) => {
                write!(f, "cleaning-rate={}", bytes.map_or_else(none, typed_size))
            }
            Setting::LatencyTarget(ns) => {
                write!(f, "latency-target={}", ns.map_or_else(none, time))
            }
            Setting::IdleCleaning(is_on) => write!(f, "idle-cleaning={}", switch(*is_on)),
            Setting::IdleAfter(ns) => write!(f, "idle-after={}", time(*ns)),
            Setting::Defrag(is_on) => write!(f, "defrag={}", switch(*is_on)),
            Setting::SpacePatience(ns) => write!(f, "space-patience={}", time(*ns)),
        }
    }
}

/// A size that can be typed again: exact, in the largest unit of which it is a multiple.
fn typed_size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let found = units.iter().find(|(shift, _)| bytes.is_multiple_of(1 << shift));
    found.map_or_else(
        || bytes.to_string(),
        |(shift, unit)| {
            assert_eq!(bytes >> shift << shift, bytes, "another size would be typed");
            format!("{}{unit}", bytes >> shift)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_nonsense_is_told_apart() {
        for (text, setting) in [
            ("cleaning=paused", Setting::Cleaning("paused".to_owned())),
            ("cleaning-rate=50M", Setting::CleaningRate(Some(50 << 20))),
            ("cleaning-rate=1.5G/s", Setting::CleaningRate(Some(3 << 29))),
            ("cleaning-rate=none", Setting::CleaningRate(None)),
            ("latency-target=20ms", Setting::LatencyTarget(Some(20_000_000))),
            ("latency-target=none", Setting::LatencyTarget(None)),
            ("idle-cleaning=on", Setting::IdleCleaning(true)),
            ("idle-after=1h", Setting::IdleAfter(3_600_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(setting), "{text}");
        }
        for (text, reason) in [
            ("cleaning=fast", "cleaning is not one of paced, paused, drain"),
            ("policy=best", "policy is not one of greedy"),
            ("placement=left", "placement is not one of mixed"),
            ("reclaim=magic", "reclaim is not one of copy-out"),
            ("speed=9", "no setting `speed`"),
            ("cleaning", "KEY=VALUE"),
            ("cleaning-rate=-5M", "no rate"),
            ("cleaning-rate=0", "from 1M to 1T"),
            ("cleaning-rate=50X", "'X' is not a unit"),
            ("cleaning-rate=9999999P", "larger than"),
            ("cleaning-rate=", "or none"),
            ("latency-target=-1ms", "no time"),
            ("latency-target=20", "no time"),
            ("latency-target=20lightyears", "no time"),
            ("latency-target=1us", "from 100us to 10s"),
            ("latency-target=300years", "from 100us to 10s"),
            ("idle-cleaning=maybe", "either on or off"),
            ("defrag=2", "either on or off"),
            ("idle-after=none", "no time"),
            ("idle-after=2h", "from 10ms to 1h"),
            ("space-patience=0s", "from 1s to 24h"),
        ] {
            let error = text.parse::<Setting>().expect_err("nonsense");
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn of_two_settings_of_a_key_the_last_counts() {
        let typed = ["policy=greedy", "reclaim=threaded", "policy=cost-benefit"];
        let settings = typed.map(|text| at_opening(text).expect("it is a setting"));
        let expected = Retuning {
            policy: Some(VictimPolicy::CostBenefit),
            reclaim: Some(Reclaim::Threaded),
            ..Retuning::default()
        };
        assert_eq!(retuning(&settings), Ok(expected));
    }

    #[test]
    fn a_volume_is_opened_with_settings_and_not_with_commands() {
        for text in ["defrag=on", "defrag=off"] {
            let error = at_opening(text).expect_err("it is a command");
            assert!(error.contains("give it to `coulter tune`"), "{error}");
        }
        for text in ["policy=best", "defrag=2", "speed=9", "cleaning"] {
            assert_eq!(at_opening(text), text.parse::<Setting>(), "the same words");
        }
    }

    #[test]
    fn what_is_shown_can_be_typed() {
        let mut settings = Settings::from(Tuning::default());
        settings.cleaning_rate_bytes_per_second = Some(1_234_567);
        settings.latency_target_ns = Some(1_500_000);
        let lines = settings.to_string();
        let typed: Vec<Setting> =
            lines.lines().map(|line| line.parse().expect("it can be typed")).collect();
        assert_eq!(typed, settings.each());
        assert!(settings.to_string().contains("cleaning-rate=1234567\n"));
        assert_eq!((typed_size(50 << 20), typed_size(3 << 29)), ("50M".into(), "1536M".into()));
    }
}
