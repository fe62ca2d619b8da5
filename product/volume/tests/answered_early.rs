//! What is answered from memory, discards always, and writes if the volume is opened so: what a host sees is
//! what it would see otherwise, save that a device that fails is told later. Power cuts are cut by the
//! driver's own tests.

mod common;

use common::*;
use coulter::service::RequestError;
use coulter::{Acknowledge, CloseError, OpenOptions, State};
use coulter_device::wrap::{Fault, FaultHandle, FaultRates, FaultyDevice, SlowDevice, SlowModel};
use coulter_device::{CommandKind, MemoryStore};
use coulter_workload::Random;
use std::time::Duration;

for_both_kinds!(
    a_discard_is_answered_before_the_device_has_it_and_so_is_a_write_if_asked_for,
    what_was_answered_is_read_at_once_whatever_the_device_holds_back,
    what_was_flushed_is_there_whatever_comes,
    what_was_answered_and_could_not_be_written_is_an_error_and_never_what_was_there_before,
    blocks_whose_discard_failed_are_an_error_and_never_what_was_there_before,
    closing_says_what_nobody_asked_for,
);

fn acknowledging(acknowledge: Acknowledge) -> OpenOptions {
    OpenOptions { acknowledge, ..OpenOptions::default() }
}

fn faulty<V: AnyVolume>(store: &MemoryStore, acknowledge: Acknowledge) -> (V, FaultHandle) {
    let (device, handle) = FaultyDevice::new(store.open().expect("nothing has it open"), 1);
    let volume = V::open_with(Box::new(device), acknowledging(acknowledge)).expect("intact");
    volume.write_at(0, &[1; 8192]).expect("in range");
    volume.flush().expect("the device works");
    (volume, handle)
}

/// Of eight requests, made from their number, on a slow device, those that were under way still when
/// they had been answered.
fn answered_early<V: AnyVolume>(acknowledge: Acknowledge, request: impl Fn(&V, u64)) -> usize {
    let store = small_store(48 * MIB);
    let model = SlowModel {
        latency: Duration::from_millis(20),
        operations_per_second: None,
        operation_size: MIB,
        bytes_per_second: None,
    };
    let device = SlowDevice::new(store.open().expect("nothing has it open"), model);
    let volume = V::open_with(Box::new(device), acknowledging(acknowledge)).expect("intact");
    for nth in 0..8 {
        volume.write_durable_at(nth * BLOCK, &[6; BLOCK as usize]).expect("in range");
    }
    let is_early = |nth: &u64| {
        request(&volume, *nth);
        volume.statistics().waiting.requests > 0
    };
    let early = (0..8).filter(is_early).count();
    volume.flush().expect("the device works");
    assert_eq!(volume.statistics().waiting.requests, 0, "a flush is answered when all is done");
    volume.close().expect("the device works");
    early
}

fn a_discard_is_answered_before_the_device_has_it_and_so_is_a_write_if_asked_for<V: AnyVolume>() {
    let write = |volume: &V, nth: u64| {
        volume.write_at(nth * BLOCK, &[7; BLOCK as usize]).expect("in range");
    };
    let durable = |volume: &V, nth: u64| {
        volume.write_durable_at(nth * BLOCK, &[8; BLOCK as usize]).expect("in range");
    };
    let zeroes = |volume: &V, nth: u64| {
        volume.write_zeroes(nth * BLOCK, BLOCK).expect("in range");
    };
    let discard = |volume: &V, nth: u64| {
        volume.discard(nth * BLOCK, BLOCK).expect("in range");
    };
    assert_eq!(answered_early::<V>(Acknowledge::Written, write), 0);
    for acknowledge in [Acknowledge::Written, Acknowledge::Buffered] {
        assert_eq!(answered_early::<V>(acknowledge, durable), 0);
        assert_eq!(answered_early::<V>(acknowledge, zeroes), 0);
        // All of them, were the machine never held up for longer than the device.
        assert!(answered_early::<V>(acknowledge, discard) > 0, "all discards were answered late");
    }
    let early = answered_early::<V>(Acknowledge::Buffered, write);
    assert!(early > 0, "all were answered late");
}

fn what_was_answered_is_read_at_once_whatever_the_device_holds_back<V: AnyVolume>() {
    for acknowledge in [Acknowledge::Written, Acknowledge::Buffered] {
        is_read_at_once::<V>(acknowledge);
    }
}

