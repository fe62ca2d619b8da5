//! Entry points for fuzzers: each takes any bytes and must return.

use crate::tcp::{self, Digests};
use crate::{Cqe, Sqe, auth, cqe, discovery, fabrics, identify, log, range, sqe};

/// Runs every decoder over `bytes`.
pub fn decoders(bytes: &[u8]) {
    use core::hint::black_box;
    if let Some(common) = bytes.first_chunk() {
        let header = tcp::Header::decode(common);
        for (header_digest, data) in [(false, false), (true, false), (false, true), (true, true)] {
            if let Ok(layout) = header.layout(Digests { header: header_digest, data }) {
                assert!(layout.header_end <= header.size as usize, "a header is within its PDU");
                assert!(layout.data.end <= header.size as usize, "data is within its PDU");
            }
        }
    }
    if let Some(bytes) = bytes.first_chunk() {
        black_box((tcp::IcReq::decode(bytes), tcp::IcResp::decode(bytes)));
    }
    if let Some(bytes) = bytes.first_chunk() {
        black_box(tcp::Data::decode(bytes));
    }
    if let Some(bytes) = bytes.first_chunk::<{ sqe::SQE_SIZE }>() {
        let sqe = Sqe(*bytes);
        black_box((sqe.data_pointer(), sqe.block_count(), fabrics::Connect::decode(&sqe)));
        black_box((log::GetLog::decode(&sqe), auth::length_of(&sqe)));
    }
    if let Some(bytes) = bytes.first_chunk::<{ cqe::CQE_SIZE }>() {
        assert!(Cqe::decode(bytes).status.kind() < 8);
    }
    if let Some(bytes) = bytes.first_chunk() {
        black_box(range::Range::decode(bytes));
    }
    if let Some(bytes) = bytes.first_chunk() {
        black_box(identify::Namespace::decode(bytes));
        black_box(identify::uuid_of_descriptors(bytes));
        let view = identify::ControllerView(bytes);
        black_box((view.serial(), view.transfer_size_max(), view.atomic_blocks_on_power_fail()));
    }
    black_box(fabrics::ConnectData::decode(bytes).is_ok());
    black_box((discovery::Entry::decode(bytes), discovery::decode_header(bytes)));
    black_box((
        auth::opening(bytes),
        auth::Negotiate::decode(bytes),
        auth::Challenge::decode(bytes),
    ));
    black_box(auth::Reply::decode(bytes, auth::Hash::Sha256, auth::Group::Ffdhe2048));
    black_box((auth::response_of_success1(bytes), auth::reason_of_failure(bytes)));
    black_box(log::placement(bytes));
}
