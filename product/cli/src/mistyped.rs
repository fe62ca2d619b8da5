//! Complaints of the parser, made fit for a person who knows other programs: they name the verb for
//! a word from elsewhere, and give no advice that leads astray.

use crate::terminal;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use coulter_terminal::Size;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Words of other programs: below which verb, the word, and what to do instead.
type Known = (&'static str, &'static [&'static str], &'static str);

const KNOWN: &[Known] = &[
    ("", &["version"], "`coulter --version` prints it"),
    (
        "",
        &["fsck", "verify", "validate"],
        "`coulter check PATH` checks a store, `coulter fs check PATH` a Coulter file system",
    ),
    (
        "",
        &["mkfs", "format", "init", "new", "make"],
        "`coulter create PATH --size 10G` makes a volume, `coulter fs create PATH --size 10G` one with \
         a file system",
    ),
    (
        "",
        &["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"],
        "`coulter mount PATH DIR --mkfs ext4` makes a file system in a volume and mounts it",
    ),
    (
        "",
        &["remove", "rm", "delete", "destroy"],
        "`coulter detach NAME` ends the daemon of a volume; its store is a file or disk, which `rm` \
         or `wipefs` removes",
    ),
    ("", &["start", "open", "connect", "up"], "`coulter attach PATH` serves a volume"),
    (
        "",
        &["stop", "eject", "disconnect", "close", "down"],
        "`coulter detach NAME` ends the daemon of a volume, `coulter umount DIR` unmounts first",
    ),
    ("", &["ps", "show", "lsblk"], "`coulter list` lists what is attached"),
    ("", &["df", "du"], "`coulter status NAME` shows the space in use"),
    (
        "",
        &["log", "logs"],
        "the log of a volume is NAME.log in the state directory, as /run/coulter/NAME.log",
    ),
    (
        "",
        &["backup", "copy"],
        "`coulter export STORE IMAGE` copies a volume, `coulter replicate NAME URL` keeps a copy",
    ),
    ("", &["import"], "`coulter create PATH --from IMAGE` makes a volume of an image"),
    ("", &["expand", "extend"], "`coulter grow PATH --size 20G` makes a volume larger"),
    (
        "",
        &["repair", "recover", "rescue"],
        "`coulter scrub NAME` repairs metadata that has a second copy, `coulter salvage STORE IMAGE` \
         takes out what a damaged store holds, `coulter attach --recover PATH` goes on after a \
         killed daemon",
    ),
    ("fs", &["umount", "unmount", "detach", "stop"], "`coulter umount DIR` unmounts it"),
    ("fs", &["list", "ls"], "`coulter list` lists what is mounted"),
    ("fs", &["status", "info", "df"], "`coulter status NAME` shows what it does"),
    ("fs", &["grow", "resize"], "`coulter grow PATH --size 20G` makes it larger"),
    (
        "fs",
        &["mkfs", "make", "format", "new", "init"],
        "`coulter fs create PATH --size 10G` makes one",
    ),
    ("fs", &["fsck", "verify"], "`coulter fs check PATH` checks it"),
    ("fs", &["attach", "start"], "`coulter fs mount PATH DIR` mounts it"),
    (
        "fs",
        &["scrub", "tune", "sync", "snapshot"],
        "that verb stands alone, as `coulter scrub NAME`",
    ),
    ("overlay", &["list", "ls"], "`coulter list` lists overlays, too"),
    (
        "overlay",
        &["umount", "unmount", "remove", "rm", "delete", "stop"],
        "`coulter overlay detach DIR` brings all blocks home and takes the overlay away, `coulter \
         umount DIR` only unmounts",
    ),
    (
        "overlay",
        &["attach", "mount", "create", "add", "start", "on"],
        "`coulter overlay DIR` puts one over a directory",
    ),
    ("overlay", &["info", "show"], "`coulter overlay status DIR` shows what it does"),
    (
        "overlay",
        &["grow", "resize"],
        "`coulter grow STORE` makes the store of a detached overlay larger",
    ),
    ("snapshot", &["restore"], "`coulter restore URL@NAME FILE` makes a store of a snapshot"),
    ("snapshot", &["remove", "rm", "destroy"], "`coulter snapshot delete URL@NAME` deletes one"),
    ("snapshot", &["ls", "show", "status"], "`coulter snapshot list URL` lists them"),
    ("snapshot", &["new", "take", "make", "add"], "`coulter snapshot create URL@NAME` makes one"),
    ("snapshot", &["diff"], "`coulter diff URL@ONE URL@OTHER` shows what differs"),
    ("snapshot", &["clone"], "`coulter clone URL@NAME URL2` makes a volume that begins with it"),
    ("replica", &["check", "scrub", "fsck"], "`coulter replica verify URL` reads all of a copy"),
    (
        "replica",
        &["list", "ls"],
        "`coulter list` lists what is attached, `coulter replica status URL` shows one copy",
    ),
    (
        "overlay",
        &["adopt", "orphans"],
        "there are `coulter overlay list-orphans` and `adopt-orphan`",
    ),
];

/// The same error with advice that helps. `words` is the command line without the program.
pub(crate) fn improved(mut error: Error, words: &[OsString], whole: &Command) -> Error {
    let overlay = overlay_of(whole);
    let is_verb = |word: &String| overlay.find_subcommand(word).is_some();
    if let Some(word) = overlay_verb(&error, words).filter(|word| !is_verb(word)) {
        error = Error::new(ErrorKind::InvalidSubcommand).with_cmd(&overlay);
        error.insert(ContextKind::InvalidSubcommand, ContextValue::String(word));
        let verbs = overlay.get_subcommands().map(|verb| verb.get_name().to_owned());
        let tip = format!(
            "the verbs are {}; a directory is a path",
            verbs.collect::<Vec<_>>().join(", ")
        );
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return with_known(error, words);
    }
    if let Some(extra) = overlay_extra(&error, words) {
        error = Error::new(ErrorKind::UnknownArgument).with_cmd(&overlay);
        error.insert(ContextKind::InvalidArg, ContextValue::String(extra));
    }
    match error.kind() {
        // To pass it behind `--` would only make it a strange name of a file.
        ErrorKind::UnknownArgument => {
            error.remove(ContextKind::Suggested);
            suggest_size(&mut error, words, whole);
        }
        ErrorKind::InvalidSubcommand => {
            error.remove(ContextKind::Suggested);
            keep_likely(&mut error);
            return with_known(error, words);
        }
        _ => {}
    }
    error
}

/// Says how a size is given, where one stands by itself and the verb takes one.
fn suggest_size(error: &mut Error, words: &[OsString], whole: &Command) {
    let verbs = words.iter().filter_map(|word| word.to_str());
    let verb = verbs.clone().fold(whole, |verb, word| verb.find_subcommand(word).unwrap_or(verb));
    if !verb.get_arguments().any(|it| it.get_long() == Some("size")) {
        return;
    }
    let is_size = |word: &&str| {
        let has_unit = word.ends_with(|c: char| c.is_ascii_alphabetic());
        has_unit && word.trim_start_matches('+').parse::<Size>().is_ok()
    };
    let before = |at: usize| at.checked_sub(1).and_then(|at| words[at].to_str()).unwrap_or("");
    let alone = words.iter().enumerate().filter(|(at, _)| !before(*at).starts_with("--"));
    if let Some(size) = alone.filter_map(|(_, word)| word.to_str()).find(is_size) {
        let tip = format!("a size is given by an option: `--size {size}`");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// The word that stands where `overlay` has a verb, if it is none, and no directory either.
fn overlay_verb(error: &Error, words: &[OsString]) -> Option<String> {
    let is_unknown =
        matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::ArgumentConflict);
    let place = words.iter().position(|word| word == "overlay").filter(|_| is_unknown)?;
    let word = words.get(place + 1)?.to_str()?;
    let is_verb = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
    let next = words.get(place + 2).filter(|next| !next.as_encoded_bytes().starts_with(b"-"));
    (is_verb && !word.starts_with('-') && next.is_some() && !Path::new(word).exists())
        .then(|| word.to_owned())
}

/// The word behind the directory of an overlay: the parser takes it for a verb in the wrong place.
fn overlay_extra(error: &Error, words: &[OsString]) -> Option<String> {
    let is_it = error.kind() == ErrorKind::ArgumentConflict;
    let place = words.iter().position(|word| word == "overlay").filter(|_| is_it)?;
    match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(extra) if words[place..].iter().any(|word| *word == **extra) => {
            Some(extra.clone())
        }
        _ => None,
    }
}

fn overlay_of(whole: &Command) -> Command {
    let overlay = whole.find_subcommand("overlay").cloned().unwrap_or_default();
    overlay.bin_name("coulter overlay")
}

/// Leaves a similar word away that would hand a volume over to another host.
fn keep_likely(error: &mut Error) {
    let invalid = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => return,
    };
    let is_likely = |found: &String| found != "move" || invalid.starts_with("mo");
    if let Some(ContextValue::Strings(similar)) = error.remove(ContextKind::SuggestedSubcommand) {
        let similar: Vec<String> = similar.into_iter().filter(is_likely).collect();
        if !similar.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
        }
    }
}

