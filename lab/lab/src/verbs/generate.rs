//! `coulter-lab generate` (hidden): as that of `coulter`.

use crate::command::CommandLine;
use crate::error::LabError;
use clap::{Args, CommandFactory};
use coulter_cli::verbs::generate;

/// Write man pages or shell completions.
#[derive(Debug, Args)]
pub(crate) struct GenerateOfLab {
    #[command(flatten)]
    what: generate::Generate,
}

impl GenerateOfLab {
    pub(crate) fn run(&self) -> Result<(), LabError> {
        Ok(self.what.run(&CommandLine::command)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn generated(what: generate::What) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let what = generate::Generate { what, directory: directory.path().to_owned() };
        GenerateOfLab { what }.run().expect("the directory is writable");
        directory
    }

    #[test]
    fn every_visible_verb_and_each_of_its_parts_has_a_man_page() {
        let pages = generated(generate::What::Man);
        let is_there = |name: &str| pages.path().join(Path::new(name)).exists();
        for name in ["coulter-lab.1", "coulter-lab-bench-volume.1", "coulter-lab-flash-serve.1"] {
            assert!(is_there(name), "{name}");
        }
        assert!(!is_there("coulter-lab-flash-daemon.1"), "it is internal");
    }

    #[test]
    fn completions_have_the_name_of_the_program_and_offer_its_verbs() {
        let files = generated(generate::What::Completions);
        for name in ["_coulter-lab", "coulter-lab.bash", "coulter-lab.fish"] {
            let text = std::fs::read_to_string(files.path().join(name)).expect("it is text");
            assert!(text.contains("fragmentation"), "{name}");
        }
    }
}
