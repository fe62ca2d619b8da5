//! When things happen: each die, each channel, the link and the controller is busy until some time.
//!
//! An operation begins when its request is there and what it needs is free; there is no event
//! queue, because nothing is ever taken back. Requests should therefore come in order of time: one
//! that comes late still finds what later ones have left free, never more.
//!
//! ```text
//! read     die: cells (tR) ------> channel: transfer      the die is held until the data is out
//! program  channel: transfer ----> die: cells (tPROG)
//! erase    die: cells (tBERS)
//! ```
//! - **Word lines.** The cells work once for all pages of a word line, when the last of them has
//!   come; the controller keeps the others until then. A page of a word line that is not complete is
//!   answered as if the cells had worked for it, but the die stays free. Equal word lines in other
//!   planes of the die share the cell time if they arrive before it begins.
//! - **Page register.** A read of the word line that the die has read last costs no cell time.
//! - Erases and programs are not suspended for reads.

use crate::geometry::Geometry;
use crate::profile::Profile;
use crate::units::{EraseBlock, Ns};

/// The word line that a die programs, or has programmed last, and in how many planes.
#[derive(Clone, Copy, Debug)]
struct Group {
    word_line: u32,
    members: u32,
    /// Until then pages may join.
    cells_begin: Ns,
}

#[derive(Clone, Debug)]
struct Die {
    free_at: Ns,
    group: Group,
    /// Erase block and word line whose pages are in the register.
    register: (u32, u32),
    busy_ns: Ns,
}

const NOTHING: u32 = u32::MAX;

/// What is busy until when.
#[derive(Clone, Debug)]
pub(crate) struct Timelines {
    geometry: Geometry,
    dies: Vec<Die>,
    channels: Vec<Ns>,
    channels_busy_ns: Ns,
    link: Ns,
    controller: Ns,
    read_ns: Ns,
    program_ns: Ns,
    erase_ns: Ns,
    command_ns: Ns,
    page_ns: Ns,
    page_transfer_ns: Ns,
    link_bytes_per_us: u64,
    pages_per_program: u32,
}

impl Timelines {
    pub(crate) fn new(profile: &Profile) -> Timelines {
        let geometry = profile.geometry;
        let group = Group { word_line: NOTHING, members: 0, cells_begin: 0 };
        let die = Die { free_at: 0, group, register: (NOTHING, NOTHING), busy_ns: 0 };
        let page_bytes = u64::from(geometry.page_size);
        Timelines {
            geometry,
            dies: vec![die; geometry.dies() as usize],
            channels: vec![0; geometry.channels as usize],
            channels_busy_ns: 0,
            link: 0,
            controller: 0,
            read_ns: profile.read_ns,
            program_ns: profile.program_ns,
            erase_ns: profile.erase_ns,
            command_ns: profile.command_ns,
            page_ns: profile.page_ns,
            page_transfer_ns: page_bytes * 1000 / profile.channel_bytes_per_us,
            link_bytes_per_us: profile.link_bytes_per_us,
            pages_per_program: profile.pages_per_program,
        }
    }

    /// When the controller has taken a command of so many pages that arrived at `at`.
    pub(crate) fn command(&mut self, at: Ns, pages: u32) -> Ns {
        self.controller = self.controller.max(at) + self.command_ns;
        self.controller += self.page_ns * u64::from(pages);
        self.controller
    }

    /// When so many bytes have passed between host and controller.
    pub(crate) fn transfer(&mut self, at: Ns, bytes: u64) -> Ns {
        self.link = self.link.max(at) + bytes * 1000 / self.link_bytes_per_us;
        self.link
    }

    /// When a page is in the controller.
    #[inline]
    pub(crate) fn read(&mut self, at: Ns, block: EraseBlock, offset: u32) -> Ns {
        let die_index = self.geometry.die_of(block);
        let channel = &mut self.channels[self.geometry.channel_of(die_index) as usize];
        let die = &mut self.dies[die_index as usize];
        let place = (block.0, offset / self.pages_per_program);
        let begin = die.free_at.max(at);
        let cells = if die.register == place { 0 } else { self.read_ns };
        let done = (begin + cells).max(*channel) + self.page_transfer_ns;
        die.register = place;
        die.busy_ns += done - begin;
        self.channels_busy_ns += self.page_transfer_ns;
        (die.free_at, *channel) = (done, done);
        done
    }

