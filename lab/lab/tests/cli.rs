//! What the program says: help and error messages as snapshots, so that a change of words shows in
//! review. `TRYCMD=overwrite cargo test -p coulter-lab --test cli` takes new words over.

#[test]
fn the_words_are_those_of_the_snapshots() {
    let state = tempfile::tempdir().expect("a temporary directory can be made");
    trycmd::TestCases::new()
        .env("COULTER_STATE_DIRECTORY", state.path().display().to_string())
        .case("tests/cmd/*.trycmd")
        .run();
}
