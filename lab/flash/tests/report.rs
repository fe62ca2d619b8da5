//! The report: the same to the byte, and with a verdict for everything.

use coulter_flash::report::{EXPERIMENTS, Outcome, Scale, Setting, Verdict, page};

fn outcomes(seed: u64) -> Vec<Outcome> {
    let setting = Setting { scale: Scale::Short, seed };
    let runs = EXPERIMENTS.iter().map(|experiment| {
        experiment.run(&setting).unwrap_or_else(|error| panic!("{}: {error}", experiment.id))
    });
    runs.collect()
}

#[test]
fn a_report_is_the_same_to_the_byte_and_another_seed_makes_another() {
    let setting = Setting { scale: Scale::Short, seed: 1 };
    let first = outcomes(1);
    assert_eq!(page(&setting, &first), page(&setting, &outcomes(1)));
    let other = Setting { scale: Scale::Short, seed: 2 };
    let (d16, again) = (EXPERIMENTS[15], first.iter().find(|outcome| outcome.id == "D16"));
    assert_ne!(d16.run(&other).ok().as_ref(), again);
    for outcome in &first {
        assert!(!outcome.paper.is_empty() && !outcome.reason.is_empty(), "{}", outcome.id);
        assert_eq!(outcome.id.starts_with('A') || outcome.verdict != Verdict::Ours, {
            // What the papers only announce or summarise cannot hold.
            !matches!(outcome.id.as_str(), "D19" | "D21")
        });
    }
    let verdict = |id: &str| first.iter().find(|outcome| outcome.id == id).map(|o| o.verdict);
    for id in ["D6", "D14", "D15", "D16", "D17", "D18"] {
        assert_eq!(verdict(id), Some(Verdict::Holds), "{id}");
    }
}
