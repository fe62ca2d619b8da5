//! The owner of a directory, who is not root, puts things where an overlay keeps its own.

use crate::overlaid::put_over;
use crate::sandbox::{Sandbox, can_mount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

/// A user who is not root.
const GAMES: u32 = 5;

#[test]
fn nothing_is_made_written_or_waited_for_where_the_owner_of_the_directory_leads() {
    let Some(_right) = can_mount("what is planted for an overlay") else { return };
    let sandbox = Sandbox::new();
    let data = sandbox.make_directory("data");
    let victim = sandbox.make_directory("victim");
    let hidden = data.join(".coulter");
    let directory_of = |owner: u32, mode: u32| {
        fs::create_dir(&hidden).expect("it is new");
        fs::set_permissions(&hidden, PermissionsExt::from_mode(mode)).expect("it is ours");
        chown(&hidden, Some(owner), Some(owner)).expect("root may");
    };
    let pipe = |name: &str| {
        let (at, path, kind) = (rustix::fs::CWD, hidden.join(name), rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(at, path, kind, rustix::fs::Mode::RWXU, 0).expect("it is writable");
    };
    let link = |name: &str| symlink(victim.join("made"), hidden.join(name)).expect("it is new");
    let cases: [(&str, &str, &dyn Fn()); 9] = [
        ("a link", "symbolic link", &|| symlink(&victim, &hidden).expect("it is new")),
        ("of another user", "belongs to user 5", &|| directory_of(GAMES, 0o755)),
        ("open to others", "others", &|| directory_of(0, 0o777)),
        ("a file", "no directory", &|| fs::write(&hidden, "").expect("it is new")),
        ("a note that is a link", "symbolic link", &|| (directory_of(0, 0o700), link("state")).1),
        ("a note that is a pipe", "regular file", &|| (directory_of(0, 0o700), pipe("state")).1),
        ("a beginning that is a link", "symbolic link", &|| {
            directory_of(0, 0o700);
            link("begun");
        }),
        ("a store that is a link", "symbolic link", &|| (directory_of(0, 0o700), link("store")).1),
        ("a store that is a pipe", "regular file", &|| (directory_of(0, 0o700), pipe("store")).1),
    ];
    for (case, why, plant) in cases {
        plant();
        let error = sandbox.fails(1, &["overlay", "data", "--store-size", "256M"]);
        assert!(error.contains(why) && error.contains(".coulter"), "{case}: {error}");
        assert!(error.contains("remove it"), "{case}: it says what to do: {error}");
        sandbox.fails(1, &["overlay", "detach", "data"]);
        assert_eq!(fs::read_dir(&victim).expect("it is there").count(), 0, "{case}");
        remove(&hidden);
    }
    chown(&data, Some(GAMES), Some(GAMES)).expect("root may");
    put_over(&sandbox, "data", &[]);
    sandbox.ok(&["overlay", "detach", "data"]);
    assert_eq!(fs::read_dir(&data).expect("it is there").count(), 0);
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        // A directory of root's goes with the command that has failed.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).expect("root may"),
        Ok(_) => fs::remove_file(path).expect("root may"),
    }
}
