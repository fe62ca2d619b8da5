//! Every target on its corpus, and on random changes of it, for a moment; `make fuzz` does so for
//! as long as one likes, and sees which changes reach further.

use coulter_fuzz::{TARGETS, Target};
use coulter_workload::Random;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for changes of each target's corpus.
const TIME: Duration = Duration::from_millis(1500);

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = fs::read_dir(directory.join(target.name));
    let entries = entries.unwrap_or_else(|error| panic!("corpus of {}: {error}", target.name));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).expect("it was listed"))).collect()
}

#[test]
fn every_target_survives_its_corpus() {
    for target in TARGETS {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{} has no corpus", target.name);
        for (path, bytes) in inputs {
            assert!(bytes.len() <= target.size_max, "{} is too long", path.display());
            let run = std::panic::catch_unwind(|| (target.run)(&bytes));
            assert!(run.is_ok(), "{}: {}", target.name, path.display());
        }
    }
}

/// Changes bytes, cuts, repeats, and splices two inputs.
fn change(random: &mut Random, inputs: &[(PathBuf, Vec<u8>)], size_max: usize) -> Vec<u8> {
    let pick = |random: &mut Random| &inputs[random.below(inputs.len() as u64) as usize].1;
    let mut bytes = pick(random).clone();
    if random.below(3) == 0 {
        let cut = random.below(bytes.len() as u64 + 1) as usize;
        let other = pick(random);
        let from = random.below(other.len() as u64 + 1) as usize;
        bytes.truncate(cut);
        bytes.extend_from_slice(&other[from..]);
    }
    for _ in 0..random.below(8) {
        let Some(last) = bytes.len().checked_sub(1) else { break };
        let at = random.below(last as u64 + 1) as usize;
        match random.below(4) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] = bytes[at].wrapping_add(1),
            2 => bytes[at] ^= 1 << random.below(8),
            _ => bytes[at] = 0xff,
        }
    }
    bytes.truncate(size_max);
    bytes
}

#[test]
fn every_target_survives_changes_of_its_corpus() {
    for (number, target) in (0..).zip(TARGETS) {
        let inputs = corpus(target);
        let mut random = Random::new(number);
        let (begin, mut tries) = (Instant::now(), 0u64);
        while tries < 20 || begin.elapsed() < TIME {
            let bytes = change(&mut random, &inputs, target.size_max);
            let run = std::panic::catch_unwind(|| (target.run)(&bytes));
            assert!(run.is_ok(), "{}: input {bytes:?}", target.name);
            tries += 1;
        }
        println!("{}: {tries} inputs", target.name);
    }
}
