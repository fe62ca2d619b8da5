//! Settling while others write: pieces come in any order, and what was written last is what comes home.

use super::chance::Chance;
use super::crashes::Mount;
use super::lower::ModelLower;
use crate::overlay::Overlay;
use coulter::buffer::Buffer;
use coulter_files::{Changes, FileService, Request, Time};
use coulter_format::BLOCK_SIZE;

const BLOCKS: u64 = 400;
/// Far enough for blocks to be read one by one.
const APART: u64 = 20;
const TIME: Time = Time { seconds: 2000, nanoseconds: 0 };

/// Others' requests while the file is brought home.
struct Others {
    inode: u64,
    expected: Vec<u8>,
    asked: u64,
}

impl Others {
    fn ask(&mut self, overlay: &mut Overlay<ModelLower>, request: Request) {
        self.asked += 1;
        overlay.handle_request(100 + self.asked, request, TIME);
    }

    /// Overwrites one of a few blocks, rarely with what must wait for the file.
    fn overwrite(&mut self, overlay: &mut Overlay<ModelLower>, chance: &mut Chance) {
        let count = self.expected.len() as u64 / BLOCK_SIZE as u64 - 1;
        let shift = if chance.below(60) == 0 { 100 } else { 0 };
        let offset = chance.below(count / APART) * APART * BLOCK_SIZE as u64 + shift;
        let bytes = [chance.below(256) as u8; BLOCK_SIZE];
        self.expected[offset as usize..][..BLOCK_SIZE].copy_from_slice(&bytes);
        let buffer = Buffer::copied_from(&bytes);
        let inode = self.inode;
        self.ask(
            overlay,
            Request::Write { inode, offset, buffer, kills_privileges: false, sync: false },
        );
    }

    fn resize(&mut self, overlay: &mut Overlay<ModelLower>, chance: &mut Chance) {
        let size = (BLOCKS / 2 + chance.below(BLOCKS / 2)) * BLOCK_SIZE as u64 + chance.below(4096);
        self.expected.resize(size as usize, 0);
        let changes = Changes { size: Some(size), ..Changes::default() };
        self.ask(overlay, Request::Change { inode: self.inode, changes });
    }
}

/// Settles a file whose blocks are written to meanwhile; commands complete in an order by chance.
fn settle_among_others(seed: u64) {
    let mut chance = Chance(seed);
    let (mut mount, expected) = Mount::with_blocks(BLOCKS as usize);
    let inode = mount.find().expect("it is there");
    let mut others = Others { inode, expected, asked: 0 };
    for _ in 0..60 {
        others.overwrite(&mut mount.overlay, &mut chance);
        mount.drain();
    }
    mount.overlay.handle_request(2, Request::Settle, TIME);
    let (mut out, mut done) = (Vec::new(), Vec::new());
    let mut most_out = 0;
    for turn in 0.. {
        mount.forget_moments();
        out.extend(std::iter::from_fn(|| mount.overlay.poll_io()));
        most_out = most_out.max(out.len());
        match chance.below(if turn < 400 { 8 } else { 3 }) {
            // The volume accepts in order, whatever completes first.
            0 if !out.is_empty() => done.push(mount.volume.carry_out(out.remove(0))),
            1 if !done.is_empty() => {
                let (id, buffer) = done.swap_remove(chance.below(done.len() as u64) as usize);
                mount.overlay.handle_completion(id, Ok(()), buffer);
            }
            2 => drop(mount.end_sync()),
            3 => others.overwrite(&mut mount.overlay, &mut chance),
            4 if chance.below(40) == 0 => others.resize(&mut mount.overlay, &mut chance),
            _ if turn > 400 && out.is_empty() && done.is_empty() && mount.overlay.is_quiet() => {
                break;
            }
            _ => {}
        }
    }
    let answers = std::iter::from_fn(|| mount.overlay.poll_response()).collect::<Vec<_>>();
    assert_eq!(answers.len() as u64, others.asked + 1, "seed {seed}");
    let failed: Vec<_> = answers.iter().filter(|answer| answer.result.is_err()).collect();
    assert!(failed.is_empty(), "seed {seed}: {failed:?}");
    assert!(most_out > 4, "seed {seed}: pieces are read ahead, {most_out}");
    let found = mount.content().expect("it is there");
    assert!(found.expect("it is there") == others.expected, "seed {seed}");
    mount.ask(Request::Settle).expect("nothing keeps it from coming home");
    assert_eq!(mount.overlay.store.mapped, 0, "seed {seed}");
    let home = mount.content().expect("it is there").expect("it is there");
    let differs = (0..home.len()).find(|at| home[*at] != others.expected[*at]);
    assert_eq!(differs.map(|at| at / BLOCK_SIZE), None, "seed {seed}: a block at home");
    assert_eq!(home.len(), others.expected.len(), "seed {seed}");
}

#[test]
fn what_is_written_while_a_file_is_brought_home_is_what_comes_home() {
    (0..60).for_each(settle_among_others);
}

#[test]
fn the_test_finds_a_write_that_does_not_take_back_that_its_block_is_home() {
    super::BROKEN.set(Some("copied".to_owned()));
    let found = std::panic::catch_unwind(|| (0..50).for_each(settle_among_others)).is_err();
    super::BROKEN.set(None);
    assert!(found);
}
