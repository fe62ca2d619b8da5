//! A file whose service has ended costs nothing until it is detached.
//!
//! A session that is over has nothing more to say, and says so for ever: whoever sleeps on its
//! descriptor would never sleep again. Method: the processor time of the thread that serves.

use coulter::service::{BlockService, Completion, Description, Request, Session, Watch};
use coulter::{CreateOptions, OpenOptions, Volume, create};
use coulter_attach::point::{AttachPoint, Detach};
use coulter_attach_suite::memory::{MemoryOptions, MemoryService};
use coulter_device::MemoryStore;
use coulter_fuse::{FuseFile, FuseOptions};
use coulter_systems::Scratch;
use coulter_systems::requirement;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

/// How long the thread is watched, and the most of it that it may work.
const WATCHED: Duration = Duration::from_millis(500);
const WORK_MAX: Duration = Duration::from_millis(100);

#[test]
fn a_pump_on_its_own_thread_sleeps_once_its_service_has_ended() {
    let service = Insistent(MemoryService::new(MemoryOptions::new(1 << 20)));
    assert_idle_after_end("fuse", &service, || service.0.close());
}

#[test]
fn a_pump_on_the_volumes_thread_sleeps_once_the_volume_is_closed() {
    let store = MemoryStore::new(64 << 20);
    let options = CreateOptions { segment_size: Some(2 << 20), ..CreateOptions::default() };
    create(Box::new(store.open().unwrap()), &options).unwrap();
    let volume = Volume::open(Box::new(store.open().unwrap()), OpenOptions::default()).unwrap();
    assert_idle_after_end("coulter-volume", &volume, || volume.shut_down().unwrap());
}

/// A service whose sessions are always readable, as those that are over may be.
struct Insistent(MemoryService);

struct InsistentSession {
    inner: Box<dyn Session + Send>,
    readable: OwnedFd,
}

impl BlockService for Insistent {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }

    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn watch(&self, watcher: Weak<dyn Watch>) {
        self.0.watch(watcher);
    }

    fn connect(&self) -> Box<dyn Session + Send> {
        let readable = eventfd(1, EventfdFlags::CLOEXEC).expect("descriptors can be had");
        Box::new(InsistentSession { inner: self.0.connect(), readable })
    }
}

impl Session for InsistentSession {
    fn submit(&mut self, request: Request) {
        self.inner.submit(request);
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn complete(&mut self, out: &mut Vec<Completion>, timeout: Option<Duration>) {
        self.inner.complete(out, timeout);
    }

    fn completion_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }
}

/// Mounts the service, uses it, ends it, and watches the thread with this name.
fn assert_idle_after_end(thread: &str, service: &dyn BlockService, end: impl FnOnce()) {
    if !requirement::may_mount() {
        return;
    }
    let scratch = Scratch::on_disk();
    let place = scratch.path("mount");
    let mut point = FuseFile::mount(service, &place, &FuseOptions::default()).unwrap();
    let file = File::options().read(true).write(true).open(point.path()).unwrap();
    file.write_all_at(&[7; 4096], 8192).unwrap();
    end();
    let refused = file.write_all_at(&[8; 4096], 8192).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ESHUTDOWN));
    let before = worked(thread);
    std::thread::sleep(WATCHED);
    let worked = worked(thread) - before;
    assert!(worked < WORK_MAX, "{thread} worked for {worked:?} of {WATCHED:?}");
    drop(file);
    point.detach(Detach::IfIdle).unwrap();
}

/// Processor time of all threads with this name.
fn worked(thread: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_name = tasks.filter(|task| read(&task.path().join("comm")).trim_end() == thread);
    let times = of_name.map(|task| {
        let text = read(&task.path().join("schedstat"));
        text.split(' ').next().and_then(|time| time.parse().ok()).expect("nanoseconds come first")
    });
    let nanoseconds: Vec<u64> = times.collect();
    assert!(!nanoseconds.is_empty(), "there is a thread {thread}");
    Duration::from_nanos(nanoseconds.iter().sum())
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
