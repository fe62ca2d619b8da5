//! Operations on the engine, beside the same on a map.
//!
//! ```text
//! byte % 16   operation
//! 0 … 8       write: address, count, content
//! 9, 10       discard: address, count
//! 11, 12      read one block and compare
//! 13          flush
//! 14          lose power, all that completed surviving, and open again
//! 15          shut down and open again
//! ```
//! At the end every block that holds something is compared, and some that do not. Addresses stay within a quarter of the volume most of the
//! time, so that operations meet.

use crate::input::Input;
use crate::store;
use coulter_engine::Request;
use coulter_format::Lba;
use coulter_sim::hand::{Hand, small};
use std::collections::BTreeMap;

/// Operations at most.
const OPERATION_COUNT_MAX: usize = 400;

struct Run {
    hand: Hand,
    /// What each block is full of; zeros if it is not listed.
    model: BTreeMap<u64, u8>,
    size: u64,
}

/// Does what the bytes say.
pub(crate) fn against_a_map(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let hand = Hand::open(store::empty(), small());
    let size = hand.engine.geometry().volume_size;
    let mut run = Run { hand, model: BTreeMap::new(), size };
    for _ in 0..OPERATION_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    let listed: Vec<u64> = run.model.keys().copied().chain((0..size).step_by(7)).collect();
    for lba in listed {
        run.compare(lba);
    }
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..9 => self.write(input),
            9 | 10 => self.discard(input),
            11 | 12 => {
                let lba = self.address(input);
                self.compare(lba);
            }
            13 => assert_eq!(self.hand.flush(), Some(Ok(())), "a flush ends well"),
            14 => self.reopen(),
            _ => {
                let id = self.hand.submit(Request::Shutdown).expect("nothing is under way");
                self.hand.run();
                let ended = self.hand.answers.remove(&id);
                assert_eq!(ended, Some(Ok(())), "a shutdown ends well");
                self.reopen();
            }
        }
    }

    fn address(&self, input: &mut Input<'_>) -> u64 {
        let narrow = !input.byte().is_multiple_of(4);
        input.below(if narrow { self.size / 4 } else { self.size })
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let lba = self.address(input);
        let magnitude = input.below(8);
        let count = (1 + input.below(1 << magnitude)).min(self.size - lba);
        let byte = input.byte();
        let answered = self.hand.write(lba, count as u32, byte);
        assert!(answered, "a write of {count} blocks at {lba} stands still");
        self.model.extend((lba..lba + count).map(|lba| (lba, byte)));
    }

    fn discard(&mut self, input: &mut Input<'_>) {
        let lba = self.address(input);
        let count = (1 + input.below(2000)).min(self.size - lba);
        let request = Request::Discard { lba: Lba(lba), count, fua: false };
        let id = self.hand.submit(request).expect("nothing is under way");
        self.hand.run();
        let ended = self.hand.answers.remove(&id);
        assert_eq!(ended, Some(Ok(())), "a discard of {count} blocks at {lba} ends well");
        let covered: Vec<u64> = self.model.range(lba..lba + count).map(|(lba, _)| *lba).collect();
        for lba in covered {
            self.model.remove(&lba);
        }
    }

    fn compare(&mut self, lba: u64) {
        let expected = self.model.get(&lba).copied().unwrap_or(0);
        assert_eq!(self.hand.read(lba), Some(Ok(expected)), "block {lba}");
    }

    fn reopen(&mut self) {
        let mut device = self.hand.device.clone();
        device.flush_all();
        self.hand = Hand::open(device, small());
        assert_eq!(self.hand.engine.geometry().volume_size, self.size, "it is the same store");
    }
}
