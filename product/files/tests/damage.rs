//! Each block of the tree damaged in turn: the checker names it, a mounted file system answers EIO
//! for what lies below it and goes on with the rest, and what can be taken out is.

mod common;

use common::{Block, Mount, Volume};
use coulter_check::files::{Finding, check, check_data, rescue};
use coulter_files::{ROOT, Request, XattrMode};
use coulter_format::files::{Key, Kind, Node, Superblock, node, space};

const FILES: u64 = 260;

/// A tree of three levels: directories with files of content, and links.
fn tree() -> Volume {
    let mut mount = Mount::new(16_384, 2000, 1);
    for directory in 0..4 {
        mount.mkdir(&format!("d{directory}")).unwrap();
        for file in 0..FILES / 4 {
            let name = format!("d{directory}/{}-{file}", "a name of some length".repeat(6));
            let inode = mount.create(&name).unwrap();
            mount.write(inode, 0, &content(directory, file)).unwrap();
        }
    }
    mount.sync();
    mount.settle();
    mount.volume().clone()
}

fn content(directory: u64, file: u64) -> Vec<u8> {
    vec![(directory * 70 + file) as u8 | 1; 5000]
}

/// The nodes of the tree.
fn nodes(volume: &Volume) -> Vec<u64> {
    let superblock = Superblock::decode(&volume.block(0)).unwrap();
    let mut found = vec![superblock.root];
    let mut at = 0;
    while let Some(block) = found.get(at).copied() {
        at += 1;
        let data = volume.block(block);
        let node = Node(&data);
        if node.level() > 0 {
            found.extend((0..node.count()).map(|index| node.child(index)));
        }
    }
    found
}

/// How the check is told of a block.
fn is_named(finding: &Finding, damaged: u64) -> bool {
    match *finding {
        Finding::Unreadable { block } | Finding::Node { block, .. } => block == damaged,
        Finding::Superblock { .. } => damaged == 0,
        _ => false,
    }
}

#[test]
fn each_damaged_block_of_the_tree_is_found_by_its_number() {
    let volume = tree();
    let mut blocks = nodes(&volume);
    assert!(blocks.len() > 20, "{}", blocks.len());
    blocks.extend([0, space::bitmap_block(0)]);
    for damaged in blocks {
        let is_bitmap = damaged == space::bitmap_block(0);
        // What the volume's checksum tells, and what no checksum would.
        let noise: [Option<Block>; 3] = [None, Some([0; 4096]), Some([0xa5; 4096])];
        for bytes in noise {
            let mut read = |block| match bytes {
                None if block == damaged => Err(()),
                Some(bytes) if block == damaged => Ok(bytes),
                _ => Ok(volume.block(block)),
            };
            let report = check(&mut read, volume.block_count);
            let found = report.findings.iter().any(|finding| is_named(finding, damaged));
            // A bitmap of other bytes is compared with the tree: the blocks are named that differ.
            let is_told = found || is_bitmap && bytes.is_some() && !report.is_sound();
            assert!(is_told, "block {damaged}: {:?}", report.findings.first());
        }
    }
}

#[test]
fn leaves_that_a_damaged_node_led_to_are_rescued() {
    let volume = tree();
    let superblock = Superblock::decode(&volume.block(0)).unwrap();
    let whole = rescue(&mut |block| Ok::<_, ()>(volume.block(block)), volume.block_count);
    assert!(whole.damaged.is_empty());
    assert_eq!(whole.names.len() as u64, FILES / 4 * 4 + 4);
    for damaged in nodes(&volume).into_iter().chain([0]) {
        let mut read = |block| if block == damaged { Err(()) } else { Ok(volume.block(block)) };
        let rescued = rescue(&mut read, volume.block_count);
        assert_eq!(rescued.damaged, [damaged]);
        let is_leaf = damaged != 0 && Node(&volume.block(damaged)).level() == 0;
        match is_leaf {
            false => assert_eq!((&rescued.names, &rescued.inodes), (&whole.names, &whole.inodes)),
            true => {
                // What one leaf has room for.
                let lost = whole.names.len() - rescued.names.len();
                assert!(lost < 32 && rescued.found_leaves == 0, "{lost} names are lost");
            }
        }
    }
    assert!(node::check(&volume.block(superblock.root), superblock.root).is_ok());
}

#[test]
fn each_damaged_block_of_a_file_is_found_only_if_data_is_read() {
    let volume = tree();
    let whole = rescue(&mut |block| Ok::<_, ()>(volume.block(block)), volume.block_count);
    for (inode, rescued) in whole.inodes.iter().filter(|(inode, _)| *inode % 17 == 0) {
        for (first, extent) in &rescued.extents {
            let damaged = extent.block;
            let mut read = |block| if block == damaged { Err(()) } else { Ok(volume.block(block)) };
            let mut report = check(&mut read, volume.block_count);
            assert!(report.is_sound());
            check_data(&mut read, &mut report, &mut || {});
            let (inode, block, count) = (*inode, *first, 1);
            assert_eq!(report.findings, [Finding::Data { inode, block, count }]);
            assert_eq!(report.counters.data_blocks_read, report.counters.data_blocks);
        }
    }
}

