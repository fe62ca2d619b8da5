//! POSIX access control lists on files: kept, enforced by the kernel, and given to what is made below.

mod places;
mod sandbox;

use coulter_systems::FileSystem;
use places::{Place, Put, run, said};
use sandbox::{Sandbox, can_mount};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// The list of a file as `getfacl` shows it, its owner left out.
fn list(path: &Path) -> Vec<String> {
    let text = said(
        Command::new("getfacl").args(["--omit-header", "--absolute-names", "--numeric"]).arg(path),
    );
    text.lines().filter(|line| !line.is_empty()).map(|line| line.replace('\t', " ")).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn set(words: &[&str], path: &Path) {
    run(Command::new("setfacl").args(words).arg(path));
}

/// Whether the user `games` may do it.
fn may(command: &str, path: &Path) -> bool {
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=games", "--regid=games", "--clear-groups", "sh", "-c", command, "sh"]);
    shell.arg(path).output().expect("it can be run").status.success()
}

fn lists_are_kept(put: &mut Put<'_>) {
    let directory = put.directory.clone();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let file = directory.join("file");
    fs::write(&file, "text").expect("it is writable");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is ours");
    assert!(!may("cat \"$1\"", &file), "others may not");
    set(&["-m", "u:games:rw"], &file);
    assert!(may("cat \"$1\" && echo more >>\"$1\"", &file), "the list says that games may");
    assert_eq!(list(&file), ["user::rw-", "user:5:rw-", "group::r--", "mask::rw-", "other::---"]);
    assert_eq!(mode(&file), 0o660, "the mask stands for the group");
    // The mode changes the mask, and the mask what the list gives.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is ours");
    assert!(may("cat \"$1\"", &file) && !may("echo more >>\"$1\"", &file));
    assert_eq!(list(&file)[1], "user:5:rw- #effective:r--");
    // Without named users it is the mode again.
    set(&["-b"], &file);
    assert_eq!((mode(&file), list(&file).len()), (0o640, 3));
    assert!(!may("cat \"$1\"", &file));

    let below = directory.join("below");
    fs::create_dir(&below).expect("it is new");
    set(&["-d", "-m", "u::rwx,u:games:rwx,g::rx,o::-"], &below);
    let umask = "umask 077; touch \"$1\"/made; mkdir \"$1\"/deeper; ln -s made \"$1\"/link";
    run(Command::new("sh").args(["-c", umask, "sh"]).arg(&below));
    // The default list decides in place of the umask.
    let made = [
        "user::rw-",
        "user:5:rwx #effective:rw-",
        "group::r-x #effective:r--",
        "mask::rw-",
        "other::---",
    ];
    assert_eq!(list(&below.join("made")), made);
    assert_eq!(mode(&below.join("made")), 0o660);
    let deeper = list(&below.join("deeper"));
    assert!(deeper.contains(&"default:user:5:rwx".to_owned()), "{deeper:?}");
    assert!(may("test -w \"$1\"", &below.join("deeper")), "its own list lets games in");
    // Where there is no default list, the umask counts.
    run(Command::new("sh").args(["-c", "umask 027; touch \"$1\"/plain", "sh"]).arg(&directory));
    assert_eq!((mode(&directory.join("plain")), list(&directory.join("plain")).len()), (0o640, 3));
    put.put_again();
    assert_eq!(list(&below.join("made")), made, "it is kept");
    set(&["-k"], &below);
    fs::write(below.join("after"), "").expect("it is writable");
    assert_eq!(list(&below.join("after")).len(), 3, "no default list any more");
}

#[test]
fn lists_are_kept_enforced_and_given_on() {
    let Some(_right) = can_mount("lists_are_kept_enforced_and_given_on") else { return };
    for place in [Place::Own, Place::Over(FileSystem::Ext4)] {
        let sandbox = Sandbox::new();
        sandbox.let_others_in();
        let mut put = Put::new(&sandbox, place);
        lists_are_kept(&mut put);
        put.take_away();
    }
}
