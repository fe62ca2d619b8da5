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

/// The device refuses every segment space until nothing else is left to be done. After each cut the store
/// is opened and read without any.
#[test]
fn without_space_every_crash_point_is_an_allowed_state_and_every_plan_goes_on() {
    let mut search = Search::without_space();
    for length in 0..=2 {
        let result = search.all_of_length(length, |_, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
    assert_eq!(search.tried.plans, 1 + 6 + 36);
    assert!(search.tried.crash_points > 2000, "{:?}", search.tried);
    assert!(search.tried.refusals > 200, "{:?}", search.tried);
    println!("{:?}", search.tried);
}

/// On flash that writes each page whole or not at all. The holes of partly dead pages are reserved before each plan.
#[test]
fn padding_every_crash_point_is_an_allowed_state() {
    let mut search = Search::padding();
    for length in 0..=2 {
        let result = search.all_of_length(length, |_, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
    let tried = search.tried;
    println!("{tried:?}");
    assert_eq!(tried.plans, 1 + 6 + 36);
    assert!(tried.crash_points > 150 && tried.padded_blocks > 30, "{tried:?}");
}

/// More roots than a checkpoint takes the images of at once, in a list of their own.
#[test]
fn with_a_list_of_roots_every_crash_point_is_an_allowed_state() {
    let mut search = Search::root_lists();
    for length in 0..=1 {
        let result = search.all_of_length(length, |_, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
    let tried = search.tried;
    println!("{tried:?}");
    assert_eq!(tried.plans, 1 + 6);
    assert!(tried.crash_points > 200 && tried.root_blocks > 100, "{tried:?}");
}
