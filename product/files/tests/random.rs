//! Random operations against a model, without a kernel.

mod common;

use common::Mount;
use common::model::{Model, Node};
use coulter::buffer::Buffer;
use coulter_files::{AllocateMode, Changes, ROOT, RenameFlags, Reply, Request, Whence};
use coulter_workload::Random;
use std::collections::BTreeMap;

/// Bytes of the file at most.
const SIZE_MAX: u64 = 3 << 20;

struct Exerciser {
    mount: Mount,
    random: Random,
    file: u64,
    other: u64,
    content: Vec<u8>,
    other_content: Vec<u8>,
}

impl Exerciser {
    fn new(seed: u64, cache_blocks: usize) -> Exerciser {
        let mut mount = Mount::new(4096, cache_blocks, seed);
        let file = mount.create("file").unwrap();
        let other = mount.create("other").unwrap();
        let (content, other_content) = (Vec::new(), Vec::new());
        Exerciser { mount, random: Random::new(seed ^ 77), file, other, content, other_content }
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = match self.random.below(4) {
            0 => self.random.below(SIZE_MAX / 4096) * 4096,
            1 => self.random.below(SIZE_MAX),
            2 => self.content.len() as u64,
            _ => self.random.below(self.content.len() as u64 + 1),
        };
        let length = match self.random.below(5) {
            0 => 4096 * (1 + self.random.below(30)),
            1 => 1 + self.random.below(100),
            2 => 1 + self.random.below(10_000),
            3 => 4096,
            _ => 1 + self.random.below(1 << 20),
        };
        (offset, length.min(SIZE_MAX.saturating_sub(offset)).max(1))
    }

    fn step(&mut self) {
        let (offset, length) = self.range();
        let (start, end) = (offset as usize, (offset + length) as usize);
        match self.random.below(20) {
            0..=7 => self.write(offset, length),
            8..=10 => {
                let bytes = self.mount.read(self.file, offset, length as u32).unwrap();
                let end = end.min(self.content.len());
                assert_eq!(bytes, self.content.get(start..end).unwrap_or(&[]), "read at {offset}");
            }
            11..=12 => {
                let size = if self.random.chance(20) { 0 } else { offset };
                let changes = Changes { size: Some(size), ..Changes::default() };
                self.mount.run(Request::Change { inode: self.file, changes }).unwrap();
                self.content.resize(size as usize, 0);
            }
            13..=14 => {
                self.allocate(offset, length, AllocateMode::Punch);
                let end = end.min(self.content.len());
                self.content.get_mut(start..end).unwrap_or(&mut []).fill(0);
            }
            15 => {
                let keep_size = self.random.chance(50);
                self.allocate(offset, length, AllocateMode::Zero { keep_size });
                if !keep_size && end > self.content.len() {
                    self.content.resize(end, 0);
                }
                let end = end.min(self.content.len());
                self.content.get_mut(start..end).unwrap_or(&mut []).fill(0);
            }
            16 => {
                let keep_size = self.random.chance(50);
                self.allocate(offset, length, AllocateMode::Allocate { keep_size });
                if !keep_size && end > self.content.len() {
                    self.content.resize(end, 0);
                }
            }
            17 => self.copy(offset, length),
            18 => self.seek(offset),
            _ if self.random.chance(30) => self.mount.sync(),
            _ => self.mount.files.submit_changes(),
        }
    }

    fn write(&mut self, offset: u64, length: u64) {
        let byte = self.random.bits() as u8;
        let bytes: Vec<u8> = (0..length).map(|at| byte.wrapping_add((at * 7) as u8)).collect();
        self.mount.write(self.file, offset, &bytes).unwrap();
        let end = (offset + length) as usize;
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[offset as usize..end].copy_from_slice(&bytes);
    }

    fn allocate(&mut self, offset: u64, length: u64, mode: AllocateMode) {
        let request = Request::Allocate { inode: self.file, offset, length, mode };
        self.mount.run(request).unwrap();
    }

    fn copy(&mut self, offset: u64, length: u64) {
        let to_offset = self.random.below(1 << 20);
        let (from, to) = (self.file, self.other);
        let request = Request::Copy { from, from_offset: offset, to, to_offset, length };
        let Reply::Written(count, _) = self.mount.run(request).unwrap() else { panic!("a count") };
        let end = (offset + length).min(self.content.len() as u64).max(offset);
        assert_eq!(u64::from(count), end - offset);
        let target = to_offset as usize..to_offset as usize + count as usize;
        if count > 0 && self.other_content.len() < target.end {
            self.other_content.resize(target.end, 0);
        }
        if count > 0 {
            self.other_content[target]
                .copy_from_slice(&self.content[offset as usize..end as usize]);
        }
        let length = self.other_content.len() as u32;
        assert_eq!(self.mount.read(self.other, 0, length.max(1)).unwrap(), self.other_content);
    }

