//! Finds the data in a sparse file.

use coulter_system::sparse::{Content, content, next_data};
use std::os::unix::fs::FileExt;

fn main() -> std::io::Result<()> {
    let path = std::env::temp_dir().join(format!("coulter-use-system-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let size = 64 << 20;
    file.set_len(size)?;
    assert_eq!(content(&file, size, size)?, Content::Zeros);

    file.write_all_at(b"data", 32 << 20)?;
    assert_eq!(content(&file, size, size)?, Content::From(32 << 20));
    println!("{:?}", next_data(&file, 0, size)?);
    Ok(())
}