fn is_read_at_once<V: AnyVolume>(acknowledge: Acknowledge) {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store, acknowledge);
    handle.set_rates(FaultRates { delays: 300_000, ..FaultRates::default() });
    let mut random = Random::new(12);
    let mut model = vec![0; 2 << 20];
    model[..8192].fill(1);
    for round in 0..1500 {
        let sector = random.below(4000);
        let length = 1 + random.below(90);
        let range = (sector * 512) as usize..((sector + length) * 512) as usize;
        match random.below(4) {
            0 => {
                volume.discard(sector * SECTOR, length * SECTOR).expect("in range");
                model[range].fill(0);
            }
            1 => {
                let mut bytes = vec![0; range.len()];
                volume.read_at(sector * SECTOR, &mut bytes).expect("in range");
                assert!(bytes == model[range], "round {round}");
            }
            _ => {
                random.fill(&mut model[range.clone()]);
                volume.write_at(sector * SECTOR, &model[range.clone()]).expect("in range");
                let extents = volume.extents(sector * SECTOR, length * SECTOR).expect("in range");
                assert!(extents.iter().all(|extent| extent.mapped), "round {round}: {extents:?}");
            }
        }
    }
    volume.close().expect("the device works");
    let volume = open::<V>(&store);
    let mut bytes = vec![0; model.len()];
    volume.read_at(0, &mut bytes).expect("in range");
    assert!(bytes == model, "closing writes all of it");
}

fn what_was_flushed_is_there_whatever_comes<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, _) = faulty::<V>(&store, Acknowledge::Buffered);
    for block in 0..200 {
        volume.write_at(block * BLOCK, &[9; BLOCK as usize]).expect("in range");
    }
    volume.flush().expect("the device works");
    // Flushed or not, what comes later must not get ahead of it.
    volume.write_at(0, &[10; BLOCK as usize]).expect("in range");
    volume.abandon().expect("the device works");
    let volume = open::<V>(&store);
    let mut bytes = vec![0; 200 * BLOCK as usize];
    volume.read_at(0, &mut bytes).expect("in range");
    assert!(bytes[BLOCK as usize..].iter().all(|byte| *byte == 9));
    assert!(bytes[0] == 9 || bytes[0] == 10);
}

fn what_was_answered_and_could_not_be_written_is_an_error_and_never_what_was_there_before<
    V: AnyVolume,
>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store, Acknowledge::Buffered);
    handle.add(Fault::fail_nth(CommandKind::Write, 1, libc::EIO));
    assert_eq!(volume.write_at(4096 + 512, &[2; 512]), Ok(()), "answered from memory");
    let failed = Err(RequestError::Device { errno: libc::EIO });
    assert_eq!(volume.flush(), failed);
    assert_eq!(volume.flush(), failed);
    let mut bytes = [0; 512];
    assert_eq!(volume.read_at(4096 + 512, &mut bytes), failed);
    // It is lost as part of its block.
    assert_eq!(volume.read_at(4096, &mut bytes), failed);
    assert_eq!(volume.extents(0, 8192), Err(RequestError::Device { errno: libc::EIO }));
    assert_eq!(volume.read_at(0, &mut bytes), Ok(()));
    assert_eq!(bytes, [1; 512]);
    assert_eq!(volume.write_at(0, &[3; 4096]), Err(RequestError::ReadOnly));
    assert!(matches!(volume.state(), State::ReadOnly(_)));
    assert_eq!(volume.statistics().requests.device_failures, 6);
    assert_eq!(volume.close(), Err(CloseError::Device { errno: libc::EIO }));

    let volume = open::<V>(&store);
    volume.read_at(4096, &mut bytes).expect("what was flushed is there");
    assert_eq!(bytes, [1; 512]);
}

fn blocks_whose_discard_failed_are_an_error_and_never_what_was_there_before<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store, Acknowledge::Written);
    handle.add(Fault::fail_nth(CommandKind::Write, 1, libc::EIO));
    assert_eq!(volume.discard(4096, 4096), Ok(()), "answered from memory");
    let failed = Err(RequestError::Device { errno: libc::EIO });
    assert_eq!(volume.flush(), failed);
    let mut bytes = [0; 4096];
    assert_eq!(volume.read_at(4096, &mut bytes), failed);
    assert_eq!(volume.extents(0, 8192), Err(RequestError::Device { errno: libc::EIO }));
    assert_eq!(volume.read_at(0, &mut bytes), Ok(()));
    assert_eq!(bytes, [1; 4096]);
    assert_eq!(volume.discard(0, 4096), Err(RequestError::ReadOnly));
    assert!(matches!(volume.state(), State::ReadOnly(_)));
    assert_eq!(volume.close(), Err(CloseError::Device { errno: libc::EIO }));

    let volume = open::<V>(&store);
    volume.read_at(4096, &mut bytes).expect("what was flushed is there");
    assert_eq!(bytes, [1; 4096]);
}

fn closing_says_what_nobody_asked_for<V: AnyVolume>() {
    let store = small_store(48 * MIB);
    let (volume, handle) = faulty::<V>(&store, Acknowledge::Buffered);
    handle.add(Fault::fail_nth(CommandKind::Write, 1, libc::EIO));
    assert_eq!(volume.write_at(0, &[2; 4096]), Ok(()), "answered from memory");
    assert_eq!(volume.close(), Err(CloseError::Device { errno: libc::EIO }));
}
