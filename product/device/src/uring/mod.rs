//! The commands of a file or a disk as entries of a ring: reads, writes, syncs, discards.

mod flights;
mod pinned;

use crate::command::{Command, CommandKind, Completion, Prepare, Properties, Region};
use crate::contract::Device;
use crate::medium::Target;
use crate::read_source::ReadSource;
use crate::ring::{Encoder, Ring, RingDevice, Setup, setups};
use flights::{DiscardMethod, Flights};
use io_uring::{cqueue, squeue};
use pinned::Pinned;
use std::io;
use std::os::fd::RawFd;

/// A file or a disk through io_uring. Made by [`open_path`](crate::open_path).
pub(crate) type UringDevice = RingDevice<FileEncoder>;

/// The entries of a file or a disk.
pub(crate) struct FileEncoder {
    flights: Flights,
    target: Target,
}

impl UringDevice {
    /// A device on a target; gives the target back if the system refuses io_uring.
    pub(crate) fn on(
        target: Target,
        queue_depth: usize,
    ) -> Result<UringDevice, (Target, io::Error)> {
        UringDevice::with_setups(target, queue_depth, &setups())
    }

    fn with_setups(
        target: Target,
        queue_depth: usize,
        setups: &[Setup],
    ) -> Result<UringDevice, (Target, io::Error)> {
        let properties = target.properties("io_uring", queue_depth, None);
        let (kind, alignment, prepare) = (target.kind(), target.alignment(), target.prepare());
        let method = DiscardMethod::of(kind, properties.discard);
        let flights = Flights::new(queue_depth, kind, alignment, method, prepare);
        UringDevice::new(FileEncoder { flights, target }, properties, setups)
            .map_err(|(encoder, error)| (encoder.target, error))
    }
}

/// A device for reading that threads may use by turns.
fn open_to_read(target: Target, queue_depth: usize) -> io::Result<Box<dyn Device>> {
    match UringDevice::with_setups(target, queue_depth, &setups()[1..]) {
        Ok(device) => Ok(Box::new(device)),
        Err((_, error)) => Err(error),
    }
}

impl Encoder for FileEncoder {
    type Entry = squeue::Entry;
    type Answer = cqueue::Entry;

    fn fd(&self) -> RawFd {
        self.target.fd()
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.flights.count()
    }

    #[inline]
    fn is_void(&self, command: &Command, properties: &Properties) -> bool {
        match command.kind {
            CommandKind::Discard => !properties.discard,
            CommandKind::Prepare => match self.target.prepare() {
                Prepare::Nothing => true,
                Prepare::Blocks => !self.target.has_hole(command.offset, command.length),
                Prepare::Space => false,
            },
            CommandKind::Read | CommandKind::Write | CommandKind::Flush => false,
        }
    }

    #[inline]
    fn start(&mut self, command: Command) -> Option<squeue::Entry> {
        Some(self.flights.start(command))
    }

    #[inline]
    fn settle(
        &mut self,
        number: u64,
        answer: i32,
        out: &mut Vec<Completion>,
    ) -> Option<squeue::Entry> {
        self.flights.settle(number, answer, out)
    }

    #[inline]
    fn update(&self, properties: &mut Properties) {
        if self.flights.method() == DiscardMethod::Nothing {
            properties.discard = false;
        }
    }

    unsafe fn register(
        &mut self,
        ring: &mut Ring,
        regions: &[Region],
        properties: &mut Properties,
    ) -> io::Result<()> {
        let submitter = ring.inner().submitter();
        if !self.flights.pinned.is_empty() {
            submitter.unregister_buffers()?;
            self.flights.pinned = Pinned::default();
        }
        let pieces = Pinned::pieces(regions);
        if pieces.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller promises that the memory stays until the next call or the drop, which
        // unregisters or closes the ring.
        match unsafe { submitter.register_buffers(&pieces) } {
            Ok(()) => {
                self.flights.pinned = Pinned::of(&pieces);
                properties.note = self.target.note(None);
            }
            // Another thread than the one that the ring belongs to.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Err(error),
            // It cannot be pinned; commands will carry plain addresses.
            Err(error) => {
                let note = format!("memory is not registered with the kernel: {error}");
                properties.note = self.target.note(Some(note));
            }
        }
        Ok(())
    }

    fn read_source(&self) -> Option<ReadSource> {
        ReadSource::of(&self.target, open_to_read)
    }
}

#[cfg(all(test, feature = "conformance"))]
mod tests {
    use super::*;
    use crate::command::Wait;
    use crate::conformance::{self, Access, SIZE_MIN};
    use crate::open_error::OpenError;
    use crate::open_options::OpenOptions;
    use std::path::PathBuf;
    use std::time::Duration;
    use std::{env, fs, process, thread};

    struct TemporaryFile(PathBuf);

    impl Drop for TemporaryFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_foreign_thread_is_told_and_its_drop_frees_the_file() {
        let path = env::temp_dir().join(format!("coulter-foreign-{}", process::id()));
        let file = TemporaryFile(path);
        fs::File::create(&file.0).and_then(|file| file.set_len(SIZE_MIN)).expect("room for a file");
        let open = || {
            let target = Target::open(&file.0, &OpenOptions::default());
            UringDevice::on(target.expect("nothing has it open"), 32).ok()
        };
        let Some(mut device) = open() else { return };
        let mut completions = Vec::new();
        let nap = Wait::For(Duration::from_millis(1));
        device.poll(&mut completions, nap).expect("this thread is the first");
        let is_single_issuer = device.is_single_issuer();
        let thread = thread::spawn(move || {
            let outcome = device.poll(&mut completions, nap);
            // SAFETY: no memory is given.
            let registered = unsafe { device.register(&[]) };
            assert!(registered.is_ok(), "there is nothing to undo");
            if is_single_issuer {
                let error = outcome.expect_err("the ring belongs to another thread");
                assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
            }
        });
        thread.join().expect("the checks hold");
        assert!(open().is_some(), "the lock was given up");
    }

    /// The newest kernel shows only what it does itself, so it is asked for less.
    #[test]
    fn a_device_conforms_by_each_way_of_making_its_ring() {
        if let Err(error) = <Ring>::new(2, &setups()) {
            println!("skipped, for this system refuses io_uring: {error}");
            return;
        }
        for (number, setup) in setups().into_iter().enumerate() {
            println!("setup {number}");
            conformance::run_all(&|| {
                let name = format!("coulter-setup-{}-{number}", process::id());
                let path = env::temp_dir().join(name);
                let file = TemporaryFile(path);
                fs::File::create(&file.0)
                    .and_then(|file| file.set_len(SIZE_MIN))
                    .expect("room for a file");
                Box::new(move |access| -> Result<Box<dyn Device>, OpenError> {
                    let TemporaryFile(path) = &file;
                    let read_only = access == Access::ReadOnly;
                    let options = OpenOptions { read_only, ..OpenOptions::default() };
                    let target = Target::open(path, &options)?;
                    match UringDevice::with_setups(target, 32, &[setup]) {
                        Ok(device) => Ok(Box::new(device)),
                        Err((_, source)) => {
                            Err(OpenError::NoIoUring { path: path.clone(), source })
                        }
                    }
                })
            });
        }
    }
}
