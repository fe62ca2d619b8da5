//! A target for the kernel that this process runs on: no other user of this machine gets a byte out
//! of it, and nothing of it can be discovered.

use coulter_attach_suite::conformance::{Host, NvmeHost};
use coulter_attach_suite::initiator::InitiatorOptions;
use coulter_attach_suite::initiator::discover;
use coulter_attach_suite::loopback::{connect, serve};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_net::Address;
use coulter_nvme_target::{Target, TargetOptions};
use coulter_systems::requirement::{Need, has};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

const OTHER_USER: u32 = 65534;
/// Bytes that a target answers to the first words of a host.
const GREETING_SIZE: &str = "128";

fn served(own_kernel: bool) -> Target {
    let service = Arc::new(MemoryService::new(MemoryOptions::new(8 << 20)));
    serve(service, TargetOptions { own_kernel, ..TargetOptions::default() })
}

/// Bytes that a host of this user is answered, as text.
fn answered(target: &Target, user: u32) -> String {
    let Address::Tcp { port, .. } = target.address() else { unreachable!("it is TCP") };
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} || exit
         {{ printf '\\x00\\x00\\x80\\x00\\x80\\x00\\x00\\x00'; head -c 120 /dev/zero; }} >&3 2>/dev/null
         head -c {GREETING_SIZE} <&3 2>/dev/null | wc -c"
    );
    let mut bash = Command::new("bash");
    let output = bash.arg("-c").arg(script).current_dir("/").uid(user).gid(user).output();
    let output = output.expect("bash is there");
    String::from_utf8(output.stdout).expect("a number").trim().to_owned()
}

#[test]
fn no_other_user_is_let_in() {
    if !has("becoming another user", &[Need::Root]) {
        return;
    }
    let open = served(false);
    assert_eq!(answered(&open, OTHER_USER), GREETING_SIZE, "others are served where they may be");
    let own = served(true);
    assert_eq!(answered(&own, 0), GREETING_SIZE, "root is let in");
    assert_eq!(answered(&own, OTHER_USER), "0");
    assert_eq!(own.statistics().refused, 1);
}

#[test]
fn it_works_and_cannot_be_discovered() {
    let own = served(true);
    let mut host = NvmeHost(connect(&own, 1));
    host.write(0, &[7; 4096], true).expect("it may write");
    let options = InitiatorOptions::new(own.names()[0].clone(), 2);
    assert!(discover(own.address(), &options).is_err(), "it was not asked for");
    let open = served(false);
    let options = InitiatorOptions::new(open.names()[0].clone(), 2);
    assert_eq!(discover(open.address(), &options).expect("it is discoverable").len(), 2);
}