    /// Between what is data and what is a hole there are only zeros in the latter.
    fn seek(&mut self, offset: u64) {
        let inode = self.file;
        let data = self.mount.run(Request::Seek { inode, offset, whence: Whence::Data });
        let size = self.content.len() as u64;
        match data {
            Ok(Reply::Offset(data)) => {
                assert!(data >= offset && data < size);
                let hole = &self.content[offset as usize..data as usize];
                assert!(hole.iter().all(|byte| *byte == 0));
            }
            Err(errno) => {
                assert_eq!(errno, libc::ENXIO);
                let rest = self.content.get(offset as usize..).unwrap_or(&[]);
                assert!(rest.iter().all(|byte| *byte == 0));
            }
            other => panic!("{other:?}"),
        }
        let hole = self.mount.run(Request::Seek { inode, offset, whence: Whence::Hole });
        match hole {
            Ok(Reply::Offset(hole)) => assert!(hole >= offset && hole <= size),
            Err(errno) => assert!(errno == libc::ENXIO && offset >= size),
            other => panic!("{other:?}"),
        }
    }

    fn compare(&mut self) {
        let size = self.mount.attributes(self.file).unwrap().inode.size;
        assert_eq!(size, self.content.len() as u64);
        let content = self.mount.read(self.file, 0, SIZE_MAX as u32 + 4096).unwrap();
        let differs = content.iter().zip(&self.content).position(|(a, b)| a != b);
        assert!(content == self.content, "the content differs at {differs:?}");
    }

    /// Everything is there after it was closed and opened.
    fn reopen(&mut self) {
        self.mount.sync();
        self.mount.settle();
        let volume = self.mount.volume().cut(self.mount.volume().log.len());
        let seed = self.random.bits();
        self.mount = Mount::of(volume, 40, seed);
    }
}

#[test]
fn a_file_holds_what_was_written_whatever_is_done_to_it() {
    for seed in 0..12 {
        let mut exerciser = Exerciser::new(seed, [8, 500, 0, 1][seed as usize % 4]);
        for step in 0..400 {
            exerciser.step();
            if step % 50 == 49 {
                exerciser.compare();
            }
            if step % 130 == 129 {
                exerciser.reopen();
                exerciser.compare();
            }
        }
        let changes = Changes { size: Some(0), ..Changes::default() };
        for inode in [exerciser.file, exerciser.other] {
            exerciser.mount.run(Request::Change { inode, changes }).unwrap();
        }
        let blocks = exerciser.mount.attributes(exerciser.file).unwrap().inode.blocks;
        assert_eq!(blocks, 0, "an empty file has no blocks");
    }
}

fn random_path(random: &mut Random, model: &Model) -> String {
    let mut path = String::new();
    let mut at = 1;
    loop {
        let name = format!("n{}", random.below(7));
        path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        match &model.nodes[&at] {
            Node::Directory { names } => match names.get(&name) {
                Some(number) if random.chance(70) => at = *number,
                _ => return path,
            },
            Node::File { .. } => return path,
        }
        if path.len() > 30 {
            return path;
        }
    }
}

fn compare(mount: &mut Mount, model: &Model, number: u64, at: u64) {
    if let Node::Directory { names } = &model.nodes[&at] {
        let found: BTreeMap<String, u64> = mount
            .list(number)
            .unwrap()
            .into_iter()
            .map(|(name, number)| (String::from_utf8(name).unwrap(), number))
            .collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), names.keys().collect::<Vec<_>>());
        let directories =
            names.values().filter(|child| matches!(model.nodes[child], Node::Directory { .. }));
        let links = mount.attributes(number).unwrap().inode.links;
        assert_eq!(links as usize, 2 + directories.count());
        for (name, child) in names {
            compare(mount, model, found[name], *child);
        }
    } else {
        let links = mount.attributes(number).unwrap().inode.links;
        let names = model.nodes.values().map(|node| match node {
            Node::Directory { names } => names.values().filter(|n| **n == at).count(),
            Node::File { .. } => 0,
        });
        // Directories that were taken away were empty, so each name counts.
        assert_eq!(links as usize, names.sum::<usize>());
    }
}

