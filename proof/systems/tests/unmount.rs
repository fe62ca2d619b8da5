//! What is unmounted lies on its device no more, whoever else had a copy of the mount.

mod right;

use coulter_systems::{FileSystem, Scratch};
use right::{PARENT, may_mount, skipped};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A process with a mount namespace of its own, for as long as this lives.
struct Elsewhere(Child);

impl Elsewhere {
    fn spawn() -> Elsewhere {
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("`unshare` can be run");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
        said.read_line(&mut String::new()).expect("it says something");
        Elsewhere(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("it is our child");
    }
}

/// Whether the file system in `image` was left in good order.
fn is_clean(image: &Path) -> bool {
    let output = Command::new("dumpe2fs").arg("-h").arg(image).output().expect("it can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Filesystem features:"), "{said}");
    !said.contains("needs_recovery")
}

#[test]
fn unmounting_waits_for_copies_of_the_mount_elsewhere() {
    let Some(_alone) = may_mount() else { return };
    if !FileSystem::Ext4.is_installed() {
        return skipped("the programs of ext4 are not installed");
    }
    let scratch = Scratch::new(Path::new(PARENT)).expect("a directory can be made");
    let image = scratch.path("image");
    File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("it is writable");
    let directory = scratch.make_directory("mounted").expect("the directory is ours");
    let run = |program: &str, words: &[&str], last: &[&Path]| {
        let mut command = Command::new(program);
        let status = command.args(words).args(last).status().expect("it can be run");
        assert!(status.success(), "{program}");
    };
    run("mkfs.ext4", &["-q"], &[&image]);
    run("mount", &["-o", "loop"], &[&image, &directory]);
    fs::write(directory.join("file"), "content").expect("it is mounted");
    assert!(!is_clean(&image), "it is in use");

    let elsewhere = Elsewhere::spawn();
    let (sender, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        let (directory, image) = (&directory, &image);
        scope.spawn(move || {
            FileSystem::unmount(directory).expect("the copy goes in time");
            sender.send(is_clean(image)).expect("somebody listens");
        });
        let early = ended.recv_timeout(Duration::from_millis(300));
        drop(elsewhere);
        assert!(early.is_err(), "the copy was not waited for");
        assert!(ended.recv().expect("it ends"), "it is still in use");
    });
}
