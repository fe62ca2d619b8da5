//! `coulter generate` (hidden): man pages and shell completions from the definition of the
//! command line, for packagers and for `make man completions`.

use crate::completion_words;
use crate::error::CliError;
use crate::man_page;
use crate::output::{Kind, Output};
use clap::{Args, Command, ValueEnum};
use clap_complete::{Generator, Shell};
use std::fs;
use std::path::PathBuf;

/// Write man pages or shell completions.
#[derive(Debug, Args)]
pub struct Generate {
    /// What to write
    #[arg(value_enum)]
    pub what: What,

    /// Where to write it; made if it is missing
    pub directory: PathBuf,
}

/// What can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(
    missing_docs,
    reason = "the words of the command line; what stands here would be in the help"
)]
pub enum What {
    Man,
    Completions,
}

impl Generate {
    /// Writes what was asked for, of the program that `definition` defines.
    ///
    /// # Errors
    /// When a file cannot be written, or something else is in its place.
    pub fn run(&self, definition: &dyn Fn() -> Command) -> Result<(), CliError> {
        let failed = |source| CliError::io("write to", &self.directory, source);
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let (kind, files) = match self.what {
            What::Man => (Kind::MAN, man_pages(definition()).map_err(failed)?),
            What::Completions => (Kind::COMPLETIONS, completions(&definition())),
        };
        let output = |(name, content): (String, Vec<u8>)| {
            Ok((Output::check(&self.directory.join(name), kind)?, content))
        };
        // All are looked at before the first is written.
        let outputs: Vec<_> = files.into_iter().map(output).collect::<Result<_, CliError>>()?;
        outputs.iter().try_for_each(|(output, content)| output.write(content))
    }
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// A page for the program, and a page for each visible verb and for each of its parts: pages refer to those.
/// None of `help`, which prints what the pages say.
fn man_pages(whole: Command) -> std::io::Result<Files> {
    let mut whole = whole.disable_help_subcommand(true);
    whole.build();
    let (mut files, mut waiting) = (Files::new(), vec![whole]);
    // The definition is finite, and no verb contains itself.
    while let Some(command) = waiting.pop() {
        waiting.extend(visible_parts(&command).cloned());
        files.push(man_page::page(command)?);
    }
    Ok(files)
}

fn completions(whole: &Command) -> Files {
    let mut command = without_hidden_parts(whole);
    let program = whole.get_name();
    let mut of = |shell: Shell| {
        let mut content = Vec::new();
        clap_complete::generate(shell, &mut command, program, &mut content);
        if program == "coulter" {
            content.extend(completion_words::addition(shell).into_bytes());
        }
        (shell.file_name(program), content)
    };
    [Shell::Bash, Shell::Zsh, Shell::Fish].map(&mut of).into()
}

fn visible_parts(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|part| !part.is_hide_set())
}

/// The command line as far as it is told of: the scripts would offer what is hidden as well.
/// A definition cannot be made smaller, so this is another one, with what completions are made of.
fn without_hidden_parts(whole: &Command) -> Command {
    let verb = |verb: &Command| with_parts(verb, visible_parts(verb).cloned());
    with_parts(whole, visible_parts(whole).map(verb)).disable_help_subcommand(true)
}