#[test]
fn what_a_lost_leaf_held_is_told_of_every_file() {
    let mut mount = Mount::new(16_384, 2000, 1);
    for number in 0..40 {
        let file = mount.create(&format!("file{number}")).unwrap();
        for block in 0..12 {
            // With holes between, so that each has an extent.
            mount.write(file, block * 3 * 4096, &[number as u8; 4096]).unwrap();
        }
        for (attribute, size) in [("user.short", 100), ("user.long", 9000)] {
            let (name, value) = (common::name(attribute), vec![1; size].into());
            let (mode, kills_set_gid) = (XattrMode::Any, false);
            let request = Request::SetXattr { inode: file, name, value, mode, kills_set_gid };
            mount.run(request).unwrap();
        }
    }
    mount.sync();
    mount.settle();
    let volume = mount.volume().clone();
    let whole = rescue(&mut |block| Ok::<_, ()>(volume.block(block)), volume.block_count);
    assert!(whole.inodes.values().all(|rescued| rescued.lost_blocks() == 0));
    for damaged in nodes(&volume) {
        let mut read = |block| if block == damaged { Err(()) } else { Ok(volume.block(block)) };
        let rescued = rescue(&mut read, volume.block_count);
        for (number, found) in &rescued.inodes {
            let expected = &whole.inodes[number];
            let lacks_blocks = found.extents != expected.extents;
            assert!(found.inode.is_none() || lacks_blocks == (found.lost_blocks() > 0), "{number}");
            let lacks = found.attributes != expected.attributes;
            let is_told = !found.incomplete.is_empty() || rescued.may_lack_attributes(*number);
            assert!(!lacks || is_told, "node {damaged}: attributes of {number} are lost untold");
            assert!(found.attributes.iter().all(|one| expected.attributes.contains(one)));
        }
        let told = rescued.inodes.keys().filter(|number| rescued.may_lack_attributes(**number));
        let is_leaf = Node(&volume.block(damaged)).level() == 0;
        assert!(told.count() <= if is_leaf { 4 } else { 40 }, "only what may be lost is told");
    }
}

/// Mounts the volume with a node that the volume gives as damaged.
fn damaged_mount(volume: &Volume, damaged: u64) -> Option<Mount> {
    let mut mount = Mount::damaged(volume.clone(), 4000, damaged);
    match mount.files.is_open() {
        Ok(true) => {
            mount.settle();
            Some(mount)
        }
        _ => None,
    }
}

#[test]
fn what_lies_below_a_damaged_node_gives_an_error_and_the_rest_goes_on() {
    let volume = tree();
    let root = Superblock::decode(&volume.block(0)).unwrap().root;
    for damaged in nodes(&volume) {
        let Some(mut mount) = damaged_mount(&volume, damaged) else {
            assert_eq!(damaged, root, "only without its root it does not open");
            continue;
        };
        let (mut good, mut errors) = (0, 0);
        for directory in 0..4 {
            for file in 0..FILES / 4 {
                let name = format!("d{directory}/{}-{file}", "a name of some length".repeat(6));
                let read = mount.path(&name).and_then(|inode| mount.read(inode, 0, 9000));
                match read {
                    Ok(bytes) => {
                        assert!(bytes == content(directory, file), "node {damaged}: a mixture");
                        good += 1;
                    }
                    Err(libc::EIO) => errors += 1,
                    Err(errno) => panic!("node {damaged}: error {errno}"),
                }
            }
        }
        assert!(errors > 0, "node {damaged} is of use to nothing");
        // All lies below the root directory, whose attributes are the first item.
        let data = volume.block(damaged);
        let (node, first) = (Node(&data), Key::new(ROOT, Kind::Inode, 0));
        let is_small = node.level() == 0 && node.key(0) != first;
        assert!(!is_small || good > FILES / 4, "node {damaged}: only {good} are left");
        assert_eq!(mount.files.damaged_blocks(), [damaged], "it is told");
        if let Ok(inode) = mount.create("new") {
            mount.write(inode, 0, &[7; 100]).expect("the rest goes on");
            assert_eq!(mount.read(inode, 0, 200), Ok(vec![7; 100]));
            assert_eq!(mount.attributes(ROOT).map(|found| found.number), Ok(ROOT));
        } else {
            assert!(errors > 0);
        }
    }
}
