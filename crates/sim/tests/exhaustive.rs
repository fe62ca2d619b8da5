//! All short plans, cut after every command; `coulter-lab sim --exhaustive` goes on with longer ones.

use coulter_sim::exhaustive::Search;

#[test]
fn every_crash_point_of_every_short_plan_is_an_allowed_state() {
    let mut search = Search::new();
    for length in 0..=2 {
        let result = search.all_of_length(length, |_, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
    let tried = search.tried;
    assert_eq!(tried.plans, 1 + 6 + 36);
    assert!(tried.crash_points > 2000, "{tried:?}");
    assert!(tried.exhausted_points > 500, "{tried:?}");
    println!("{tried:?}");
}
