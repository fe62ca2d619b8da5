//! Every attach point passes the one suite.

use coulter_attach_suite::conformance::{
    FileHarness, LoopHarness, NbdDeviceHarness, NbdHarness, NvmeHarness, UblkHarness, run_all,
};
use coulter_block::ublk::Copy;
use coulter_block::{nbd_device, ublk};
use coulter_systems::Scratch;
use coulter_systems::requirement;
use std::net::TcpListener;

/// A loopback port that nothing listens on right now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

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
    run_all(&NbdHarness::tcp(free_port()));
}

#[test]
fn nvme_over_tcp_conforms() {
    run_all(&NvmeHarness::new(4096, false, false));
}

#[test]
fn nvme_with_memory_from_the_start_conforms() {
    run_all(&NvmeHarness::new(4096, false, true));
}

#[test]
fn nvme_with_digests_and_blocks_of_512_conforms() {
    run_all(&NvmeHarness::new(512, true, false));
}

#[test]
fn a_file_conforms() {
    if requirement::may_mount() {
        let scratch = Scratch::on_disk();
        run_all(&FileHarness::new(scratch.directory()));
    }
}

#[test]
fn a_loop_device_conforms() {
    if requirement::may_mount() {
        let scratch = Scratch::on_disk();
        run_all(&LoopHarness::new(scratch.directory()));
    }
}

#[test]
fn a_ublk_device_conforms() {
    match ublk::check() {
        Ok(()) => [Some(Copy::ByDaemon), Some(Copy::ByDriver)]
            .into_iter()
            .for_each(|copy| run_all(&UblkHarness::new(copy))),
        Err(error) => requirement::skipped(&error.to_string()),
    }
}

#[test]
fn a_device_of_the_nbd_client_conforms() {
    match nbd_device::check() {
        Ok(()) => {
            let directory = tempfile::tempdir().unwrap();
            run_all(&NbdDeviceHarness::new(directory.path()));
        }
        Err(error) => requirement::skipped(&error.to_string()),
    }
}
