//! What tests need of the machine they run on.
//!
//! Where a need is not met a test is skipped, and says so past the capture of passing tests' output. A skip
//! counts as a pass, so a machine that is to test everything, such as the one of continuous integration, names
//! what it has in `COULTER_REQUIRE`, as `root,loop,fuse`: there a skip for want of it is a failure.

use std::fs::File;
use std::io::{self, Write};
use std::process::Command;

/// What names the needs that must be met.
const VARIABLE: &str = "COULTER_REQUIRE";

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The rights of the superuser.
    Root,
    /// Loop devices.
    Loop,
    /// FUSE.
    Fuse,
}

impl Need {
    const ALL: [Need; 3] = [Need::Root, Need::Loop, Need::Fuse];

    /// As it is written in the variable.
    pub fn word(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::Loop => "loop",
            Need::Fuse => "fuse",
        }
    }

    fn is_met(self) -> bool {
        let usable = |path: &str| File::options().read(true).write(true).open(path).is_ok();
        match self {
            Need::Root => rustix::process::geteuid().is_root(),
            Need::Loop => usable("/dev/loop-control"),
            Need::Fuse => usable("/dev/fuse"),
        }
    }
}

/// Whether `test` has all that it needs; says loudly if not.
///
/// # Panics
/// When something is missing that must be there.
#[track_caller]
pub fn has(test: &str, needs: &[Need]) -> bool {
    let missing: Vec<&str> =
        needs.iter().filter(|need| !need.is_met()).map(|need| need.word()).collect();
    let required = std::env::var(VARIABLE).unwrap_or_default();
    match verdict(test, &missing, &required) {
        Ok(None) => true,
        Ok(Some(reason)) => {
            skipped(&reason);
            false
        }
        Err(reason) => panic!("{reason}"),
    }
}

/// True if this process may mount; else says loudly what is missing.
#[track_caller]
pub fn may_mount() -> bool {
    has("mounting", &[Need::Root, Need::Fuse])
}

/// True if `program` can be run; else says loudly that it is missing.
pub fn has_program(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        skipped(&format!("{program} is not installed"));
    }
    found
}

/// Why a test is skipped that lacks what is `missing`, if it is; or why it fails.
fn verdict(test: &str, missing: &[&str], required: &str) -> Result<Option<String>, String> {
    let required: Vec<&str> =
        required.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let is_known = |word: &&&str| Need::ALL.iter().any(|need| need.word() == **word);
    if let Some(unknown) = required.iter().find(|word| !is_known(word)) {
        return Err(format!("{VARIABLE} names {unknown}, which is none of root, loop, fuse"));
    }
    if missing.is_empty() {
        return Ok(None);
    }
    let words = missing.join(", ");
    match missing.iter().any(|word| required.contains(word)) {
        true => Err(format!("{test}: needs {words}, and {VARIABLE} says that it must be there")),
        false => Ok(Some(format!("{test}: needs {words}"))),
    }
}

/// Says loudly, past the capture of passing tests' output, that something was not tested.
pub fn skipped(what: &str) {
    let _ = writeln!(io::stderr(), "\nSKIPPED: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_a_failure_where_what_is_missing_is_required() {
        assert_eq!(verdict("a", &[], "root,loop,fuse"), Ok(None));
        assert_eq!(verdict("a", &["loop"], ""), Ok(Some("a: needs loop".to_owned())));
        assert!(verdict("a", &["loop"], "root").is_ok_and(|reason| reason.is_some()));
        assert!(verdict("a", &["loop", "fuse"], "root, fuse").is_err());
    }

    #[test]
    fn a_need_that_there_is_not_is_no_need_that_is_met() {
        let refused = verdict("a", &[], "root,lopp").expect_err("it is a slip of the hand");
        assert!(refused.contains("lopp"), "{refused}");
    }
}
