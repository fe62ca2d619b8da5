//! The way from sessions to the loop: one queue, locked once per batch, and a wake only for a loop
//! that sleeps.
//!
//! # Why no message is lost
//! A sender stores its messages, raises `has_messages`, and then looks whether the loop is asleep.
//! The loop declares that it is asleep and then looks for messages. Both sides' steps are in one
//! total order (`SeqCst`), so at least one of the two sees the other's.

use crate::delivery::Outbox;
use crate::message::{Message, SessionId, Submission};
use coulter_device::Waker;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Messages for the loop.
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    has_messages: AtomicBool,
    is_asleep: AtomicBool,
    waker: Waker,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// The loop takes no more.
    is_closed: bool,
    /// Numbers of sessions that are gone.
    free: Vec<SessionId>,
    session_count: u32,
}

impl Queue {
    fn try_number(&mut self) -> Option<SessionId> {
        if self.is_closed {
            return None;
        }
        Some(self.free.pop().unwrap_or_else(|| {
            self.session_count += 1;
            SessionId(self.session_count - 1)
        }))
    }
}

impl Mailbox {
    /// A mailbox for a loop that `waker` wakes.
    pub(crate) fn new(waker: Waker) -> Mailbox {
        Mailbox {
            queue: Mutex::default(),
            has_messages: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            waker,
        }
    }

    /// Hands requests over, all at once; `submissions` is empty afterwards. Returns whether the
    /// loop takes them: if not, they are left where they are.
    pub(crate) fn try_post(&self, submissions: &mut VecDeque<Submission>) -> bool {
        let mut queue = self.queue();
        if queue.is_closed {
            return false;
        }
        queue.messages.extend(submissions.drain(..).map(Message::Submit));
        self.has_messages.store(true, Ordering::SeqCst);
        drop(queue);
        self.wake();
        true
    }

    /// Hands one message over; gives it back if the loop takes no more.
    pub(crate) fn try_send(&self, message: Message) -> Result<(), Message> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(message);
        }
        queue.messages.push_back(message);
        self.has_messages.store(true, Ordering::SeqCst);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Announces a session; `None` if the loop takes no more.
    pub(crate) fn try_connect(&self, outbox: Arc<Outbox>) -> Option<SessionId> {
        let mut queue = self.queue();
        let id = queue.try_number()?;
        // Nothing is to be done before the session's first request, so nobody is woken.
        queue.messages.push_back(Message::Connect(id, outbox));
        self.has_messages.store(true, Ordering::SeqCst);
        Some(id)
    }

    /// A number for a session that needs no announcement; `None` if the loop takes no more.
    pub(crate) fn try_number(&self) -> Option<SessionId> {
        self.queue().try_number()
    }

    /// Has the loop take a turn, though there is no message.
    pub(crate) fn nudge(&self) {
        self.has_messages.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Ends the loop's sleep, if it sleeps.
    fn wake(&self) {
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The queue is whole whenever the lock is free.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The loop's side.

    /// Moves all messages to `into`, which is empty.
    #[inline]
    pub(crate) fn take(&self, into: &mut VecDeque<Message>) {
        assert!(into.is_empty(), "messages are taken one batch at a time");
        if self.has_messages.load(Ordering::Acquire) {
            let mut queue = self.queue();
            self.has_messages.store(false, Ordering::SeqCst);
            std::mem::swap(&mut queue.messages, into);
        }
    }

    /// Declares the loop asleep. False if messages wait: then it must not sleep.
    pub(crate) fn try_sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        if self.has_messages.load(Ordering::SeqCst) {
            self.is_asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Declares the loop awake.
    pub(crate) fn awake(&self) {
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    /// The session is gone and its number is free.
    pub(crate) fn release(&self, session: SessionId) {
        self.queue().free.push(session);
    }

    /// Takes no more from now on; moves what is there to `into`.
    pub(crate) fn close(&self, into: &mut VecDeque<Message>) {
        let mut queue = self.queue();
        queue.is_closed = true;
        self.has_messages.store(false, Ordering::SeqCst);
        into.append(&mut queue.messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::message::Ending;
    use crate::service::Operation;
    use coulter_device::wake::Sleeper;
    use coulter_device::{Wait, wake::Awake};
    use std::time::Duration;

    const END: Message = Message::End(Ending::Orderly);

    fn flush() -> Submission {
        let (session, operation) = (SessionId(0), Operation::Flush);
        let memory = Memory::empty();
        Submission {
            session,
            tag: 0,
            operation,
            exact: false,
            offset: 0,
            length: 0,
            memory,
            many: None,
            begun_ns: 0,
            is_held: false,
        }
    }

    #[test]
    fn a_closed_mailbox_takes_nothing_and_gives_back_what_it_had() {
        let mailbox = Mailbox::new(Sleeper::new().waker());
        assert!(mailbox.try_send(END).is_ok());
        let mut left = VecDeque::new();
        mailbox.close(&mut left);
        assert_eq!(left.len(), 1);
        assert!(mailbox.try_send(END).is_err());
        let mut submissions = VecDeque::from([flush()]);
        assert!(!mailbox.try_post(&mut submissions));
        assert_eq!(submissions.len(), 1);
        assert!(mailbox.try_number().is_none());
        assert!(mailbox.try_connect(Arc::new(Outbox::default())).is_none());
    }

    #[test]
    fn a_number_is_used_again_only_when_it_was_released() {
        let mailbox = Mailbox::new(Sleeper::new().waker());
        let connect = || mailbox.try_connect(Arc::new(Outbox::default())).map(|id| id.0);
        assert_eq!((connect(), connect()), (Some(0), Some(1)));
        mailbox.release(SessionId(0));
        assert_eq!((connect(), connect()), (Some(0), Some(2)));
        assert_eq!(mailbox.try_number(), Some(SessionId(3)));
    }

    #[test]
    fn a_loop_does_not_sleep_over_messages_and_is_woken_once() {
        let sleeper = Sleeper::new();
        let mailbox = Mailbox::new(sleeper.waker());
        assert!(mailbox.try_sleep());
        assert!(mailbox.try_send(END).is_ok());
        assert_eq!(sleeper.sleep(Wait::Forever), Awake::Woken);
        assert!(mailbox.try_send(END).is_ok());
        assert_eq!(sleeper.sleep(Wait::For(Duration::from_millis(1))), Awake::TimedOut);
        assert!(!mailbox.try_sleep());
        let mut messages = VecDeque::new();
        mailbox.take(&mut messages);
        assert_eq!(messages.len(), 2);
        assert!(mailbox.try_sleep());
    }

    #[test]
    fn no_message_is_slept_over_under_contention() {
        // The reader would sleep for ever if one were.
        const COUNT: usize = 20_000;
        let sleeper = Sleeper::new();
        let mailbox = Arc::new(Mailbox::new(sleeper.waker()));
        let sender = mailbox.clone();
        let thread = std::thread::spawn(move || {
            for _ in 0..COUNT {
                assert!(sender.try_send(END).is_ok());
            }
        });
        let (mut seen, mut messages) = (0, VecDeque::new());
        while seen < COUNT {
            mailbox.take(&mut messages);
            seen += messages.len();
            if messages.is_empty() && mailbox.try_sleep() {
                sleeper.sleep(Wait::Forever);
                mailbox.awake();
            }
            messages.clear();
        }
        thread.join().expect("the sender ends well");
    }
}