/// With the verb that a word from elsewhere means.
fn with_known(mut error: Error, words: &[OsString]) -> Error {
    let invalid = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => return error,
    };
    let place =
        words.iter().position(|word| *word == *invalid).and_then(|place| place.checked_sub(1));
    let above = place.map(|place| words[place].as_os_str()).filter(|word| is_group(word));
    let above = above.and_then(OsStr::to_str).unwrap_or_default();
    let is_it = |known: &&Known| known.0 == above && known.1.contains(&invalid.as_str());
    if let Some((_, _, tip)) = KNOWN.iter().find(is_it) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
    }
    error
}

/// Refuses a verb, or another program's word for one, in place of an overlay's directory.
///
/// # Errors
/// The verb that is meant, and how a directory of that name is written.
pub(crate) fn check_place(place: &Path, whole: &Command) -> Result<(), Error> {
    let Some(word) = place.to_str() else { return Ok(()) };
    let mut known = KNOWN.iter().filter(|known| known.0 == "overlay");
    let mut verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
    let is_own = |verb: &Command| {
        verb.get_name() == word || verb.get_all_aliases().any(|alias| alias == word)
    };
    let tip = known.find(|known| known.1.contains(&word)).map(|known| known.2.to_owned());
    let tip = tip.or_else(|| verbs.any(is_own).then(|| format!("did you mean `coulter {word}`?")));
    let Some(tip) = tip else { return Ok(()) };
    let words = format!(
        "cannot put an overlay over '{word}'\n  why: '{word}' is a verb\n  do:  {tip} (a directory \
         of that name is ./{word})\n"
    );
    Err(Error::raw(ErrorKind::ValueValidation, words).with_cmd(&overlay_of(whole)))
}

