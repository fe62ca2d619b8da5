//! The desk of a state machine between a mount and a volume: operations under way, commands that
//! are out, answers, and the clock.
//!
//! It knows what no operation does and what no command is for: those are its types `T` and `P`.
//!
//! # Invariants
//! - A place has one task from [`Desk::add`] to [`Desk::end`]; a [`Ticket`] is good for that long.
//! - A task that runs is off the desk, and is put back or ends. One task runs at a time.
//! - A command has one number from [`Desk::give`] to [`Desk::complete`], and completes once.
//! - Commands and answers leave in the order in which they came.

use crate::io::{Command, Io};
use crate::request::Response;
use std::collections::VecDeque;

/// A task that waits for a command: its place, and which of the tasks that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Its place.
    pub task: usize,
    generation: u64,
}

struct Place<T> {
    task: Option<T>,
    /// How many tasks it has had before.
    generation: u64,
    is_taken: bool,
}

/// See the module's documentation.
pub struct Desk<T, P> {
    places: Vec<Place<T>>,
    idle_places: Vec<usize>,
    /// The task that runs.
    running: Option<usize>,
    /// Tasks that can go on, or may. Some are there twice, or have ended.
    ready: VecDeque<usize>,
    ios: VecDeque<Io>,
    /// By number of the command: what it is for.
    out: Vec<Option<P>>,
    idle_numbers: Vec<u32>,
    responses: VecDeque<Response>,
    now_ns: u64,
}

impl<T, P> Default for Desk<T, P> {
    fn default() -> Desk<T, P> {
        Desk {
            places: Vec::new(),
            idle_places: Vec::new(),
            running: None,
            ready: VecDeque::new(),
            ios: VecDeque::new(),
            out: Vec::new(),
            idle_numbers: Vec::new(),
            responses: VecDeque::new(),
            now_ns: 0,
        }
    }
}

impl<T, P> Desk<T, P> {
    /// Takes in a task, and gives it a place.
    pub fn add(&mut self, task: T) -> usize {
        if let Some(id) = self.idle_places.pop() {
            let place = &mut self.places[id];
            assert!(!place.is_taken && place.task.is_none(), "an idle place has no task");
            *place = Place { task: Some(task), generation: place.generation + 1, is_taken: true };
            return id;
        }
        self.places.push(Place { task: Some(task), generation: 0, is_taken: true });
        self.places.len() - 1
    }

    /// Takes a task off the desk, to run it; none if it has ended.
    pub fn take(&mut self, id: usize) -> Option<T> {
        assert!(self.running.is_none(), "one task runs at a time");
        let task = self.places[id].task.take()?;
        self.running = Some(id);
        Some(task)
    }

    /// The task that ran waits.
    pub fn put(&mut self, id: usize, task: T) {
        assert_eq!(self.running.take(), Some(id), "only what runs is put back");
        let before = self.places[id].task.replace(task);
        assert!(before.is_none(), "a place has one task");
    }

    /// The task that ran has ended: others may have its place.
    pub fn end(&mut self, id: usize) {
        assert_eq!(self.running.take(), Some(id), "only what runs ends");
        let place = &mut self.places[id];
        assert!(place.is_taken, "a task ends once");
        place.is_taken = false;
        self.idle_places.push(id);
    }

    /// A mark that finds the task again, if it is the same.
    pub fn ticket(&self, id: usize) -> Ticket {
        let place = &self.places[id];
        assert!(place.is_taken, "a task that has ended asks for nothing");
        Ticket { task: id, generation: place.generation }
    }

    /// The task that a command is out for.
    pub fn owner(&mut self, ticket: Ticket) -> &mut T {
        let place = &mut self.places[ticket.task];
        assert_eq!(
            place.generation, ticket.generation,
            "no task ends while something of it is out"
        );
        place.task.as_mut().expect("it waits")
    }

    /// Lets a task go on, after those that can already.
    pub fn wake(&mut self, id: usize) {
        assert!(id < self.places.len(), "a task has a place");
        self.ready.push_back(id);
    }

    /// Lets a task go on before all others.
    pub fn wake_first(&mut self, id: usize) {
        assert!(id < self.places.len(), "a task has a place");
        self.ready.push_front(id);
    }

    /// Lets all go on that waited.
    pub fn wake_all(&mut self, waiting: impl IntoIterator<Item = usize>) {
        self.ready.extend(waiting);
    }

    /// True if some task can go on.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next task that can go on, or may.
    pub fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// Gives a command out. Returns its number.
    pub fn give(&mut self, command: Command, purpose: P) -> u32 {
        let id = self.idle_numbers.pop().unwrap_or_else(|| {
            self.out.push(None);
            self.out.len() as u32 - 1
        });
        let before = self.out[id as usize].replace(purpose);
        assert!(before.is_none(), "a number belongs to one command");
        self.ios.push_back(Io { id, command });
        id
    }

    /// A command is complete. Returns what it was for.
    pub fn complete(&mut self, id: u32) -> P {
        let purpose = self.out[id as usize].take().expect("a command completes once");
        self.idle_numbers.push(id);
        assert!(self.idle_numbers.len() <= self.out.len(), "a number is given back once");
        purpose
    }

    /// The next command to the volume.
    pub fn poll_io(&mut self) -> Option<Io> {
        self.ios.pop_front()
    }

    /// Takes in an answer.
    pub fn answer(&mut self, response: Option<Response>) {
        self.responses.extend(response);
    }

    /// The next answer.
    pub fn poll_response(&mut self) -> Option<Response> {
        self.responses.pop_front()
    }

