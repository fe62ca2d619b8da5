//! What the store of an overlay looks like: made for a directory, read back, and refused for another one.
//! `cargo run --example use_overlay`

use coulter_overlay::{Handle, Superblock, create};

const BLOCK_SIZE: usize = 4096;

fn main() {
    // A real one is `Directory::open(path)?.root()`, which needs root.
    let directory = Handle::new(1, b"the directory").expect("a handle may have 40 bytes");
    let (blocks, capacity) = ((1 << 30) / BLOCK_SIZE as u64, 1 << 17);
    let superblock = create([7; 16], directory, blocks, capacity);
    println!(
        "a volume of 1 GiB has {} windows of 2 MiB, from block {} on",
        superblock.window_count,
        superblock.windows_start()
    );
    assert!(superblock.block_count() <= blocks);

    let mut block = [0; BLOCK_SIZE];
    superblock.encode(&mut block);
    let read = Superblock::decode(&block).expect("it was just written");
    assert!(read.directory == directory);
    let other = Handle::new(1, b"another one").expect("a handle may have 40 bytes");
    assert!(read.directory != other, "the store is of one directory alone");
    // A block of something else is told from a superblock.
    assert!(Superblock::decode(&[0; BLOCK_SIZE]).is_err());
}
