//! How many page operations a second the emulation does: a measurement, not a test of this machine.
//!
//! `cargo test --release -p coulter-flash --test speed -- --ignored --nocapture`

use coulter_flash::{Blocks, Drive, FtlKind, FtlOptions, Keep, Profile, WriteOptions};
use coulter_workload::Pattern;
use std::time::Instant;

#[test]
#[ignore = "measures; run it with --release and --nocapture"]
fn page_operations_per_second() {
    for (profile, keep) in [("nvme-tlc", Keep::Nothing), ("nvme-tlc", Keep::Tags)] {
        for kind in [FtlKind::PageMapped, FtlKind::Dftl] {
            let profile = Profile::named(profile).expect("it comes with the crate");
            let mut drive =
                Drive::new(profile, kind, FtlOptions::default(), keep).expect("it works there");
            let blocks = drive.profile().geometry.host_blocks();
            let content = vec![1; keep.block_bytes()];
            let mut addresses = Pattern::Uniform.over(blocks, 1);
            let operations = |drive: &Drive| {
                let done = drive.nand().counters();
                done.programs.total() + done.reads.total()
            };
            let write = |drive: &mut Drive, first: u64, now: u64| {
                let blocks = Blocks { first, count: 1 };
                drive.write(now, blocks, &content, WriteOptions::default()).expect("power is on")
            };
            let mut now = 0;
            (0..blocks).for_each(|block| now = write(&mut drive, block, now));
            let (before, begin) = (operations(&drive), Instant::now());
            (0..blocks * 2).for_each(|_| now = write(&mut drive, addresses.address(), now));
            let (done, seconds) = (operations(&drive) - before, begin.elapsed().as_secs_f64());
            println!(
                "{kind} {keep:?}: {done} page operations in {seconds:.2} s: {:.2} M/s, {:.2} M writes/s",
                done as f64 / seconds / 1e6,
                2.0 * blocks as f64 / seconds / 1e6,
            );
        }
    }
}
