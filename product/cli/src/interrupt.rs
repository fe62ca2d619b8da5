//! Ctrl-C while something has to be cleaned up: the signal becomes a flag that every wait looks at.

use crate::error::{CliError, SystemError};
use coulter_system::raw::EndSignals;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait looks at the flag.
const INTERVAL: Duration = Duration::from_millis(10);

/// Whether somebody wants an end. Clones are handles to the same flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    raised: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on TERM, INT and HUP raise the flag instead of ending the process. To be called
    /// before the first thread is started; programs started later get the signals as usual.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn take_over() -> Result<Interrupt, CliError> {
        let interrupt = Interrupt::default();
        let raised = Arc::clone(&interrupt.raised);
        on_each(move || raised.store(true, Ordering::Relaxed))?;
        Ok(interrupt)
    }

    /// Whether the flag is up.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// Goes on unless the flag is up.
    ///
    /// # Errors
    /// [`SystemError::Interrupted`].
    pub fn check(&self) -> Result<(), CliError> {
        if self.is_raised() { Err(SystemError::Interrupted.into()) } else { Ok(()) }
    }

    /// Sleeps.
    ///
    /// # Errors
    /// [`SystemError::Interrupted`].
    pub fn sleep(&self, duration: Duration) -> Result<(), CliError> {
        let deadline = Instant::now() + duration;
        while Instant::now() < deadline {
            self.check()?;
            std::thread::sleep(INTERVAL.min(duration));
        }
        self.check()
    }

    /// Waits for a child to end; it is killed when the flag goes up.
    ///
    /// # Errors
    /// [`SystemError::Interrupted`], or when the child cannot be waited for.
    pub fn wait_for(&self, child: &mut Child) -> Result<ExitStatus, CliError> {
        let failed = |source| CliError::io("wait for", "a program".as_ref(), source);
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                self.check()?;
                return Ok(status);
            }
            if let Err(interrupted) = self.check() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(interrupted);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Raises the flag, as a signal would.
    #[cfg(test)]
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }
}

/// Words about the rest that an interrupt leaves, and the next step: for a command that may end
/// anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    /// None while a signal is not heeded.
    words: Arc<Mutex<Option<(String, String)>>>,
}

impl Left {
    /// From now on TERM, INT and HUP end the process with words. Called as
    /// [`Interrupt::take_over`].
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn take_over(why: String, help: String) -> Result<Left, CliError> {
        let words = Arc::new(Mutex::new(Some((why, help))));
        let left = Left { words: Arc::clone(&words) };
        on_each(move || {
            // Held until the process has ended: it does not enter its next step.
            let words = words.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((why, help)) = &*words else { return };
            let report = CliError::from(SystemError::Interrupted)
                .report()
                .why(why.as_str())
                .help(help.as_str());
            coulter_terminal::print_error(&report);
            std::process::exit(report.exit_code.into())
        })?;
        Ok(left)
    }

    /// The words of the next step.
    pub(crate) fn is_now(&self, why: String, help: String) {
        self.set(Some((why, help)));
    }

    /// The last steps are short, and come to their end.
    pub(crate) fn is_heeded_no_more(&self) {
        self.set(None);
    }

    fn set(&self, words: Option<(String, String)>) {
        *self.words.lock().unwrap_or_else(PoisonError::into_inner) = words;
    }

    /// The words while the daemon of `name` does something, as "end", with the command or without.
    pub(crate) fn is_asked_of(&self, name: &str, what: &str) {
        let (why, help) = asked_of(name, what);
        self.is_now(why, help);
    }
}

/// See [`Left::is_asked_of`].
pub(crate) fn asked_of(name: &str, what: &str) -> (String, String) {
    (
        format!(
            "the daemon of '{name}' was told to {what}, and does so by itself once it has heard"
        ),
        format!(
            "`coulter list` shows '{name}'; if nothing comes of it, run the same command again"
        ),
    )
}

/// Has a thread of its own do something at each TERM, INT and HUP.
fn on_each(act: impl Fn() + Send + 'static) -> Result<(), CliError> {
    let failed = |source| CliError::io("receive", "signals".as_ref(), source);
    let signals = EndSignals::take_over().map_err(failed)?;
    let wait = move || {
        while signals.wait().is_ok() {
            act();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_a_child_and_a_sleep() {
        let interrupt = Interrupt::default();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it can run");
        let raiser = interrupt.clone();
        let begin = Instant::now();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            raiser.raise();
        });
        assert!(interrupt.wait_for(&mut child).is_err());
        assert!(interrupt.sleep(Duration::from_secs(60)).is_err());
        assert!(begin.elapsed() < Duration::from_secs(30));
        thread.join().expect("the thread does not panic");
    }

    #[test]
    fn a_child_that_ends_by_itself_gives_its_status() {
        let mut child = std::process::Command::new("false").spawn().expect("it can run");
        let status = Interrupt::default().wait_for(&mut child).expect("nobody interrupts");
        assert_eq!(status.code(), Some(1));
    }
}
