//! The conformance suite on every wrapper, and on wrappers around wrappers; and proof that the
//! suite notices what it is there to notice.

use coulter_device::conformance::{self, Access, Check, SIZE_MIN};
use coulter_device::wrap::{
    CountingDevice, CutDevice, Effect, Fault, FaultRates, FaultyDevice, SlowDevice, SlowModel,
    TraceLog, TracedDevice,
};
use coulter_device::{
    Command, CommandKind, Completion, Device, MemoryStore, OpenError, Properties, Region, Wait,
    Waker, conformance_suite,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

type Boxed = Box<dyn Device>;
type Opened = Result<Boxed, OpenError>;

/// Memory, with something around it.
fn wrapped<D: Device + 'static>(wrap: impl Fn(Boxed) -> D) -> impl Fn(Access) -> Opened {
    wrapped_store(MemoryStore::new(SIZE_MIN), wrap)
}

fn wrapped_store<D: Device + 'static>(
    store: MemoryStore,
    wrap: impl Fn(Boxed) -> D,
) -> impl Fn(Access) -> Opened {
    move |access| {
        let inner = match access {
            Access::ReadWrite => store.open()?,
            Access::ReadOnly => store.open_read_only()?,
        };
        Ok(Box::new(wrap(Box::new(inner))))
    }
}

const QUICK: SlowModel = SlowModel {
    latency: Duration::from_micros(100),
    operations_per_second: Some(200_000),
    operation_size: 256 << 10,
    bytes_per_second: Some(4 << 30),
};

fn delaying(inner: Boxed) -> FaultyDevice<Boxed> {
    let (device, handle) = FaultyDevice::new(inner, 3);
    handle.set_rates(FaultRates { delays: 500_000, ..FaultRates::default() });
    device
}

conformance_suite!(faultless, wrapped(|inner| FaultyDevice::new(inner, 1).0));
conformance_suite!(delayed, wrapped(delaying));
conformance_suite!(cached, wrapped(|inner| CutDevice::new(inner).0));
conformance_suite!(
    cached_with_4096_byte_sectors,
    wrapped_store(MemoryStore::new(SIZE_MIN).with_alignment(4096), |inner| {
        CutDevice::new(inner).0
    })
);
conformance_suite!(traced, wrapped(|inner| TracedDevice::new(inner, TraceLog::new(100))));
conformance_suite!(slow, wrapped(|inner| SlowDevice::new(inner, QUICK)));
conformance_suite!(counted, wrapped(|inner| CountingDevice::new(inner).0));
conformance_suite!(
    all_at_once,
    wrapped(|inner| {
        let inner = delaying(Box::new(CutDevice::new(inner).0));
        let inner = SlowDevice::new(TracedDevice::new(inner, TraceLog::new(100)), QUICK);
        CountingDevice::new(inner).0
    })
);

/// Whether a check fails on a device with this fault.
fn notices(check: Check, fault: &Fault) -> bool {
    let fixture = wrapped(|inner| {
        let (device, handle) = FaultyDevice::new(inner, 1);
        handle.add(fault.clone());
        device
    });
    catch_unwind(AssertUnwindSafe(|| check(&fixture))).is_err()
}

#[test]
fn the_suite_notices_a_device_that_does_not_keep_the_contract() {
    let check = conformance::what_was_written_is_read;
    let (read, write) = (CommandKind::Read, CommandKind::Write);
    assert!(!notices(check, &Fault::nth(write, 200, Effect::Delay { polls: 3 })));
    let distance = 4096;
    for effect in [
        Effect::Lose,
        Effect::Misdirect { distance },
        Effect::Corrupt { start: 0, length: 1 },
        Effect::Fail { errno: libc::EIO },
    ] {
        // The last write that is sure not to be overwritten is not known; so a good many fail.
        let fault = Fault { repeats: true, ..Fault::nth(write, 200, effect) };
        assert!(notices(check, &fault), "writes: {effect:?}");
        assert!(notices(check, &Fault::nth(read, 200, effect)), "reads: {effect:?}");
    }
    let loses_discards = Fault::every(CommandKind::Discard, Effect::Lose);
    assert!(!notices(check, &loses_discards), "a discard may do nothing");
    let discards_elsewhere = Fault::every(CommandKind::Discard, Effect::Misdirect { distance });
    assert!(notices(check, &discards_elsewhere));
}

