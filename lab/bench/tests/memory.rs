//! The memory of the process does not grow with what is written. Alone in its program: what other
//! tests allocate would count too.

use coulter_bench::fill::{Options, run};

const MIB: u64 = 1 << 20;

#[test]
fn overwriting_takes_no_more_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        backing: Some(directory.path().to_path_buf()),
        size: 64 * MIB,
        segment_size: Some(2 * MIB),
        spare_percent: 60,
        passes: 5,
        ..Options::default()
    };
    let report = run(&options).expect("it never fails");
    let grown = report.rss_end_bytes.saturating_sub(report.rss_start_bytes);
    assert!(grown < 8 * MIB, "{report:?}");
}
