//! The state of one stream: what is submitted and not begun, and how far it has come.
//!
//! A stream counts its commands. An event is a [`Mark`]: a stream and a count, done when the stream has come that far.
//! So an event recorded again leaves earlier waiters their own mark, and one that is destroyed leaves them theirs.
//! A mark names only work submitted before it, hence no two streams can wait for each other.

use std::collections::VecDeque;
use std::fmt;

use crate::device::{DeviceError, HostFunction};
use crate::fp8::Cast;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, wait};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

/// Commands a stream holds without allocating. More in flight double its memory once.
const COMMANDS: usize = 256;

/// One piece of a stream's work.
pub(crate) enum Command {
    /// Bytes from one address to another.
    Copy { from: u64, to: u64, bytes: u64 },
    /// A cast, or one back.
    Cast(CastWork),
    /// Nothing until another stream has come as far.
    Wait(Mark),
    /// A function of the caller, with its data's address.
    Call { function: HostFunction, data: usize },
    /// The same as a closure.
    Run(Box<dyn FnOnce() + Send>),
}

/// A cast and the addresses of its buffers, which are as long as its shape needs.
#[derive(Clone, Copy)]
pub(crate) struct CastWork {
    pub(crate) cast: Cast,
    pub(crate) back: bool,
    pub(crate) wide: u64,
    pub(crate) values: u64,
    pub(crate) scales: u64,
}

/// A point of a stream's work.
#[derive(Clone)]
pub(crate) struct Mark {
    queue: Arc<Queue>,
    position: u64,
}

/// The work of one stream, in order.
pub(crate) struct Queue {
    state: Mutex<State>,
    submitted: Condvar,
    ended: Condvar,
}

struct State {
    /// Not begun.
    commands: VecDeque<Command>,
    /// Commands ever submitted.
    submitted: u64,
    /// Of these, those that have ended.
    ended: u64,
    /// Set once: from then on nothing runs.
    failure: Option<Failure>,
    /// No more will be submitted.
    closed: bool,
    /// Threads waiting for `ended`.
    waiting: u32,
}

struct Failure {
    /// The first command that did not end well.
    position: u64,
    error: DeviceError,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new() -> Self {
        let state = State {
            commands: VecDeque::with_capacity(COMMANDS),
            submitted: 0,
            ended: 0,
            failure: None,
            closed: false,
            waiting: 0,
        };
        Self { state: Mutex::new(state), submitted: Condvar::new(), ended: Condvar::new() }
    }

    /// Adds `command` and returns at once.
    pub(crate) fn submit(&self, command: Command) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.usable()?;
        if state.commands.try_reserve(1).is_err() {
            let bytes = 2 * state.commands.capacity() * size_of::<Command>();
            return Err(DeviceError::OutOfPinnedMemory { bytes: bytes as u64 });
        }
        state.commands.push_back(command);
        state.submitted += 1;
        drop(state);
        self.submitted.notify_one();
        Ok(())
    }

    /// All that has been submitted to `queue` so far. With an error where the queue has failed: the mark carries it too.
    pub(crate) fn mark(queue: &Arc<Self>) -> (Mark, Result<(), DeviceError>) {
        let state = queue.lock();
        let position = if state.failure.is_some() { u64::MAX } else { state.submitted };
        (Mark { queue: Arc::clone(queue), position }, state.usable())
    }

    /// For the worker: the next command, once there is one; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Command> {
        let mut state = self.lock();
        loop {
            match state.commands.pop_front() {
                None if !state.closed => state = wait(&self.submitted, state),
                next => return next,
            }
        }
    }

    /// For the worker: the command that [`next`](Self::next) gave has ended well.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended += 1;
        let waiting = state.waiting > 0;
        drop(state);
        // Waking nobody still costs a system call.
        if waiting {
            self.ended.notify_all();
        }
    }

    /// For the worker: the command under way has failed, and with it all that was submitted after it.
    pub(crate) fn fail(&self, error: DeviceError) {
        let mut state = self.lock();
        let position = state.ended + 1;
        state.failure.get_or_insert(Failure { position, error });
        state.ended = state.submitted;
        // Dropped after the lock is given back: closures are foreign code.
        let dropped = std::mem::take(&mut state.commands);
        drop(state);
        self.ended.notify_all();
        drop(dropped);
    }

    /// Lets the worker end after the work submitted so far.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.submitted.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether more may be submitted.
    fn usable(&self) -> Result<(), DeviceError> {
        match &self.failure {
            Some(failure) => Err(failure.error.clone()),
            None if self.closed => Err(DeviceError::Lost { what: "a stream that was destroyed".to_owned() }),
            None => Ok(()),
        }
    }

    /// How the work up to `position` has ended; `None` while it has not.
    fn outcome(&self, position: u64) -> Option<Result<(), DeviceError>> {
        match &self.failure {
            Some(failure) if failure.position <= position => Some(Err(failure.error.clone())),
            _ => (self.ended >= position).then_some(Ok(())),
        }
    }
}

impl Mark {
    /// How the work it marks has ended; `None` while it has not.
    pub(crate) fn outcome(&self) -> Option<Result<(), DeviceError>> {
        self.queue.lock().outcome(self.position)
    }

    /// Blocks until the work it marks has ended.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        let mut state = self.queue.lock();
        loop {
            if let Some(outcome) = state.outcome(self.position) {
                return outcome;
            }
            state.waiting += 1;
            state = wait(&self.queue.ended, state);
            state.waiting -= 1;
        }
    }

    /// Whether it marks work of `queue`.
    pub(crate) fn is_of(&self, queue: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let failure = state.failure.as_ref().map(|failure| &failure.error);
        f.debug_struct("Queue")
            .field("submitted", &state.submitted)
            .field("ended", &state.ended)
            .field("failure", &failure)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").field("position", &self.position).finish_non_exhaustive()
    }
}
