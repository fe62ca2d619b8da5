use super::*;

fn tiny() -> Options {
    let shape = Shape {
        blocks: 40_000,
        segment_blocks: Some(256),
        spare: 0.4,
        reserve: Some(0),
        map_memory: None,
        queue_depth: 256,
    };
    Options { shape, warm_up: 2, passes: 2, ..Options::default() }
}

#[test]
fn what_the_device_wrote_is_what_the_engine_says_it_wrote() {
    let report = run(&tiny()).expect("the tiny store works");
    let host = f64::from(report.passes) * report.blocks as f64;
    let difference = (report.write_amplification - report.written.sum()).abs() * host;
    // Relocations gather in a record before they are written.
    assert!(difference <= 256.0, "{difference} blocks in {report:?}");
    assert!(report.steady, "{report:?}");
    let floor = report.closed_form_greedy_uniform;
    assert!(report.write_amplification > floor * 0.95, "better than theory allows: {report:?}");
    assert!(report.write_amplification < floor * 1.5, "{report:?}");
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

#[test]
fn no_passes_are_refused() {
    let refused = run(&Options { passes: 0, ..tiny() });
    assert!(matches!(refused, Err(BenchError::Option { .. })));
}
