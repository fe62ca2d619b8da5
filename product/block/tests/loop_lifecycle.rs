//! Loop devices and file mounts whose process dies, or whose user does not let go.

use coulter::service::RequestError;
use coulter_attach::harden::harden_process;
use coulter_attach::point::{AttachPoint, Detach, DetachError};
use coulter_attach_suite::memory::{Fault, FaultKind, MemoryOptions, MemoryService};
use coulter_block::loop_device::{LoopDevice, LoopError, LoopOptions, cleanup_stale, lies_over};
use coulter_fuse::{FILE_NAME, FuseError, FuseFile, FuseOptions};
use coulter_systems::Scratch;
use coulter_systems::requirement;
use rustix::mount::UnmountFlags;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
/// What a slow device takes for each request, and how long nobody takes to die.
const SLOW: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(10);
const DIRECTORY: &str = "COULTER_TEST_DIRECTORY";

/// Not a test: attaches a device that takes its time, and lets it go at once.
#[test]
#[ignore = "run by other tests"]
fn child_attaches_and_detaches_slowly() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let options = MemoryOptions { latency: SLOW, ..MemoryOptions::new(SIZE) };
    let service = MemoryService::new(options);
    let directory = Path::new(&directory);
    let mut device = LoopDevice::attach(&service, directory, &LoopOptions::default()).unwrap();
    println!("\nattached {}", device.address());
    device.detach(Detach::IfIdle).unwrap();
}

/// Not a test: what [`spawn_attached`] runs in a process of its own.
#[test]
#[ignore = "run by other tests"]
fn child_attaches_and_waits() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let hardening = harden_process();
    // Root in a container may lack the capability for some of it, and is told so.
    for measure in [hardening.io_flusher, hardening.memory_locked, hardening.oom_spared] {
        let refused = |error: &std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        assert!(measure.as_ref().err().is_none_or(refused), "{measure:?}");
    }
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let options = LoopOptions { source: "/the/store".into(), ..LoopOptions::default() };
    let device = LoopDevice::attach(&service, Path::new(&directory), &options).unwrap();
    println!("\nattached {}", device.address());
    std::thread::sleep(Duration::from_secs(60));
}

struct Killed {
    child: Child,
    directory: PathBuf,
    device: PathBuf,
}

/// A process that attaches a loop device, to be killed.
fn spawn_attached(directory: &Path) -> Killed {
    spawn(directory, "child_attaches_and_waits")
}

fn spawn(directory: &Path, what: &str) -> Killed {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", what, "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let device = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("attached ").map(PathBuf::from))
        .expect("the child attaches");
    Killed { child, directory: directory.to_owned(), device }
}

impl Killed {
    fn kill(&mut self) {
        // SIGKILL; it cannot tidy up.
        self.child.kill().unwrap();
        assert!(self.has_ended(), "what is killed ends");
    }