fn is_group(word: &OsStr) -> bool {
    ["fs", "overlay", "snapshot", "replica"].iter().any(|group| word == *group)
}

/// The complaint with the words of the command line on one line each.
pub(crate) fn shown(words: &str, arguments: &[OsString]) -> String {
    let mut text = words.to_owned();
    for argument in arguments {
        let (raw, plain) = (argument.to_string_lossy(), terminal::path(Path::new(argument)));
        if raw != plain {
            text = text.replace(&*raw, &plain);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::CommandLine;
    use clap::{CommandFactory, Parser};

    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let all = [OsString::from("coulter")].into_iter().chain(words.clone());
        let error = CommandLine::try_parse_from(all).expect_err("it is not understood");
        improved(error, &words, &CommandLine::command()).to_string()
    }

    #[test]
    fn words_of_other_programs_lead_to_the_verb_that_does_it() {
        for (line, expected) in [
            ("version", "coulter --version"),
            ("fsck a.img", "coulter fs check PATH"),
            ("mkfs a.img", "coulter fs create PATH"),
            ("mkfs.ext4 a.img", "coulter mount PATH DIR --mkfs ext4"),
            ("remove disk", "coulter detach NAME"),
            ("fs umount /mnt", "coulter umount DIR"),
            ("fs list", "coulter list"),
            ("overlay umount /mnt", "coulter umount DIR"),
            ("overlay list a", "coulter list"),
            ("overlay frobnicate /mnt", "the verbs are status, settle"),
            ("snapshot restore s3://b/v@x d.img", "coulter restore URL@NAME FILE"),
            ("snapshot remove s3://b/v@x", "coulter snapshot delete URL@NAME"),
            ("replica check s3://b/v", "coulter replica verify URL"),
            ("replica list", "coulter list"),
        ] {
            let said = said(line);
            assert!(said.contains(expected), "{line}: {said}");
            assert!(said.contains("subcommand"), "{line}: {said}");
        }
    }

    #[test]
    fn no_advice_leads_astray() {
        for line in
            ["remove x", "resolve x", "list --all", "attach a.img --al", "fs check --all a.img"]
        {
            let said = said(line);
            assert!(!said.contains("as a value") && !said.contains("'move'"), "{line}: {said}");
        }
        assert!(said("atach a.img").contains("'attach'"));
        assert!(said("mov a.img").contains("'move'"));
        assert!(said("overlay /srv/data extra").contains("unexpected argument 'extra'"));
        for verb in ["status", "settle", "check", "detach", "list-orphans"] {
            let said = said(&format!("overlay {verb} /srv/data --jsn"));
            assert!(said.contains("unexpected argument '--jsn'"), "{said}");
            assert!(!said.contains("unrecognized subcommand"), "{said}");
        }
    }

    #[test]
    fn a_verb_in_place_of_an_overlays_directory_is_no_directory() {
        let known = KNOWN.iter().filter(|known| known.0 == "overlay");
        let whole = CommandLine::command();
        let verbs = whole.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs = verbs.map(|verb| verb.get_name());
        let own = whole.find_subcommand("overlay").expect("it is there").get_subcommands();
        let own: Vec<&str> = own.map(|verb| verb.get_name()).collect();
        for word in known.flat_map(|known| known.1).copied().chain(verbs) {
            if own.contains(&word) {
                continue;
            }
            let said = check_place(Path::new(word), &whole).expect_err(word).to_string();
            assert!(said.contains("`coulter") && said.contains(&format!("./{word}")), "{said}");
        }
        for place in ["./list", "data", "/list"] {
            assert!(check_place(Path::new(place), &whole).is_ok(), "{place}");
        }
    }

    #[test]
    fn every_tip_names_a_verb_that_there_is() {
        let whole = CommandLine::command();
        for (above, words, tip) in KNOWN {
            let group = if above.is_empty() { Some(&whole) } else { whole.find_subcommand(above) };
            let group = group.expect("there is such a verb");
            let known = |word: &&str| group.find_subcommand(word).is_some();
            assert_eq!(words.iter().find(|word| known(word)), None, "{above}");
            for command in tip.split("`coulter ").skip(1) {
                let verb = command.split([' ', '`']).next().unwrap_or_default();
                let is_there = verb == "--version" || whole.find_subcommand(verb).is_some();
                assert!(is_there, "{tip}");
            }
        }
    }
}