#[test]
fn names_are_those_of_the_model_whatever_is_made_moved_and_removed() {
    for seed in 0..20u64 {
        let mut random = Random::new(seed * 31 + 5);
        let mut model = Model::default();
        let mut mount = Mount::new(4096, if seed % 2 == 0 { 6 } else { 500 }, seed);
        for step in 0..600 {
            let one = random_path(&mut random, &model);
            let other = random_path(&mut random, &model);
            let strip = |result: Result<u64, i32>| result.map(|_| ());
            let (expected, found) = match random.below(10) {
                0..=2 => (strip(model.create(&one)), strip(mount.create(&one))),
                3..=4 => (strip(model.mkdir(&one)), strip(mount.mkdir(&one))),
                5..=6 => {
                    let is_rmdir = random.chance(50);
                    let found = mount.split(&one).and_then(|(directory, name, _)| {
                        mount.run(if is_rmdir {
                            Request::RemoveDirectory { directory, name }
                        } else {
                            Request::Unlink { directory, name }
                        })
                    });
                    (model.unlink(&one, is_rmdir), found.map(|_| ()))
                }
                7 => {
                    let found = mount.path(&one).and_then(|inode| {
                        let (directory, name, _) = mount.split(&other)?;
                        let reply = mount.run(Request::Link { inode, directory, name })?;
                        mount.files.forget(inode, 1);
                        drop(reply);
                        Ok(())
                    });
                    (model.link(&one, &other), found)
                }
                _ => {
                    let exchange = random.chance(30);
                    let flags = if exchange { RenameFlags::Exchange } else { RenameFlags::Replace };
                    let found = mount.split(&one).and_then(|(from, name, _)| {
                        let (to, new_name, _) = mount.split(&other)?;
                        mount.run(Request::Rename { from, name, to, new_name, flags })
                    });
                    (model.rename(&one, &other, exchange), found.map(|_| ()))
                }
            };
            // Where both are wrong in two ways, either may be told.
            assert_eq!(expected.is_ok(), found.is_ok(), "{step}: {one} {other} {found:?}");
            if step % 100 == 99 {
                compare(&mut mount, &model, ROOT, 1);
            }
        }
        compare(&mut mount, &model, ROOT, 1);
    }
}

#[test]
fn a_large_directory_lists_each_name_once_while_it_is_emptied() {
    common::scenes::directory_emptied_while_it_is_listed();
}

#[test]
fn an_open_file_without_a_name_is_there_until_it_is_closed() {
    common::scenes::file_unlinked_while_it_is_open();
}

#[test]
fn a_full_file_system_says_so_and_can_be_emptied() {
    let mut mount = Mount::new(1024, 100, 5);
    let mut made = Vec::new();
    let errno = loop {
        let path = format!("f{}", made.len());
        match mount.create(&path).and_then(|file| mount.write(file, 0, &[7; 40_000])) {
            Ok(()) => made.push(path),
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, libc::ENOSPC);
    assert!(made.len() > 80, "{}", made.len());
    let mut number = 0;
    while mount.create(&format!("more{number}")).is_ok() {
        number += 1;
    }
    let names = mount.list(ROOT).unwrap();
    for (bytes, _) in names {
        let name = coulter_files::Name::new(&bytes).unwrap();
        mount.run(Request::Unlink { directory: ROOT, name }).unwrap();
    }
    mount.settle();
    let Reply::Usage(usage) = mount.run(Request::Statistics).unwrap() else { panic!("usage") };
    assert_eq!((usage.inodes, usage.free), (1, 1024 - 3));
    let file = mount.create("again").unwrap();
    mount.write(file, 0, &[1; 1 << 20]).unwrap();
}

#[test]
fn many_writes_at_once_land_where_they_belong() {
    for seed in 0..10 {
        let mut mount = Mount::new(4096, 20, seed);
        let mut random = Random::new(seed + 100);
        let file = mount.create("f").unwrap();
        let mut model = vec![0u8; 1 << 20];
        mount.write(file, 0, &model).unwrap();
        for round in 0..40u8 {
            let mut blocks: Vec<u64> = (0..200).collect();
            let mut ids = Vec::new();
            for _ in 0..24 {
                let place = random.below(blocks.len() as u64) as usize;
                let block = blocks.swap_remove(place);
                let cut = random.below(2000);
                let (offset, length) = (block * 4096 + cut, 4096 - cut);
                let bytes = vec![round ^ block as u8; length as usize];
                model[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
                let buffer = Buffer::copied_from(&bytes);
                ids.push(mount.submit(Request::Write {
                    inode: file,
                    offset,
                    buffer,
                    kills_privileges: true,
                    sync: random.chance(10),
                }));
            }
            for id in ids {
                mount.wait(id).unwrap();
            }
            assert!(mount.read(file, 0, 1 << 20).unwrap() == model);
        }
    }
}