    /// Whether the process ends before long.
    fn has_ended(&mut self) -> bool {
        let limit = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Drop for Killed {
    /// A test that fails leaves nothing behind either.
    fn drop(&mut self) {
        let _ = self.child.kill();
        if !self.has_ended() {
            // It waits for itself. Who ends its mount answers for it.
            let _ = rustix::mount::unmount(&self.directory, UnmountFlags::FORCE);
        }
        let _ = self.child.wait();
        let _ = cleanup_stale(Some(&self.directory));
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let command = Command::new(program).args(arguments).stdout(Stdio::null()).output();
    command.is_ok_and(|output| output.status.success())
}

fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.contains(&format!(" {} ", directory.display()))
}

#[test]
fn what_a_killed_process_leaves_is_cleaned_up() {
    if !requirement::may_mount() {
        return;
    }
    let temporary = Scratch::on_disk();
    let directory = temporary.path("point");
    let mut killed = spawn_attached(&directory);
    let device = killed.device.display().to_string();
    assert_eq!(cleanup_stale(Some(&directory)).unwrap(), [], "a living one is not touched");
    // Dirty pages of the device that the dead process can no longer take.
    assert!(run("dd", &["if=/dev/urandom", &format!("of={device}"), "bs=1M", "count=4"]));
    killed.kill();
    assert!(is_mounted(&directory), "it could not tidy up");
    let again = FuseFile::mount(
        &MemoryService::new(MemoryOptions::new(SIZE)),
        &directory,
        &FuseOptions::default(),
    );
    assert!(matches!(again, Err(FuseError::Directory { .. })), "a dead mount is in the way");
    let stale = cleanup_stale(Some(&directory)).unwrap();
    assert_eq!(stale.len(), 1);
    assert_eq!(stale[0].source, "/the/store");
    assert_eq!(stale[0].cleared, std::slice::from_ref(&killed.device));
    assert_eq!(stale[0].lingering, [] as [PathBuf; 0]);
    assert!(!is_mounted(&directory));
    assert!(!directory.exists());
    let mut second = spawn_attached(&directory);
    second.kill();
    assert_eq!(cleanup_stale(Some(&directory)).unwrap().len(), 1);
}

/// A process that sleeps until it has answered itself could not be killed, and its store would be
/// locked until the machine starts anew.
#[test]
fn a_process_that_is_killed_while_it_flushes_its_own_device_ends() {
    if !requirement::may_mount() {
        return;
    }
    let temporary = Scratch::on_disk();
    let directory = temporary.path("point");
    for part in [1, 3, 6] {
        let mut killed = spawn(&directory, "child_attaches_and_detaches_slowly");
        std::thread::sleep(SLOW / 10 * part);
        killed.kill();
        drop(killed);
        assert!(!is_mounted(&directory));
    }
}

#[test]
fn a_mounted_file_system_is_named_and_outlives_neither_detach_nor_death() {
    if !requirement::may_mount() || !requirement::has_program("mkfs.ext4") {
        return;
    }
    let temporary = Scratch::on_disk();
    let (directory, mount) = (temporary.path("point"), temporary.path("fs"));
    std::fs::create_dir(&mount).unwrap();
    let mount_text = mount.display().to_string();
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let mut device = LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap();
    let address = device.address();
    assert!(run("mkfs.ext4", &["-q", &address]));
    assert!(run("mount", &[&address, &mount_text]));
    let refusal = device.detach(Detach::IfIdle);
    assert!(matches!(&refusal, Err(DetachError::Busy { .. })), "{refusal:?}");
    let text = refusal.unwrap_err().to_string();
    assert!(text.contains(&format!("mounted on {mount_text}")), "{text}");
    std::fs::write(mount.join("file"), "content").unwrap();
    assert!(run("sync", &["-f", &mount_text]));
    assert!(run("umount", &[&mount_text]));
    device.detach(Detach::IfIdle).expect("nobody uses it any more");
    assert!(service.counters().flushes > 0);

    // The same file system again, and its device's process dies under it.
    let mut killed = spawn_attached(&directory);
    let address = killed.device.display().to_string();
    assert!(run("mkfs.ext4", &["-q", &address]));
    assert!(run("mount", &[&address, &mount_text]));
    killed.kill();
    let stale = cleanup_stale(Some(&directory)).unwrap();
    assert_eq!(stale[0].lingering, std::slice::from_ref(&killed.device), "it is still mounted");
    assert!(run("umount", &[&mount_text]));
    let name = killed.device.file_name().unwrap();
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    for _ in 0..500 {
        if !backing.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} goes with its last user", killed.device.display());
}

#[test]
fn the_device_is_what_file_systems_like() {
    if !requirement::may_mount() {
        return;
    }
    let temporary = Scratch::on_disk();
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let directory = temporary.path("point");
    let device = LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap();
    let system = Path::new("/sys/block").join(device.device().file_name().unwrap());
    let read =
        |name: &str| std::fs::read_to_string(system.join(name)).unwrap().trim_end().to_owned();
    assert_eq!(read("size"), (SIZE / 512).to_string());
    assert_eq!(read("queue/logical_block_size"), "4096");
    assert_eq!(read("queue/write_cache"), "write back");
    assert_eq!(read("queue/max_sectors_kb"), "1024");
    assert_eq!(read("queue/discard_granularity"), "4096");
    assert_ne!(read("queue/discard_max_bytes"), "0");
    assert_ne!(read("queue/write_zeroes_max_bytes"), "0");
    assert_eq!(read("loop/dio"), "1");
    assert_eq!(read("loop/autoclear"), "0");
}

#[test]
fn a_device_that_cannot_flush_goes_and_says_so() {
    if !requirement::may_mount() {
        return;
    }
    let temporary = Scratch::on_disk();
    let directory = temporary.path("point");
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let mut device = LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap();
    let name = device.address();
    let error = RequestError::Device { errno: libc::EIO };
    service.inject(Fault { kind: FaultKind::Flush, range: 0..SIZE, error, count: u32::MAX });
    let outcome = device.detach(Detach::IfIdle);
    assert!(matches!(&outcome, Err(DetachError::Unflushed { .. })), "{outcome:?}");
    assert!(outcome.unwrap_err().to_string().contains(&name));
    assert!(!is_mounted(&directory));
    device.detach(Detach::IfIdle).expect("there is nothing left to do");
}

#[test]
fn a_device_that_somebody_has_taken_for_another_file_is_left_to_them() {
    if !requirement::may_mount() {
        return;
    }
    let temporary = Scratch::on_disk();
    let theirs = temporary.path("theirs");
    std::fs::write(&theirs, vec![7; 1 << 20]).unwrap();
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    for how in [Detach::IfIdle, Detach::Always] {
        let directory = temporary.path("point");
        let mut device = LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap();
        let (address, file) = (device.address(), directory.join(FILE_NAME));
        let path = Path::new(&address);
        assert!(lies_over(path, &file));
        assert!(run("losetup", &["--detach", &address]));
        assert!(!lies_over(path, &file));
        assert!(run("losetup", &[&address, theirs.to_str().unwrap()]));
        assert!(!lies_over(path, &file), "another file lies below it");
        device.detach(how).expect("ours is gone already");
        assert!(!is_mounted(&directory));
        let name = path.file_name().unwrap().to_str().unwrap();
        let below = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        assert_eq!(below.unwrap().trim_end(), theirs.to_str().unwrap());
        assert!(run("losetup", &["--detach", &address]));
    }
}

/// Somebody's copy of the mount is no user of it. Only the end of the connection ends that one too.
#[test]
fn a_copy_of_the_mount_in_another_namespace_holds_up_nothing() {
    if !requirement::may_mount() || !requirement::has_program("unshare") {
        return;
    }
    let temporary = Scratch::on_disk();
    let directory = temporary.path("point");
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    for is_made in [true, false] {
        if !is_made {
            std::fs::create_dir(&directory).unwrap();
        }
        let mut device = LoopDevice::attach(&service, &directory, &LoopOptions::default()).unwrap();
        let elsewhere = Elsewhere::spawn();
        assert!(elsewhere.sees(&directory));
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(device.detach(Detach::IfIdle)));
        let outcome = ended.recv_timeout(PATIENCE);
        drop(elsewhere);
        outcome.expect("it ends while the other one lives").expect("nobody uses the device");
        assert!(!is_mounted(&directory));
        assert_eq!(directory.exists(), !is_made);
    }
}

/// Whoever has the file open there uses it as much as one here.
#[test]
fn a_file_that_is_open_in_another_namespace_is_in_use() {
    if !requirement::may_mount() || !requirement::has_program("unshare") {
        return;
    }
    let temporary = Scratch::on_disk();
    let directory = temporary.path("point");
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    let mut file = FuseFile::mount(&service, &directory, &FuseOptions::default()).unwrap();
    let path = file.path();
    let elsewhere = Elsewhere::spawn_with(&format!("exec 3<{}; ", path.display()));
    let refusal = file.detach(Detach::IfIdle);
    let expected = format!("process {}", elsewhere.0.id());
    assert!(matches!(&refusal, Err(DetachError::Busy { .. })), "{refusal:?}");
    assert!(refusal.unwrap_err().to_string().contains(&expected));
    assert!(is_mounted(&directory), "it is as it was");
    drop(elsewhere);
    file.detach(Detach::IfIdle).expect("nobody uses it any more");
}

/// A process with a mount namespace of its own, to which nothing gets through any more.
struct Elsewhere(Child);

impl Elsewhere {
    fn spawn() -> Elsewhere {
        Elsewhere::spawn_with("")
    }

    fn spawn_with(first: &str) -> Elsewhere {
        let script = format!("{first}echo there; exec sleep 60");
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "there\n");
        Elsewhere(child)
    }

    fn sees(&self, directory: &Path) -> bool {
        let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.0.id())).unwrap();
        table.contains(&format!(" {} ", directory.display()))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_directory_in_use_is_not_mounted_on() {
    if !requirement::may_mount() {
        return;
    }
    let temporary = Scratch::on_disk();
    let service = MemoryService::new(MemoryOptions::new(SIZE));
    std::fs::write(temporary.path("precious"), "").unwrap();
    let mount = |directory: &Path| LoopDevice::attach(&service, directory, &LoopOptions::default());
    let outcome = mount(temporary.directory());
    assert!(matches!(outcome, Err(LoopError::Fuse(FuseError::Directory { .. }))));
    assert!(temporary.path("precious").exists());
    assert!(matches!(
        mount(&temporary.path("absent/deep")),
        Err(LoopError::Fuse(FuseError::Directory { .. }))
    ));
}
