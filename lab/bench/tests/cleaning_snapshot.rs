//! What cleaning costs, for five workloads and three ways to reclaim space, must stay what it is. Nothing in
//! it depends on time or chance, so a change of one percent is a change of the engine.
//!
//! A small store, so that it takes seconds: the figures of docs/cleaning.md are those of a larger one.
//! When a change is meant, the test prints the table anew.

use coulter_bench::cleaning::{Options, Reclaim, Reserve, Shape, run};

/// Share by which a figure may differ.
const WITHIN: f64 = 0.01;

/// Workload, way to reclaim, write amplification.
const TABLE: [(&str, Reclaim, f64); 15] = [
    ("uniform", Reclaim::CopyOut, 4.166),
    ("uniform", Reclaim::HoleFill, 2.133),
    ("uniform", Reclaim::Threaded, 1.895),
    ("zipf:0.8", Reclaim::CopyOut, 3.962),
    ("zipf:0.8", Reclaim::HoleFill, 2.558),
    ("zipf:0.8", Reclaim::Threaded, 2.129),
    ("zipf:0.99", Reclaim::CopyOut, 3.161),
    ("zipf:0.99", Reclaim::HoleFill, 2.038),
    ("zipf:0.99", Reclaim::Threaded, 2.013),
    ("zipf:1.2", Reclaim::CopyOut, 2.168),
    ("zipf:1.2", Reclaim::HoleFill, 1.344),
    ("zipf:1.2", Reclaim::Threaded, 1.556),
    ("shift:1", Reclaim::CopyOut, 3.648),
    ("shift:1", Reclaim::HoleFill, 2.363),
    ("shift:1", Reclaim::Threaded, 1.964),
];

fn amplification(workload: &str, reclaim: Reclaim) -> f64 {
    let shape = Shape {
        blocks: 60_000,
        segment_blocks: Some(256),
        spare: 0.1765,
        reserve: Reserve::Segments(9),
        map_memory: None,
        queue_depth: 1024,
    };
    let workload = workload.parse().expect("a workload that there is");
    let mut options =
        Options { workload, shape, spare_is_garbage: false, warm_up: 2, ..Options::default() };
    options.passes = 2;
    options.config.reclaim = reclaim;
    run(&options).expect("the store works").write_amplification
}

#[test]
fn cleaning_costs_what_it_cost_for_every_workload_and_way_to_reclaim() {
    let mut differs = false;
    for (workload, reclaim, expected) in TABLE {
        let found = amplification(workload, reclaim);
        let is_off = (found / expected - 1.0).abs() > WITHIN;
        let mark = if is_off { " // was " } else { "" };
        let before = if is_off { format!("{expected:.3}") } else { String::new() };
        println!("    ({workload:?}, Reclaim::{reclaim:?}, {found:.3}),{mark}{before}");
        differs |= is_off;
    }
    assert!(!differs, "more than one percent off: the table above says what it comes to now");
}
