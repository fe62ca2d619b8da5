use super::*;

pub(super) fn tiny() -> Options {
    let shape = Shape {
        blocks: 40_000,
        segment_blocks: Some(256),
        spare: 0.4,
        reserve: Reserve::Segments(0),
        map_memory: None,
        queue_depth: 256,
    };
    Options { shape, spare_is_garbage: false, warm_up: 2, passes: 2, ..Options::default() }
}

#[test]
fn what_the_device_wrote_is_what_the_engine_says_it_wrote() {
    let report = run(&tiny()).expect("the tiny store works");
    let host = f64::from(report.passes) * report.blocks as f64;
    let difference = (report.write_amplification - report.written.sum()).abs() * host;
    // Relocations gather in a record before they are written.
    assert!(difference <= 256.0, "{difference} blocks in {report:?}");
    assert!(report.steady, "{report:?}");
}

#[test]
fn garbage_is_what_the_closed_form_calls_spare_space() {
    let report = run(&tiny()).expect("the tiny store works");
    // What the formula does not know of, metadata, is not in what it is compared with.
    let copied = report.written.user + report.written.relocated;
    let theory = report.closed_form_greedy_uniform;
    assert!((copied / theory - 1.0).abs() < 0.05, "{copied} where {theory} is due: {report:?}");
}

#[test]
fn the_parts_of_the_room_make_up_all_that_the_log_has_beyond_the_volume() {
    for workload in [Pattern::Uniform, Pattern::Zipf { theta: 0.99 }] {
        let report = run(&Options { workload, ..tiny() }).expect("the tiny store works");
        let Room { garbage, moved, metadata, headers, open, empty } = report.room;
        let sum = garbage + moved + metadata + headers + open + empty;
        assert!((sum - report.spare_log).abs() < 1e-6, "{sum} of {report:?}");
        // A segment of 256 blocks is emptied by one record: nothing is moved by halves.
        let parts = [garbage, metadata, headers, open, empty];
        assert!(parts.iter().all(|part| *part > 0.0), "{report:?}");
        assert_eq!(report.spare_measured, garbage);
        // A header for each 250 relocations, and what is on its way.
        assert!(headers > 0.004 && headers < 0.08, "{report:?}");
    }
}

#[test]
fn there_is_as_much_garbage_as_was_asked_for_to_a_thousandth_of_the_volume() {
    for workload in [Pattern::Uniform, Pattern::Zipf { theta: 0.99 }] {
        let options = Options { workload, spare_is_garbage: true, ..tiny() };
        let exact = run(&options).expect("the tiny store works");
        assert!((exact.spare_measured - 0.4).abs() < 0.001, "{exact:?}");
        assert!(exact.spare_log > exact.spare_measured, "{exact:?}");
        // The strict accounting has less of it, and shows it.
        let strict = run(&Options { spare_is_garbage: false, ..options }).expect("it works");
        assert!((strict.spare_log - 0.4).abs() < 0.001, "{strict:?}");
        assert!(strict.spare_measured < exact.spare_measured, "{strict:?}");
        assert!(strict.write_amplification > exact.write_amplification, "{strict:?}");
    }
}

#[test]
fn metadata_is_left_to_die_where_it_is() {
    let report = run(&tiny()).expect("the tiny store works");
    let written = &report.written;
    let metadata = written.leaves + written.runs + written.checkpoints;
    assert!(written.relocated_metadata < metadata / 4.0, "{report:?}");
}

#[test]
fn victims_hold_what_was_relocated() {
    let report = run(&tiny()).expect("the tiny store works");
    let victims = &report.victims;
    assert!(victims.count > 100, "{victims:?}");
    assert_eq!(victims.count, victims.histogram.iter().sum::<u64>());
    let copied = victims.count as f64 * 256.0 * victims.valid_share_mean;
    let host = f64::from(report.passes) * report.blocks as f64;
    let relocated = (report.written.relocated + report.written.relocated_metadata) * host;
    assert!((copied / relocated - 1.0).abs() < 0.05, "{copied} of {relocated}");
}

#[test]
fn the_same_options_give_the_same_figures() {
    let options = Options { workload: Pattern::Zipf { theta: 0.99 }, ..tiny() };
    let figures = |options| {
        serde_json::to_string(&run(options).expect("the tiny store works")).expect("serialises")
    };
    assert_eq!(figures(&options), figures(&options));
    assert_ne!(figures(&options), figures(&Options { seed: 2, ..options.clone() }));
}

#[test]
fn a_skewed_workload_costs_less_than_a_uniform_one() {
    let amplification = |workload| {
        run(&Options { workload, ..tiny() }).expect("the tiny store works").write_amplification
    };
    let uniform = amplification(Pattern::Uniform);
    let skewed = amplification(Pattern::Zipf { theta: 1.2 });
    assert!(skewed < uniform, "{skewed} against {uniform}");
    let sequential = amplification(Pattern::Sequential);
    assert!(sequential < 1.1, "nothing is left to be copied: {sequential}");
}

