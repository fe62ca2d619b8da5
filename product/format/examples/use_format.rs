//! Computes a block's checksum, bound to its address, and decodes a block that is no superblock.

use coulter_format::checksum::{self, Kind};
use coulter_format::superblock::Superblock;
use coulter_format::{BLOCK_SIZE, Block};

fn main() {
    let block: Block = [7; BLOCK_SIZE];
    let [here, elsewhere] = [41, 42].map(|lba| checksum::block(Kind::Data, lba, &block));
    assert_ne!(here, elsewhere, "a block at another address has another checksum");
    println!("block 41: {here:08x}, the same bytes at block 42: {elsewhere:08x}");

    let error = Superblock::decode(&block).expect_err("it has no magic number");
    println!("{error}");
}
