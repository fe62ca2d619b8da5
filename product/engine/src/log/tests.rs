use super::*;
use coulter_format::Pba;
use coulter_format::superblock::Geometry;

/// A checkpoint that listed the segment as opened and as queued could not be opened any more.
#[test]
fn a_segment_that_was_opened_for_nothing_is_listed_once() {
    let mut segments = Segments::new(Geometry {
        device_size: 256 * 9,
        volume_size: 256,
        capacity: 256,
        root_limit: 0,
        root_lists: false,
        segment_blocks: 256,
        segment_count: 8,
        first_segment: Pba(256),
        second_superblock: Pba(128),
        third_superblock: Pba::NOWHERE,
        page_blocks: 1,
    })
    .expect("there is memory");
    let mut log = Log::new(12, Reclaim::CopyOut).expect("there is memory");
    segments.fill_queue(8, 0);
    segments.queue_is_durable();
    let record = log.begin(&mut segments, Stream::UserWarm, Origin::User, 1, 0);
    log.abandon(record.expect("there are segments"));
    log.close_unwanted(&mut segments, &[Stream::User]);
    log.applied += 1;
    for sequence in [0, 1] {
        segments.checkpoint_is_durable(sequence, |_| false);
        segments.fill_queue(8, sequence);
        let heads = log.cut_heads(&segments);
        assert_eq!(heads, [None; Stream::COUNT]);
        let mut listed: Vec<_> = log.opened().chain(segments.queue()).collect();
        listed.sort_unstable();
        let count = listed.len();
        listed.dedup();
        assert_eq!(listed.len(), count, "a segment is listed once");
    }
    assert_eq!(segments.queue().len(), 8);
}