    /// When a page is on flash.
    #[inline]
    pub(crate) fn program(&mut self, at: Ns, block: EraseBlock, offset: u32) -> Ns {
        let die_index = self.geometry.die_of(block);
        let channel = &mut self.channels[self.geometry.channel_of(die_index) as usize];
        let die = &mut self.dies[die_index as usize];
        let word_line = offset / self.pages_per_program;
        self.channels_busy_ns += self.page_transfer_ns;
        let before = die.free_at;
        if !(offset + 1).is_multiple_of(self.pages_per_program) {
            *channel = (*channel).max(at) + self.page_transfer_ns;
            return *channel + self.program_ns;
        }
        let joins = die.group.word_line == word_line
            && die.group.members < self.geometry.planes_per_die
            && at <= die.group.cells_begin;
        if joins {
            *channel = (*channel).max(at) + self.page_transfer_ns;
            die.group.members += 1;
            die.group.cells_begin = die.group.cells_begin.max(*channel);
            die.free_at = die.group.cells_begin + self.program_ns;
            die.busy_ns += die.free_at - before;
        } else {
            let begin = before.max(at).max(*channel);
            *channel = begin + self.page_transfer_ns;
            die.group = Group { word_line, members: 1, cells_begin: *channel };
            die.free_at = *channel + self.program_ns;
            die.busy_ns += die.free_at - begin;
        }
        die.register = (NOTHING, NOTHING);
        die.free_at
    }

    /// When an erase block is erased.
    pub(crate) fn erase(&mut self, at: Ns, block: EraseBlock) -> Ns {
        let die = &mut self.dies[self.geometry.die_of(block) as usize];
        die.free_at = die.free_at.max(at) + self.erase_ns;
        die.group.word_line = NOTHING;
        die.register = (NOTHING, NOTHING);
        die.busy_ns += self.erase_ns;
        die.free_at
    }

    /// Pages of a word line.
    pub(crate) fn pages_per_program(&self) -> u32 {
        self.pages_per_program
    }

    /// When the last operation that was begun on any die ends.
    pub(crate) fn idle_at(&self) -> Ns {
        self.dies.iter().map(|die| die.free_at).max().unwrap_or(0)
    }

    /// Nothing is busy any more: the power was off. Time goes on from `at`.
    pub(crate) fn restart(&mut self, at: Ns) {
        for die in &mut self.dies {
            die.free_at = at;
            die.group.word_line = NOTHING;
            die.register = (NOTHING, NOTHING);
        }
        self.channels.fill(at);
        (self.link, self.controller) = (at, at);
    }

    /// Time that all dies, and all channels, were in use, added up.
    pub(crate) fn busy_ns(&self) -> (Ns, Ns) {
        (self.dies.iter().map(|die| die.busy_ns).sum(), self.channels_busy_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two channels of one die each; 8 KiB pages: transfer 20 480 ns.
    fn tiny() -> Timelines {
        Timelines::new(&Profile::named("tiny").expect("it comes with the crate"))
    }

    const TRANSFER: Ns = 20_480;

    #[test]
    fn dies_work_at_once_and_one_die_takes_turns() {
        let mut time = tiny();
        assert_eq!(time.program(0, EraseBlock(0), 0), TRANSFER + 500_000);
        assert_eq!(time.program(0, EraseBlock(1), 0), TRANSFER + 500_000);
        assert_eq!(time.program(0, EraseBlock(0), 1), 2 * (TRANSFER + 500_000));
        assert_eq!(time.read(0, EraseBlock(1), 0), 2 * TRANSFER + 550_000);
        assert_eq!(time.erase(0, EraseBlock(1)), 2 * TRANSFER + 2_550_000);
    }

    #[test]
    fn a_second_read_of_the_register_costs_only_the_transfer() {
        let mut time = tiny();
        let first = time.read(0, EraseBlock(0), 3);
        assert_eq!(first, 50_000 + TRANSFER);
        assert_eq!(time.read(first, EraseBlock(0), 3), first + TRANSFER);
        assert_eq!(time.read(0, EraseBlock(0), 4), first + 2 * TRANSFER + 50_000);
    }

    #[test]
    fn pages_of_a_word_line_and_of_equal_ones_in_other_planes_share_the_program_time() {
        let profile = Profile::named("sata-tlc").expect("it comes with the crate");
        let mut time = Timelines::new(&profile);
        let transfer = 4096 * 1000 / profile.channel_bytes_per_us;
        let done: Vec<_> = (0..4).map(|page| time.program(0, EraseBlock(0), page)).collect();
        assert_eq!(done[3], 4 * transfer + profile.program_ns);
        // The other plane of the same die: erase blocks of eight dies lie between.
        let other: Vec<_> = (0..4).map(|page| time.program(0, EraseBlock(8), page)).collect();
        assert_eq!(other[3], 8 * transfer + profile.program_ns);
        // Too late to share.
        let late: Vec<_> = (4..8).map(|page| time.program(other[3], EraseBlock(0), page)).collect();
        assert_eq!(late[3], other[3] + 4 * transfer + profile.program_ns);
        assert!(late[0] < late[3], "the first page is answered as if programmed alone");
    }

    #[test]
    fn commands_and_transfers_pass_one_after_the_other() {
        let mut time = tiny();
        assert_eq!(time.command(0, 2), 6_000);
        assert_eq!(time.command(0, 0), 11_000);
        assert_eq!(time.command(50_000, 0), 55_000);
        assert_eq!(time.transfer(0, 500), 1_000);
        assert_eq!(time.transfer(0, 500), 2_000);
    }
}
