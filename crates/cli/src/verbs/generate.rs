//! `coulter generate` (hidden): man pages and shell completions from the definition of the
//! command line, for packagers and for `make man completions`.

use crate::command::CommandLine;
use crate::error::CliError;
use crate::output::{Kind, Output};
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::{Generator, Shell};
use std::fs;
use std::path::PathBuf;

/// Write man pages or shell completions.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// What to write
    #[arg(value_enum)]
    pub(crate) what: What,

    /// Where to write it; made if it is missing
    pub(crate) directory: PathBuf,
}

/// What can be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    Man,
    Completions,
}

impl Generate {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let failed = |source| CliError::io("write to", &self.directory, source);
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let (kind, files) = match self.what {
            What::Man => (Kind::MAN, man_pages().map_err(failed)?),
            What::Completions => (Kind::COMPLETIONS, completions()),
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

/// `coulter.1` and one page per visible verb.
fn man_pages() -> std::io::Result<Files> {
    let mut command = CommandLine::command();
    command.build();
    let visible: Vec<clap::Command> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    let page = |command| {
        let (page, mut content) = (clap_mangen::Man::new(command), Vec::new());
        page.render(&mut content)?;
        Ok((page.get_filename(), content))
    };
    std::iter::once(command).chain(visible).map(page).collect()
}

fn completions() -> Files {
    let of = |shell: Shell| {
        let mut content = Vec::new();
        clap_complete::generate(shell, &mut CommandLine::command(), "coulter", &mut content);
        (shell.file_name("coulter"), content)
    };
    [Shell::Bash, Shell::Zsh, Shell::Fish].map(of).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(what: What) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("deep/er");
        Generate { what, directory: path.clone() }.run().expect("the directory is writable");
        let mut names: Vec<String> = fs::read_dir(&path)
            .expect("it was made")
            .map(|file| file.expect("it is readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn every_visible_verb_has_a_man_page() {
        let names = generated(What::Man);
        assert!(names.contains(&"coulter.1".to_owned()));
        for verb in CommandLine::command().get_subcommands() {
            let page = format!("coulter-{}.1", verb.get_name());
            assert_eq!(names.contains(&page), !verb.is_hide_set(), "{page}");
        }
    }

    #[test]
    fn three_shells_have_completions() {
        assert_eq!(generated(What::Completions), ["_coulter", "coulter.bash", "coulter.fish"]);
    }

    #[test]
    fn what_is_there_is_replaced_if_it_is_of_the_same_kind() {
        for (what, name) in [(What::Man, "coulter-list.1"), (What::Completions, "coulter.fish")] {
            let directory = tempfile::tempdir().expect("a temporary directory can be made");
            let generate = Generate { what, directory: directory.path().to_owned() };
            generate.run().expect("the directory is writable");
            generate.run().expect("everything is of its kind");
            let path = directory.path().join(name);
            fs::write(&path, "something else").expect("it is writable");
            let others = fs::read_dir(directory.path()).expect("it is readable").flatten();
            let others: Vec<_> = others.map(|file| file.path()).filter(|it| *it != path).collect();
            others.iter().for_each(|other| fs::remove_file(other).expect("it is ours"));
            generate.run().expect_err("that is of another kind");
            assert_eq!(fs::read(&path).expect("it is there"), b"something else");
            assert_eq!(fs::read_dir(directory.path()).expect("it is readable").count(), 1);
        }
    }
}
