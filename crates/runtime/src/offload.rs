//! The only thread pool of a process: for jobs of about 100 us and more that would hold up a loop.
//!
//! Two threads, started when there is the first job, asleep while there is none. A loop hands over at most as many
//! jobs as its executor allows (64), so the queue is bounded by the number of loops. A job completes a channel by
//! itself and contains its own panics (see [`Handle::offload`](crate::Handle::offload)).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// Threads of the pool.
const THREADS_MAX: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

static POOL: LazyLock<Pool> = LazyLock::new(Pool::default);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    job_added: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// Runs a job on the pool, in order of arrival. Where no thread can be started it runs here and now.
pub fn run(job: Job) {
    let mut state = POOL.lock();
    state.jobs.push_back(job);
    if state.jobs.len() > state.idle && state.threads < THREADS_MAX {
        state.threads += 1;
        let thread = std::thread::Builder::new().name("levee-offload".into()).spawn(work);
        if thread.is_err() {
            state.threads -= 1;
            if state.threads == 0 {
                let job = state.jobs.pop_back();
                drop(state);
                job.into_iter().for_each(run_contained);
                return;
            }
        }
    }
    drop(state);
    POOL.job_added.notify_one();
}

fn work() {
    let mut state = POOL.lock();
    loop {
        match state.jobs.pop_front() {
            Some(job) => {
                drop(state);
                run_contained(job);
                state = POOL.lock();
            }
            None => {
                state.idle += 1;
                state = POOL.job_added.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

/// A panic ends the job, not the pool's thread.
fn run_contained(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a job on the thread pool panicked");
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Jobs run outside the lock, so a poisoned one still guards a whole queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_and_a_panic_ends_only_its_own() {
        let (sender, receiver) = std::sync::mpsc::channel();
        for i in 0..100 {
            let sender = sender.clone();
            run(Box::new(move || {
                assert!(i != 50, "expected by this test");
                sender.send(i).expect("the test waits");
            }));
        }
        drop(sender);
        let mut seen: Vec<i32> = receiver.into_iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).filter(|i| *i != 50).collect::<Vec<_>>());
        assert!(POOL.lock().threads <= THREADS_MAX);
    }
}
