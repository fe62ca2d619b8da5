//! Commands that cannot be executed complete with an error, and do nothing.

use super::rig::Rig;
use super::{Access, Fixture};
use crate::command::{Command, CommandKind};
use crate::device_error::DeviceErrorKind;

/// Offset, length and memory must all be whole sectors, and there must be some.
pub fn what_is_not_whole_sectors_is_refused(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 3 * 4096);
    let unit = rig.alignment();
    let address = rig.address(4096);
    let odd = address.wrapping_add(unit as usize / 2);
    let misaligned = Err(DeviceErrorKind::Misaligned);
    for kind in [CommandKind::Read, CommandKind::Write] {
        let command = Command { tag: 9, kind, offset: 0, length: unit, buffer: address, stream: 0 };
        let half = unit / 2;
        assert_eq!(rig.run(Command { offset: half, ..command }), misaligned, "offset, {kind:?}");
        assert_eq!(rig.run(Command { length: half, ..command }), misaligned, "length, {kind:?}");
        assert_eq!(rig.run(Command { length: 0, ..command }), misaligned, "nothing, {kind:?}");
        assert_eq!(rig.run(Command { buffer: odd, ..command }), misaligned, "memory, {kind:?}");
        let null = std::ptr::null_mut();
        assert_eq!(rig.run(Command { buffer: null, ..command }), misaligned, "null, {kind:?}");
    }
    assert_eq!(rig.run(Command::discard(9, unit / 2, unit)), misaligned);
    assert_eq!(rig.run(Command::discard(9, 0, unit + 1)), misaligned);
    assert_eq!(rig.run(Command::discard(9, 0, 0)), misaligned);
}

/// A command that ends past the end of the device is refused, whatever its numbers.
pub fn what_ends_past_the_device_is_refused(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 4096);
    let (unit, size) = (rig.alignment(), rig.size());
    let address = rig.address(0);
    let outside = Err(DeviceErrorKind::OutOfRange);
    let highest = u64::MAX / unit * unit;
    rig.memory.fill(5);
    for (offset, length) in
        [(size, unit), (highest, unit), (highest, highest), (size + (1 << 40), unit), (0, highest)]
    {
        assert_eq!(rig.run(Command::read(1, offset, length, address)), outside);
        assert_eq!(rig.run(Command::write(1, offset, length, address)), outside);
        assert_eq!(rig.run(Command::discard(1, offset, length)), outside);
    }
    if unit < 4096 {
        // Half of it would be inside.
        assert_eq!(rig.run(Command::write(1, size - unit, 2 * unit, address)), outside);
    }
    rig.read(size - unit, 0, unit as usize);
    let last = &rig.memory[..unit as usize];
    assert!(last.iter().all(|byte| *byte == 0), "what was refused changed nothing");
    let address = rig.address(0);
    assert_eq!(rig.run(Command::write(1, size - unit, unit, address)), Ok(()), "the last sector");
}

/// A read-only device reads and flushes; writes and discards are refused.
pub fn a_read_only_device_refuses_change_and_reads(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 8192);
    rig.memory[..4096].fill(6);
    rig.write(4096, 0, 4096);
    drop(rig);
    let mut rig = Rig::with_access(fixture, 8192, Access::ReadOnly);
    assert!(rig.device.properties().read_only);
    let address = rig.address(4096);
    let refused = Err(DeviceErrorKind::ReadOnly);
    assert_eq!(rig.run(Command::write(1, 4096, 4096, address)), refused);
    assert_eq!(rig.run(Command::discard(1, 4096, 4096)), refused);
    assert_eq!(rig.run(Command::flush(1)), Ok(()));
    rig.read(4096, 0, 4096);
    assert!(rig.memory[..4096].iter().all(|byte| *byte == 6), "nothing changed");
}

/// A refused command is no failure of the device: the next one works.
pub fn a_refusal_leaves_the_device_usable(fixture: &dyn Fixture) {
    let mut rig = Rig::new(fixture, 4096);
    let size = rig.size();
    let address = rig.address(0);
    for _ in 0..3 {
        rig.submit(Command::write(0, size, 4096, address));
        rig.submit(Command::write(1, 0, 4096, address));
        while rig.outstanding() > 0 {
            rig.wait(|_, completion| assert_eq!(completion.result.is_ok(), completion.tag == 1));
        }
    }
}
