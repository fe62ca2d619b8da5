//! Every attach point passes the one suite.

use coulter_attach::conformance::{FileHarness, LoopHarness, NbdHarness, run_all};

mod support;

#[test]
fn nbd_over_a_unix_socket_conforms() {
    let directory = tempfile::tempdir().unwrap();
    run_all(&NbdHarness::unix(directory.path(), true));
}

#[test]
fn nbd_with_simple_replies_conforms() {
    let directory = tempfile::tempdir().unwrap();
    run_all(&NbdHarness::unix(directory.path(), false));
}

#[test]
fn nbd_over_tcp_conforms() {
    run_all(&NbdHarness::tcp(support::free_port()));
}

#[test]
fn a_file_conforms() {
    if support::may_mount() {
        let directory = tempfile::tempdir().unwrap();
        run_all(&FileHarness::new(directory.path()));
    }
}

#[test]
fn a_loop_device_conforms() {
    if support::may_mount() {
        let directory = tempfile::tempdir().unwrap();
        run_all(&LoopHarness::new(directory.path()));
    }
}