    /// The time that was told last, in nanoseconds from anywhere.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Takes in the time.
    pub fn handle_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// True if no task is under way and nothing is out.
    pub fn is_quiet(&self) -> bool {
        self.idle_places.len() == self.places.len()
            && self.ios.is_empty()
            && self.idle_numbers.len() == self.out.len()
    }

    /// The tasks that wait, with their places.
    pub fn tasks(&self) -> impl Iterator<Item = (usize, &T)> {
        let tasks = self.places.iter().enumerate();
        tasks.filter_map(|(id, place)| Some((id, place.task.as_ref()?)))
    }

    /// The commands that are out, by number, with what they are for.
    pub fn commands(&self) -> impl Iterator<Item = (u32, &P)> {
        (0..).zip(&self.out).filter_map(|(id, purpose)| Some((id, purpose.as_ref()?)))
    }

    /// # Panics
    /// If places, numbers or queues do not say the same.
    pub fn assert_invariants(&self) {
        assert!(self.running.is_none(), "between two inputs no task runs");
        for (id, place) in self.places.iter().enumerate() {
            assert_eq!(place.is_taken, place.task.is_some(), "place {id} is taken by its task");
            let idle = self.idle_places.iter().filter(|other| **other == id).count();
            assert_eq!(idle, usize::from(!place.is_taken), "place {id} is idle once or taken");
        }
        for (id, purpose) in (0..).zip(&self.out) {
            let idle = self.idle_numbers.iter().filter(|other| **other == id).count();
            assert_eq!(idle, usize::from(purpose.is_none()), "number {id} is idle once or out");
        }
        for io in &self.ios {
            assert!(self.out[io.id as usize].is_some(), "a command that waits counts as out");
        }
        let is_ready = |id: &usize| *id < self.places.len();
        assert!(self.ready.iter().all(is_ready), "what is ready has had a place");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coulter::buffer::Buffer;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    type Simple = Desk<&'static str, u8>;

    fn says(what: impl FnOnce()) -> String {
        let failure = catch_unwind(AssertUnwindSafe(what)).expect_err("it panics");
        match failure.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => (*other.downcast::<&str>().expect("a text")).to_owned(),
        }
    }

    #[test]
    fn a_place_has_one_task_after_the_other_and_a_ticket_is_good_for_one() {
        let mut desk = Simple::default();
        let id = desk.add("first");
        let ticket = desk.ticket(id);
        assert_eq!(*desk.owner(ticket), "first");
        assert_eq!(desk.take(id), Some("first"));
        assert_eq!(desk.tasks().count(), 0, "what runs is off the desk");
        desk.end(id);
        assert_eq!(desk.take(id), None, "it has ended");
        desk.assert_invariants();
        assert_eq!(desk.add("second"), id, "the place is used again");
        assert_ne!(desk.ticket(id), ticket);
        let what = says(|| *desk.owner(ticket) = "third");
        assert!(what.contains("no task ends while something of it is out"), "{what}");
    }

    #[test]
    fn one_task_runs_at_a_time_and_is_put_back_or_ends() {
        let mut desk = Simple::default();
        let (one, two) = (desk.add("one"), desk.add("two"));
        assert_eq!(desk.take(one), Some("one"));
        assert!(says(|| assert_eq!(desk.take(two), None)).contains("one task runs at a time"));
        assert!(says(|| desk.assert_invariants()).contains("no task runs"));
        desk.put(one, "one again");
        desk.assert_invariants();
        assert!(says(|| desk.end(two)).contains("only what runs ends"));
    }

    #[test]
    fn tasks_go_on_in_the_order_in_which_they_were_woken_but_for_the_first() {
        let mut desk = Simple::default();
        let ids: Vec<usize> = ["a", "b", "c"].map(|task| desk.add(task)).to_vec();
        desk.wake(ids[1]);
        desk.wake_all([ids[2]]);
        desk.wake_first(ids[0]);
        assert!(desk.has_ready());
        let order: Vec<usize> = std::iter::from_fn(|| desk.next_ready()).collect();
        assert_eq!(order, ids);
        assert!(!desk.has_ready());
    }

    #[test]
    fn a_command_has_its_number_until_it_completes_once() {
        let mut desk = Simple::default();
        let (one, two) = (desk.give(Command::Flush, 1), desk.give(Command::Flush, 2));
        assert_eq!(desk.commands().collect::<Vec<_>>(), [(one, &1), (two, &2)]);
        assert_eq!(desk.poll_io().map(|io| io.id), Some(one), "in the order given");
        assert!(!desk.is_quiet());
        desk.assert_invariants();
        assert_eq!(desk.complete(one), 1);
        assert!(says(|| assert_eq!(desk.complete(one), 1)).contains("completes once"));
        assert_eq!(desk.give(Command::Flush, 3), one, "the number is used again");
        assert_eq!((desk.complete(two), desk.complete(one)), (2, 3));
        while desk.poll_io().is_some() {}
        assert!(desk.is_quiet());
        desk.assert_invariants();
    }

    #[test]
    fn answers_leave_in_their_order_and_the_clock_says_what_it_was_told() {
        let mut desk = Simple::default();
        for id in [4, 9] {
            let (result, buffer) = (Err(libc::EIO), Buffer::empty());
            desk.answer(Some(Response { id, result, buffer }));
        }
        desk.answer(None);
        let ids = std::iter::from_fn(|| desk.poll_response()).map(|response| response.id);
        assert_eq!(ids.collect::<Vec<_>>(), [4, 9]);
        desk.handle_time(77);
        assert_eq!(desk.now_ns(), 77);
    }
}
