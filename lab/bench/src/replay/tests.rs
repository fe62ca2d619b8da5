use super::*;
use coulter_workload::Pattern;
use std::fmt::Write;

fn csv(lines: impl Iterator<Item = (u64, u64)>) -> String {
    let mut text = String::from("op,offset,length\n");
    for (block, count) in lines {
        writeln!(text, "W,{},{}", block * 4096, count * 4096).expect("a string takes all text");
    }
    text
}

fn quick() -> Options {
    Options { spares: vec![0.3], passes: 1, ..Options::default() }
}

fn replay(text: &str, options: &Options) -> Report {
    run(text.as_bytes(), options).expect("the trace can be replayed")
}

fn figures(report: &Report) -> &Figures {
    report.rows[0].figures.as_ref().expect("it is possible")
}

#[test]
fn random_writes_become_long_runs_and_are_worth_it_on_slow_devices() {
    let addresses = Pattern::Uniform.over(20_000, 1).take(60_000);
    let report = replay(&csv(addresses.map(|block| (block * 3, 1))), &quick());
    assert_eq!(report.trace.writes, 60_000);
    assert!(report.trace.footprint_blocks > 18_000, "{:?}", report.trace);
    assert!(report.trace.host_writes.run_blocks_mean < 1.1, "{:?}", report.trace);
    assert!(report.copies > 1, "the store would be too small");
    let figures = figures(&report);
    assert!(figures.device_writes.run_blocks_mean > 100.0, "{figures:?}");
    assert!((1.5..4.0).contains(&figures.write_amplification), "{figures:?}");
    let advice = report.advice.as_ref().expect("there is a replay");
    assert_eq!(advice.gains[0].worth, Worth::Yes, "{advice:?}");
    let text = report.text();
    assert!(text.contains("hard disk"), "{text}");
    assert!(plot(&report).matches("<circle").count() == 1);
}

#[test]
fn large_sequential_writes_gain_nothing() {
    let blocks = (0..400).map(|n| (n * 256, 256));
    let report = replay(&csv(blocks), &quick());
    let advice = report.advice.as_ref().expect("there is a replay");
    assert!(advice.gains.iter().all(|gain| gain.worth != Worth::Yes), "{advice:?}");
    assert!(report.text().contains("sequential as they are"), "{}", report.text());
}

#[test]
fn a_short_trace_is_not_repeated_in_the_same_order() {
    let order = coulter_workload::Permutation::new(20_000, 1);
    let report = replay(&csv((0..20_000).map(|n| (order.at(n), 1))), &quick());
    let figures = figures(&report);
    // In the same order every segment would die whole.
    assert!(figures.laps > 1, "{figures:?}");
    assert!(figures.written.relocated > 0.2, "{figures:?}");
}

#[test]
fn a_trace_that_overwrites_enough_is_gone_through_once() {
    let addresses = Pattern::Zipf { theta: 0.99 }.over(1000, 1).take(20_000);
    let report = replay(&csv(addresses.map(|block| (block, 1))), &quick());
    assert_eq!(figures(&report).laps, 1);
}

#[test]
fn parts_of_blocks_and_discards_count_as_what_they_are() {
    let text = "w,512,512\nw,4096,8192\nw,100,8192\nd,0,4096\nd,100,4096\nr,0,4096\nf\n";
    let report = replay(text, &quick());
    let trace = &report.trace;
    assert_eq!((trace.writes, trace.partial_writes, trace.written_blocks), (3, 2, 1 + 2 + 3));
    assert_eq!((trace.footprint_blocks, trace.discards, trace.flushes), (3, 2, 1));
    assert_eq!((trace.reads, trace.bad_lines), (1, 0));
}

#[test]
fn bad_lines_are_counted_or_refused() {
    let text = "w,0,4096\nw,zero,4096\nw,4096\nr,0,4096\n";
    let report = replay(text, &quick());
    assert_eq!(
        (report.trace.bad_lines, report.trace.bad_line_examples.as_slice()),
        (2, &[2, 3][..])
    );
    let strict = run(text.as_bytes(), &Options { strict: true, ..quick() });
    assert!(matches!(strict, Err(BenchError::BadLine { number: 2, .. })));
}

#[test]
fn a_trace_without_writes_says_so() {
    for (text, hint) in [
        ("r,0,4096\n", "it writes nothing"),
        ("8,0 0 1 0.1 5 D W 8 + 8 [x]\n", "--action"),
        ("op,offset,length\nw,1,x\n", "bad lines"),
    ] {
        let error = run(text.as_bytes(), &quick()).expect_err("nothing to replay");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn too_little_spare_space_is_a_row_without_figures() {
    let options = Options { spares: vec![0.001, 0.5], ..quick() };
    let report = replay(&csv((0..1000).map(|n| (n * 7, 1))), &options);
    assert!(report.rows[0].figures.is_none(), "{:?}", report.rows[0]);
    assert!(report.rows[0].impossible.is_some());
    assert!(report.rows[1].figures.is_some());
    assert_eq!(report.advice.expect("one is possible").spare, 0.5);
}

/// Blocks of one address on two devices are two blocks.
#[test]
fn devices_lie_beside_each_other() {
    let mut text = String::from("device_id,op,offset,length,cg\n");
    for block in 0..2000u64 {
        for device in ["a", "b"] {
            writeln!(text, "{device},W,{},4096,1", block * 4096).expect("a string takes all text");
        }
    }
    let report = replay(&text, &quick());
    assert_eq!(report.trace.footprint_blocks, 4000);
    assert_eq!(report.trace.device_names, ["a", "b"]);
    assert!(report.text().contains("devices     a, b: side by side"), "{}", report.text());
    assert!(report.text().contains("ignored     columns cg"), "{}", report.text());
}

#[test]
fn what_gzip_made_is_read_and_the_rest_is_named() {
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;
    let text = csv((0..3000).map(|block| (block * 7 % 3000, 1)));
    // Two members, as `cat a.gz b.gz` makes them.
    let mut packed = Vec::new();
    for part in [&text[..1000], &text[1000..]] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part.as_bytes()).expect("memory takes it");
        packed.extend(encoder.finish().expect("memory takes it"));
    }
    let report = run(&packed[..], &quick()).expect("it is read");
    assert_eq!(report.trace.writes, 3000);
    let error = run(&packed[..packed.len() / 2], &quick()).expect_err("it ends early");
    assert!(matches!(error, BenchError::Trace(_)), "{error}");
    let error = run(&b"\x28\xb5\x2f\xfd...."[..], &quick()).expect_err("zstd").to_string();
    assert!(error.contains("zstdcat TRACE"), "{error}");
    let error = run(&b""[..], &quick()).expect_err("nothing").to_string();
    assert!(error.contains("it is empty"), "{error}");
}

#[test]
fn a_trace_larger_than_any_store_is_given_up_early() {
    let text = csv((0..10_000).map(|n| (n << 18, 1 << 18)));
    let error = run(text.as_bytes(), &quick()).expect_err("too much").to_string();
    assert!(error.contains("up to line 4098 it writes more than 4 TiB"), "{error}");
    let text = csv([(0, 1 << 28), (5, 1)].into_iter().chain((0..100).map(|n| (n, 1))));
    let report = replay(&text, &quick());
    assert_eq!((report.trace.bad_lines, report.trace.writes), (1, 101));
}
