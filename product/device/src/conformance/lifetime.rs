//! Opening, moving and dropping devices.

use super::rig::Rig;
use super::{Access, Fixture};
use crate::command::{Command, Region, Wait};
use crate::open_error::OpenError;
use std::thread;

/// What a device says of itself makes sense.
pub fn properties_are_consistent(fixture: &dyn Fixture) {
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let device = fixture.open(access).expect("the content is free");
        device.properties().assert_consistent();
        assert_eq!(device.properties().read_only, access == Access::ReadOnly);
        assert!(!device.properties().description.is_empty(), "people are told what it is");
    }
}

/// What was written is there when the content is opened again, flushed or not.
pub fn another_device_sees_the_content(fixture: &dyn Fixture) {
    for round in 1..4 {
        let mut rig = Rig::new(fixture, 8192);
        rig.read(0, 0, 4096);
        assert!(rig.memory[..4096].iter().all(|byte| *byte == round - 1), "from the round before");
        rig.memory[4096..].fill(round);
        rig.write(0, 4096, 4096);
        if round == 2 {
            assert_eq!(rig.run(Command::flush(0)), Ok(()));
        }
    }
}

/// Content belongs to one device at a time, and is free as soon as that is dropped.
pub fn content_in_use_is_refused_and_free_after_the_drop(fixture: &dyn Fixture) {
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let mut rig = Rig::new(fixture, 4096);
        rig.write(0, 0, 4096);
        match fixture.open(access) {
            Err(error @ OpenError::InUse { .. }) => {
                assert!(error.to_string().contains("in use by"), "{error}");
            }
            Err(error) => panic!("refused for another reason: {error}"),
            Ok(_) => panic!("the content was opened twice"),
        }
        rig.read(0, 0, 4096);
    }
}

/// A device may be made, and memory registered, on one thread, and used on another.
pub fn a_device_is_used_on_another_thread_than_it_was_made(fixture: &dyn Fixture) {
    let device = fixture.open(Access::ReadWrite).expect("the content is free");
    let mut rig = Rig::on(device, 8192);
    let region = Region { start: rig.address(0), length: 8192 };
    // SAFETY: the rig drops the device before the memory.
    unsafe { rig.device.register(&[region]) }.expect("memory can be registered");
    let thread = thread::spawn(move || {
        rig.memory[..4096].fill(4);
        rig.write(8192, 0, 4096);
        rig.read(8192, 4096, 4096);
        assert!(rig.memory[4096..].iter().all(|byte| *byte == 4), "what was written is read");
    });
    thread.join().expect("the device works there");
}

/// A drop waits until the device has let go of the commands' memory.
pub fn a_device_is_dropped_with_commands_in_flight(fixture: &dyn Fixture) {
    const COUNT: usize = 64;
    const SIZE: usize = 64 << 10;
    let mut rig = Rig::new(fixture, COUNT * SIZE);
    rig.memory.fill(8);
    for index in 0..COUNT {
        let address = rig.address(index * SIZE);
        rig.submit(Command::write(0, (index * SIZE) as u64, SIZE as u64, address));
    }
    let mut completions = Vec::new();
    rig.device.poll(&mut completions, Wait::No).expect("the device can be polled");
    let Rig { device, mut memory, .. } = rig;
    drop(device);
    // A device that still wrote from here would leave sectors of neither value.
    memory.fill(99);
    drop(memory);
    let mut rig = Rig::with_access(fixture, COUNT * SIZE, Access::ReadOnly);
    rig.read(0, 0, COUNT * SIZE);
    assert!(rig.memory.iter().all(|byte| matches!(byte, 0 | 8)), "old or new");
}

/// A device that was never polled may be dropped, whatever was submitted.
pub fn an_unused_device_is_dropped_with_commands_queued(fixture: &dyn Fixture) {
    drop(Rig::new(fixture, 1));
    let mut rig = Rig::new(fixture, 4096);
    let address = rig.address(0);
    for _ in 0..10 {
        rig.submit(Command::write(0, 0, 4096, address));
    }
    drop(rig);
    drop(Rig::new(fixture, 1));
}
