//! Many operations at once on a file system that is nearly full, and every kind of operation with
//! every error: each is answered once, gets its own buffer back, and never sees data of another
//! file.

mod common;

#[test]
fn readers_beside_writers_that_meet_a_full_file_system_see_their_own_bytes() {
    common::full::writers_that_meet_a_full_file_system();
}

#[test]
fn every_operation_gets_its_own_buffer_back_whatever_fails() {
    common::errors::every_operation_with_every_error();
}

#[test]
fn a_block_that_could_not_be_read_once_is_read_by_the_next_operation() {
    common::errors::metadata_that_cannot_be_read_once();
}
