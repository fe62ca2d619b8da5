//! What may be written behind `--via`: the attach points that need no more than their word, and `auto`.

use crate::error::{CliError, DaemonError};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use coulter_daemon::opening::Acknowledge;
use coulter_daemon::points::{self, Afterlife, KINDS, NbdServerPoint};
use coulter_daemon::{Kind, Point};
use std::fmt;

/// The word for whatever is best.
const AUTO: &str = "auto";

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViaChoice {
    /// Whatever is best.
    Auto,
    /// This.
    Kind(&'static dyn Kind),
}

/// Reads one, and lists them all.
pub fn parser() -> impl TypedValueParser<Value = ViaChoice> {
    let plain = KINDS.into_iter().filter(|kind| kind.plain().is_some()).map(|kind| kind.word());
    PossibleValuesParser::new([AUTO].into_iter().chain(plain)).map(|word| match &*word {
        AUTO => ViaChoice::Auto,
        word => ViaChoice::Kind(
            points::by_word(word).unwrap_or_else(|| unreachable!("only words are let through")),
        ),
    })
}

impl ViaChoice {
    /// This, or the best that there is, and in words which and why then.
    ///
    /// # Errors
    /// When the one that was asked for cannot be had.
    pub fn resolved(
        self,
        acknowledge: Acknowledge,
    ) -> Result<(ViaChoice, Option<String>), CliError> {
        match self {
            ViaChoice::Auto => {
                let (kind, words) = best(|kind| match kind.outlives(acknowledge) {
                    true => Err("its device would outlive the daemon".to_owned()),
                    false => kind.check(),
                });
                Ok((ViaChoice::Kind(kind), Some(words)))
            }
            ViaChoice::Kind(kind) if kind.outlives(acknowledge) => {
                Err(DaemonError::BufferedOutlived { device: None }.into())
            }
            ViaChoice::Kind(kind) => check(kind).map(|()| (self, None)),
        }
    }

    /// The attach point. `auto` counts as the last resort here: it is resolved before.
    pub fn point(self) -> Box<dyn Point> {
        let plain = match self {
            ViaChoice::Auto => None,
            ViaChoice::Kind(kind) => kind.plain(),
        };
        plain.unwrap_or_else(|| Box::new(NbdServerPoint::InState))
    }

    /// The attach point for what dies with its process, so that no device may wait for another.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn point_of_mortal(self) -> Result<Box<dyn Point>, CliError> {
        let mortal = |kind: &dyn Kind| match kind.afterlife() {
            Afterlife::None => Ok(()),
            Afterlife::Waits | Afterlife::WaitsIfAllowed => {
                let reason =
                    "what it shows is lost with its process, and its devices would wait for ever";
                Err(reason.to_owned())
            }
        };
        let kind = match self {
            ViaChoice::Auto => best(|kind| mortal(kind).and_then(|()| kind.check())).0,
            ViaChoice::Kind(kind) => {
                let unavailable = |reason| DaemonError::ViaUnavailable { via: kind.word(), reason };
                mortal(kind).map_err(unavailable)?;
                check(kind).map(|()| kind)?
            }
        };
        Ok(ViaChoice::Kind(kind).point())
    }
}

impl fmt::Display for ViaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ViaChoice::Auto => AUTO,
            ViaChoice::Kind(kind) => kind.word(),
        })
    }
}

/// Fails unless one can be had.
fn check(kind: &'static dyn Kind) -> Result<(), CliError> {
    match kind.needs_root() {
        Some(what) if !rustix::process::geteuid().is_root() => {
            let help = "run it with sudo, or use --via nbd-server, which needs no root";
            Err(CliError::needs_root(what, help))
        }
        _ => kind
            .check()
            .map_err(|reason| DaemonError::ViaUnavailable { via: kind.word(), reason }.into()),
    }
}

/// The first that may be chosen by itself and passes `check`, and in words what was passed over. No
/// device may outlive a daemon that has in memory only what it has acknowledged.
fn best(check: impl Fn(&dyn Kind) -> Result<(), String>) -> (&'static dyn Kind, String) {
    let mut passed_over = String::new();
    for kind in KINDS.into_iter().filter(|kind| kind.is_automatic()) {
        match check(kind) {
            Ok(()) => return (kind, format!("via {}{passed_over}", kind.word())),
            Err(reason) => {
                let separator = if passed_over.is_empty() { ", as" } else { ";" };
                passed_over.push_str(&format!("{separator} {}: {reason}", kind.word()));
            }
        }
    }
    unreachable!("a server can always be had")
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter_daemon::points::{Loop, Nbd, NbdServer, Nvme, Ublk};

    #[test]
    fn nothing_that_waits_is_made_of_what_dies_with_its_process() {
        for kind in [&Ublk as &dyn Kind, &Nbd, &Nvme] {
            let refused = ViaChoice::Kind(kind).point_of_mortal().expect_err("it would wait");
            assert!(refused.report().to_string().contains("wait for ever"), "{kind:?}");
        }
        let chosen = ViaChoice::Auto.point_of_mortal().expect("there is always a server");
        assert_eq!(chosen.kind().afterlife(), Afterlife::None);
        assert!([&Loop as &dyn Kind, &NbdServer].contains(&chosen.kind()), "{chosen:?}");
    }

    #[test]
    fn what_is_passed_over_is_told_with_its_reason() {
        let only = |kind: &dyn Kind| {
            if kind.word() == "nbd-server" { Ok(()) } else { Err("no".to_owned()) }
        };
        let (kind, words) = best(only);
        assert_eq!(kind.word(), "nbd-server");
        assert_eq!(words, "via nbd-server, as ublk: no; nbd: no; loop: no");
    }
}
