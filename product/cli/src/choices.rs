//! What is chosen by a name on the command line, which then lists the names by itself.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use coulter::tuning::Named;

/// What a setting that is chosen by name may be on the command line, which lists the names by itself.
pub fn by_name<T: Named + Send + Sync>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(T::NAMED.iter().map(|(name, _)| *name)).map(|name| {
        T::by_name(&name).unwrap_or_else(|_| unreachable!("only names are let through"))
    })
}

/// The same of what is named in a table.
pub fn named<T: Copy + Send + Sync + 'static>(
    table: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).map(|name| {
        let found = table.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| unreachable!("only names are let through")).1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use coulter::tuning::{CleaningMode, Placement, Reclaim, VictimPolicy};

    fn names_of<T: Named>() -> Vec<&'static str> {
        T::NAMED.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn every_name_is_told_wherever_the_others_stand() {
        let cleaning = names_of::<CleaningMode>();
        let chosen =
            [names_of::<VictimPolicy>(), names_of::<Placement>(), names_of::<Reclaim>()].concat();
        let mut command = crate::command::CommandLine::command();
        let tune = command.find_subcommand_mut("tune").expect("there is such a verb");
        let help = tune.render_long_help().to_string();
        for name in cleaning.iter().chain(&chosen) {
            assert!(help.contains(name), "`coulter tune --help` does not tell of {name}");
        }
        let page = |name: &str| {
            let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).expect("the page is there")
        };
        for (page, text) in
            ["json.md", "operation.md", "cleaning.md"].map(|name| (name, page(name)))
        {
            for name in &chosen {
                assert!(text.contains(&format!("`{name}`")), "docs/{page} does not tell of {name}");
            }
        }
    }
}
