//! Makes an empty file system on a volume in memory, and opens it by answering its reads.

use coulter_files::{BLOCK_SIZE, Command, CreateOptions, Files, Options, Time, create};

const BLOCKS: u64 = 4096;

fn main() {
    let options = CreateOptions {
        block_count: BLOCKS,
        uuid: [1; 16],
        hash_seed: [2; 16],
        label: [0; 64],
        owner: (0, 0),
        now: Time::default(),
    };
    let created = create(&options).expect("the volume is large enough");
    let mut volume = vec![0; BLOCKS as usize * BLOCK_SIZE];
    for (place, block) in volume.chunks_mut(BLOCK_SIZE).zip(&created) {
        place.copy_from_slice(block);
    }

    let mut files = Files::open(Options::default(), BLOCKS);
    while let Some(io) = files.poll_io() {
        let Command::Read { block, mut buffer } = io.command else {
            unreachable!("opening an empty file system only reads")
        };
        let start = block as usize * BLOCK_SIZE;
        let length = buffer.len();
        buffer.copy_from_slice(&volume[start..start + length]);
        files.handle_completion(io.id, Ok(()), buffer);
    }
    assert_eq!(files.is_open(), Ok(true));
    let superblock = files.superblock().expect("it is open");
    println!("{} of {BLOCKS} blocks are free", superblock.free_blocks);
}