/// The map of a small volume leaves a small rest of its memory. The sweep wanted more of it free than it
/// could win, and wrote page upon page for ever: one for every few blocks of the host.
#[test]
fn the_sweep_of_a_small_volume_comes_to_rest() {
    let small = Shape {
        blocks: 1 << 17,
        segment_blocks: Some(1024),
        spare: 0.25,
        queue_depth: 32,
        ..tiny().shape
    };
    // Entries have 50 bits here: all arrays take 500 eightieths.
    for bytes_of_eighty in [500, 505, 520, 540, 560, 640, 720] {
        let map_memory = Some(small.blocks * bytes_of_eighty / 80);
        let shape = Shape { map_memory, ..small };
        let report = run(&Options { shape, ..tiny() }).expect("the small store works");
        let leaves = report.written.leaves;
        assert!(leaves < 0.03, "{leaves} pages for each block with {map_memory:?}: {report:?}");
    }
}

/// A map for which a hundredth of its memory is lacking kept as few arrays that differ from their pages
/// as one that lacks nearly all, and read pages all the time.
#[test]
fn a_map_that_hardly_lacks_memory_hardly_reads_pages() {
    let shape = Shape {
        blocks: 1 << 18,
        segment_blocks: Some(2048),
        spare: 1.0,
        queue_depth: 256,
        ..tiny().shape
    };
    // As much as all arrays take, with entries of 52 bits, so that nothing is left for the directory.
    let shape = Shape { map_memory: Some(52 * shape.blocks / 8), ..shape };
    let misses = run(&Options { shape, ..tiny() }).expect("the store works").map_misses;
    assert!(misses < 0.3, "{misses} for each block of the host: 0.44 with few such arrays");
}

/// In step with the host the cleaner copies a few blocks at a time. A record for each few would cost
/// as much as they do.
#[test]
fn relocations_gather_while_the_host_writes() {
    let segment_blocks = Some(1024);
    let shape =
        Shape { blocks: 1 << 16, segment_blocks, spare: 2.0, queue_depth: 32, ..tiny().shape };
    let written = run(&Options { shape, ..tiny() }).expect("the tiny store works").written;
    let others = written.headers - 1.0 / 32.0;
    assert!(others < written.relocated / 24.0, "{others} headers of relocations: {written:?}");
}

#[test]
fn no_passes_are_refused() {
    let refused = run(&Options { passes: 0, ..tiny() });
    assert!(matches!(refused, Err(BenchError::Option { .. })));
}

/// Metadata goes to empty segments all the while that the host writes into holes. A cleaner that would
/// rather look for holes, or a host that goes on while the cleaner has no room, leaves none to win one
/// with, and the engine stands still.
#[test]
fn writing_into_holes_goes_on_for_ever() {
    for (reclaim, placement) in [
        (Reclaim::Threaded, Placement::Lifetime),
        (Reclaim::Threaded, Placement::Mixed),
        (Reclaim::HoleFill, Placement::Lifetime),
    ] {
        let reserve = Reserve::Segments(9);
        let shape =
            Shape { blocks: 1 << 16, spare: 0.1765, reserve, queue_depth: 1024, ..tiny().shape };
        let config = Config { reclaim, placement, ..Config::default() };
        let workload = Pattern::Zipf { theta: 0.99 };
        let report = run(&Options { workload, shape, config, ..tiny() });
        let report = report.unwrap_or_else(|error| panic!("{reclaim}, {placement}: {error}"));
        assert!(report.device_writes.command_blocks_mean < 64.0, "no holes: {report:?}");
        assert!(report.write_amplification < 3.0, "{report:?}");
    }
}

/// Where the host writes to the very head that the cleaner writes to, it used up each time what had just
/// been won, in the moment when the cleaner had no room for another victim. Nothing was left for
/// metadata, and with the segment that this took in the end the engine stood still.
#[test]
fn a_volume_goes_on_where_host_and_cleaner_share_a_head() {
    let shape = Shape {
        blocks: 1 << 16,
        segment_blocks: Some(512),
        spare: 0.18,
        reserve: Reserve::Segments(1),
        ..tiny().shape
    };
    let config =
        Config { placement: Placement::Mixed, victims: VictimPolicy::Greedy, ..Config::default() };
    let workload = Pattern::HotCold { hot_percent: 10, access_percent: 90 };
    let options = Options { workload, shape, config, warm_up: 1, ..tiny() };
    let report = run(&options).expect("it goes on");
    assert!(report.write_amplification < 8.0, "{report:?}");
}
