//! A panic ends the daemon as SIGKILL would: at once, with nothing cleared away.
//!
//! Unwinding would take the attach point away and end with 0: programs would write into the bare
//! directory below the mount, without an error. A daemon that is gone leaves a dead mount, or a
//! device that waits, which every command knows how to deal with.

use std::sync::Once;

/// From now on a panic on any thread prints what it has to say and ends the process, by SIGABRT.
///
/// Before there is an attach point a panic unwinds, and the command that started the daemon hears
/// of it.
pub(crate) fn end_the_process_from_now_on() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            tell(panic);
            std::process::abort();
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const CHILD: &str = "COULTER_TEST_PANICS";
    const NAME: &str =
        "service::panics::tests::a_panic_on_any_thread_ends_the_process_and_unwinds_nothing";

    struct Clears;

    impl Drop for Clears {
        fn drop(&mut self) {
            println!("cleared away");
        }
    }

    #[test]
    fn a_panic_on_any_thread_ends_the_process_and_unwinds_nothing() {
        if std::env::var_os(CHILD).is_some() {
            end_the_process_from_now_on();
            end_the_process_from_now_on();
            let thread = std::thread::spawn(|| {
                let _clears = Clears;
                panic!("on purpose");
            });
            let _ = thread.join();
            println!("went on");
            return;
        }
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program);
        child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1");
        let output = child.output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
        assert!(!told.contains("cleared away") && !told.contains("went on"), "{told}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("on purpose"));
    }
}