fn with_parts(command: &Command, parts: impl IntoIterator<Item = Command>) -> Command {
    let version = command.get_version().map(str::to_owned);
    let other = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().cloned())
        .subcommands(parts);
    let other = version.into_iter().fold(other, |other, version| other.version(version));
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let other = about.into_iter().fold(other, |other, about| other.about(about));
    long_about.into_iter().fold(other, |other, about| other.long_about(about))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::CommandLine;
    use clap::CommandFactory;
    use std::collections::{BTreeMap, BTreeSet};

    /// Names and texts.
    fn generated(what: What) -> BTreeMap<String, String> {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("deep/er");
        Generate { what, directory: path.clone() }
            .run(&CommandLine::command)
            .expect("the directory is writable");
        let file = |file: std::io::Result<fs::DirEntry>| {
            let file = file.expect("it is readable");
            let text = fs::read_to_string(file.path()).expect("it is text");
            (file.file_name().to_string_lossy().into_owned(), text)
        };
        fs::read_dir(&path).expect("it was made").map(file).collect()
    }

    /// A row for each visible verb and each of its parts, in the order of the help.
    fn verb_rows() -> String {
        let whole = CommandLine::command();
        let verbs = visible_parts(&whole).flat_map(|verb| {
            let parts =
                visible_parts(verb).map(move |part| (format!("{} ", verb.get_name()), part));
            std::iter::once((String::new(), verb)).chain(parts)
        });
        let row = |(path, verb): (String, &Command)| {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
            let aliases = verb.get_visible_aliases().map(|alias| format!(" (`{alias}`)"));
            let aliases: String = aliases.collect();
            format!("| `{path}{}`{aliases} | {about} |\n", verb.get_name())
        };
        verbs.map(row).collect()
    }

    #[test]
    fn the_page_of_verbs_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let page = fs::read_to_string(path).expect("the documentation is there");
        let (before, rest) = page.split_once("<!-- verbs begin").expect("the table begins");
        let (mark, rest) = rest.split_once("-->\n").expect("its mark ends");
        let (table, after) = rest.split_once("<!-- verbs end -->").expect("the table ends");
        let fresh = format!("\n| verb | what it does |\n|---|---|\n{}\n", verb_rows());
        if std::env::var_os("COULTER_BLESS").is_some() {
            let page =
                format!("{before}<!-- verbs begin{mark}-->\n{fresh}<!-- verbs end -->{after}");
            fs::write(path, page).expect("it is writable");
            return;
        }
        assert!(table == fresh, "docs/cli.md has other verbs; COULTER_BLESS=1 renews them");
    }

    #[test]
    fn every_visible_verb_has_a_man_page() {
        let pages = generated(What::Man);
        assert!(pages.contains_key("coulter.8"));
        for verb in CommandLine::command().get_subcommands() {
            let page = format!("coulter-{}.8", verb.get_name());
            assert_eq!(pages.contains_key(&page), !verb.is_hide_set(), "{page}");
        }
    }

    #[test]
    fn help_has_no_man_pages() {
        let pages = generated(What::Man);
        let help: Vec<&String> = pages.keys().filter(|page| page.contains("-help")).collect();
        assert!(help.is_empty(), "{help:?}");
        let told: Vec<_> = pages.iter().filter(|(_, text)| text.contains("help(8)")).collect();
        assert!(told.is_empty(), "{told:?}");
    }

    #[test]
    fn every_man_page_that_is_referred_to_is_there() {
        let pages = generated(What::Man);
        let mut referred = BTreeSet::new();
        for text in pages.values() {
            // `coulter\-mount(8)`, between spaces or at the end of a line.
            let words = text.split_whitespace().filter_map(|word| word.split_once("(8)"));
            let names = words.map(|(name, _)| name.replace('\\', ""));
            referred.extend(names.filter(|name| name.starts_with("coulter-")));
        }
        assert!(referred.contains("coulter-mount"), "{referred:?}");
        let missing: Vec<&String> =
            referred.iter().filter(|name| !pages.contains_key(&format!("{name}.8"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(!pages.contains_key("coulter-daemon.8"), "it is internal");
    }

    #[test]
    fn three_shells_have_completions() {
        let files = generated(What::Completions);
        let names: Vec<&String> = files.keys().collect();
        assert_eq!(names, ["_coulter", "coulter.bash", "coulter.fish"]);
    }

    #[test]
    fn completions_offer_what_is_visible_and_nothing_else() {
        for (name, text) in generated(What::Completions) {
            for word in ["attach", "salvage", "--state-directory", "--map-memory", "--version"] {
                let word = if name.ends_with("fish") { word.trim_start_matches('-') } else { word };
                assert!(text.contains(word), "{name} lacks {word}");
            }
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
            let hidden = words.find(|word| ["daemon", "generate"].contains(word));
            // The word stands in explanations.
            let hidden = hidden.filter(|_| name.ends_with("bash"));
            assert_eq!(hidden, None, "{name}");
        }
    }

    #[test]
    fn what_is_there_is_replaced_if_it_is_of_the_same_kind() {
        for (what, name) in [(What::Man, "coulter-list.8"), (What::Completions, "coulter.fish")] {
            let directory = tempfile::tempdir().expect("a temporary directory can be made");
            let generate = Generate { what, directory: directory.path().to_owned() };
            generate.run(&CommandLine::command).expect("the directory is writable");
            generate.run(&CommandLine::command).expect("everything is of its kind");
            let path = directory.path().join(name);
            fs::write(&path, "something else").expect("it is writable");
            let others = fs::read_dir(directory.path()).expect("it is readable").flatten();
            let others: Vec<_> = others.map(|file| file.path()).filter(|it| *it != path).collect();
            others.iter().for_each(|other| fs::remove_file(other).expect("it is ours"));
            generate.run(&CommandLine::command).expect_err("that is of another kind");
            assert_eq!(fs::read(&path).expect("it is there"), b"something else");
            assert_eq!(fs::read_dir(directory.path()).expect("it is readable").count(), 1);
        }
    }
}
