//! Tasks that are ready, and the one door through which other threads add to them.
//!
//! A wake on the loop's own thread is a push to a plain queue. A wake from another thread goes through a lock, and
//! unparks the loop only if it may be asleep: the loop raises `asleep` before it looks at `foreign_waiting` for the
//! last time, the other thread raises `foreign_waiting` before it looks at `asleep`, so one of them sees the other.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Class;
use crate::driver::Unpark;

/// What a task carries besides its future.
pub(crate) struct TaskInfo {
    pub name: &'static str,
    /// The queue it waits in: that of its class, or the I/O queue for all in the FIFO baseline.
    pub queue: Class,
    /// Whether it runs before those that are ready already.
    pub ahead: bool,
}

pub(super) type Runnable = async_task::Runnable<TaskInfo>;

/// The ready tasks of one loop.
pub(super) struct ReadyQueues {
    owner: u64,
    local: LocalQueues,
    foreign: Mutex<Vec<Runnable>>,
    foreign_waiting: AtomicBool,
    asleep: AtomicBool,
    unpark: Arc<dyn Unpark>,
}

/// The queues of the loop's own thread: I/O, background.
struct LocalQueues(UnsafeCell<[VecDeque<Runnable>; 2]>);

// SAFETY: the cell is only touched by the thread whose number is `ReadyQueues::owner`; numbers are never reused.
// Runnables themselves are `Send`: a task's future never leaves with them (see `Executor::kill`).
unsafe impl Sync for LocalQueues {}

impl ReadyQueues {
    /// Queues owned by the calling thread. They count as asleep until the first turn.
    pub fn new(unpark: Arc<dyn Unpark>) -> Self {
        ReadyQueues {
            owner: thread_number(),
            local: LocalQueues(UnsafeCell::new([VecDeque::new(), VecDeque::new()])),
            foreign: Mutex::new(Vec::new()),
            foreign_waiting: AtomicBool::new(false),
            asleep: AtomicBool::new(true),
            unpark,
        }
    }

    /// Adds a ready task, from any thread.
    pub fn push(&self, runnable: Runnable) {
        if thread_number() == self.owner {
            self.queue(runnable);
            if !self.asleep.load(Ordering::Relaxed) {
                return;
            }
        } else {
            self.lock_foreign().push(runnable);
            self.foreign_waiting.store(true, Ordering::SeqCst);
        }
        self.nudge();
    }

    fn queue(&self, runnable: Runnable) {
        let TaskInfo { queue, ahead, .. } = *runnable.metadata();
        self.with(queue, |queue| match ahead {
            true => queue.push_front(runnable),
            false => queue.push_back(runnable),
        });
    }

    /// The next ready task of a class.
    pub fn pop(&self, class: Class) -> Option<Runnable> {
        self.with(class, VecDeque::pop_front)
    }

    /// Gets a sleeping loop up without a task.
    pub fn nudge(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.unpark.unpark();
        }
    }

    /// How many tasks of a class are ready.
    pub fn len(&self, class: Class) -> usize {
        self.with(class, |queue| queue.len())
    }

    /// Moves what other threads woke to the loop's own queues.
    pub fn take_foreign(&self) {
        if !self.foreign_waiting.load(Ordering::SeqCst) {
            return;
        }
        self.foreign_waiting.store(false, Ordering::SeqCst);
        let woken = std::mem::take(&mut *self.lock_foreign());
        for runnable in woken {
            self.queue(runnable);
        }
    }

    /// Asks to be unparked by the next push. False if another thread has pushed already: then the loop stays up.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let quiet = !self.foreign_waiting.load(Ordering::SeqCst);
        if !quiet {
            self.wake_up();
        }
        quiet
    }

    /// Ends the state that [`ReadyQueues::fall_asleep`] began.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn lock_foreign(&self) -> MutexGuard<'_, Vec<Runnable>> {
        // Nothing that panics runs under this lock; if it did, the list would still be whole.
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, class: Class, act: impl FnOnce(&mut VecDeque<Runnable>) -> R) -> R {
        assert!(thread_number() == self.owner, "a loop's queues belong to its thread");
        let index = match class {
            Class::Io => 0,
            Class::Background => 1,
        };
        // SAFETY: on the owner's thread, and `act` only moves runnables: it calls no foreign code that could come
        // back here.
        act(unsafe { &mut (&mut *self.local.0.get())[index] })
    }
}

/// A number for the calling thread that no other thread ever had or will have.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}