/// A memory device with one thing wrong with its sleeping and completing.
struct Canary {
    inner: Boxed,
    flaw: Flaw,
    own_waker: Waker,
    held: Vec<Completion>,
    is_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    LosesWakes,
    ForgetsToCall,
    NeverSleeps,
    CompletesTwice,
    ForgetsTags,
    ForgetsChecks,
}

// SAFETY: its flaws are in tags, checks and wakes; memory is the inner device's.
unsafe impl Device for Canary {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }
    unsafe fn register(&mut self, _regions: &[Region]) -> io::Result<()> {
        Ok(())
    }
    unsafe fn submit(&mut self, command: Command) {
        let size = self.properties().size;
        let command = match command.offset.checked_add(command.length) {
            Some(end) if end <= size => command,
            _ if self.flaw == Flaw::ForgetsChecks => Command::flush(command.tag),
            _ => command,
        };
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.submit(command) };
    }
    fn poll(&mut self, out: &mut Vec<Completion>, wait: Wait) -> io::Result<()> {
        let wait = match wait {
            _ if self.flaw == Flaw::NeverSleeps => Wait::No,
            // A check that waits for ever would never end.
            Wait::Forever if self.flaw == Flaw::LosesWakes => Wait::For(Duration::from_secs(9)),
            wait => wait,
        };
        out.append(&mut self.held);
        self.inner.poll(out, wait)?;
        if let Some(completion) = out.last_mut().copied().filter(|_| self.is_first) {
            match self.flaw {
                Flaw::CompletesTwice => out.push(completion),
                Flaw::ForgetsTags => out.last_mut().expect("it was there").tag ^= 1 << 20,
                _ => return Ok(()),
            }
            self.is_first = false;
        }
        Ok(())
    }
    fn arm(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.flaw == Flaw::ForgetsToCall {
            // What has completed by now is forgotten.
            self.inner.poll(&mut self.held, Wait::No)?;
        }
        self.inner.arm()
    }
    fn waker(&self) -> Waker {
        match self.flaw {
            Flaw::LosesWakes => self.own_waker.clone(),
            _ => self.inner.waker(),
        }
    }
}

#[test]
fn the_suite_notices_lost_wakes_sleepless_polls_and_wrong_completions() {
    let flaws: [(Flaw, Check); 7] = [
        (Flaw::LosesWakes, conformance::a_wake_before_the_sleep_is_not_lost),
        (Flaw::LosesWakes, conformance::a_waker_is_heard_through_the_descriptor),
        (Flaw::ForgetsToCall, conformance::a_descriptor_tells_of_completions),
        (Flaw::NeverSleeps, conformance::a_wait_ends_when_its_time_is_over),
        (Flaw::CompletesTwice, conformance::a_flush_completes_with_nothing_written),
        (Flaw::ForgetsTags, conformance::what_was_written_is_read),
        (Flaw::ForgetsChecks, conformance::what_ends_past_the_device_is_refused),
    ];
    let notices = |flaw, check: Check| {
        let fixture = wrapped(|inner| {
            let own_waker = coulter_device::wake::Sleeper::new().waker();
            Canary { inner, flaw, own_waker, held: Vec::new(), is_first: true }
        });
        catch_unwind(AssertUnwindSafe(|| check(&fixture))).is_err()
    };
    // Side by side, for those that sleep too long do nothing else.
    std::thread::scope(|scope| {
        let begun = flaws.map(|(flaw, check)| (flaw, scope.spawn(move || notices(flaw, check))));
        for (flaw, check) in begun {
            assert!(check.join().expect("panics are caught"), "{flaw:?} is noticed");
        }
    });
}
