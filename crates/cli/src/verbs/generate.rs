//! `coulter generate` (hidden): man pages and shell completions from the definition of the
//! command line, for packagers and for `make man completions`.

use crate::command::CommandLine;
use crate::error::CliError;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

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
        match self.what {
            What::Man => write_man(&self.directory),
            What::Completions => write_completions(&self.directory),
        }
        .map_err(failed)
    }
}

/// `coulter.1` and one page per visible verb.
fn write_man(directory: &Path) -> std::io::Result<()> {
    let mut command = CommandLine::command();
    command.build();
    let visible: Vec<clap::Command> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    clap_mangen::Man::new(command).generate_to(directory)?;
    for verb in visible {
        clap_mangen::Man::new(verb).generate_to(directory)?;
    }
    Ok(())
}

fn write_completions(directory: &Path) -> std::io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut CommandLine::command(), "coulter", directory)?;
    }
    Ok(())
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
}
