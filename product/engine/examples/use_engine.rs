//! Lays out a new store of 256 MiB: what would be written to a device before the engine opens it.

use coulter_engine::create::{CreateOptions, create};
use coulter_format::StoreId;

fn main() {
    let options = CreateOptions {
        device_size: (256 << 20) / 4096,
        volume_size: None,
        sparse: None,
        segment_blocks: 512,
        spare_percent: 20,
        store: StoreId { uuid: [1; 16], salt: 1 },
        label: [0; 64],
        map_size: None,
        journal_size: None,
        run_count_limit: None,
        page_blocks: None,
    };
    let (superblock, blocks) = create(&options).expect("it fits");
    assert_eq!(superblock.store, options.store);
    println!("{:?}", superblock.geometry);
    for (pba, _) in blocks {
        println!("a block for device block {}", pba.0);
    }
}
