//! Writes inputs to begin with into `proof/fuzz/corpus`, where a target has none.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in coulter_fuzz::TARGETS {
        let directory = corpus.join(target.name);
        fs::create_dir_all(&directory)?;
        if fs::read_dir(&directory)?.next().is_some() {
            continue;
        }
        for (number, seed) in coulter_fuzz::seeds(target).into_iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
