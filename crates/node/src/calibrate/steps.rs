//! Does the steps of a search: requests that come one after the other, many at a time, or at random times.
//!
//! A request is a task. What is seen of it goes to the step's [`Sample`], which says when the step is over; what is in
//! flight then is waited for, so that no step begins in the queue of the one before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Bytes, Error, MIB, Prng, Result};
use files::local::scratch::Scratch;
use policies::admission::calibration::{Arrivals, Ask, Mix, Sample, Step, gap_ns};
use policies::slow_requests::Direction;
use runtime::{Class, File, Handle};

use super::fill::{failed, random_bytes};

/// How long a disk may take for what is in flight when a step is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether that is done.
const LOOK: Duration = Duration::from_millis(1);
/// Requests that are made in one go when several are due, before others get their turn.
const AT_ONCE: usize = 32;

/// A load of one mix on scratch files.
pub(super) struct Load(Rc<Inner>);

struct Inner {
    handle: Handle,
    files: Vec<File>,
    copies: usize,
    mix: Mix,
    /// Bytes of each file that are used.
    len: u64,
    /// What is written: a part of it, each time another one.
    content: Bytes,
    prng: RefCell<Prng>,
    sample: RefCell<Option<Sample>>,
    /// The first error, and of which file.
    error: Cell<Option<(usize, std::io::Error)>>,
    /// Bytes that were read and written in each directory.
    moved: RefCell<Vec<[u64; 2]>>,
    names: Vec<std::path::PathBuf>,
}

impl Load {
    pub(super) fn new(
        handle: &Handle,
        scratches: &[Scratch],
        copies: usize,
        mix: Mix,
        len: u64,
        mut prng: Prng,
    ) -> Load {
        let content = random_bytes(&mut prng, MIB + mix.most_bytes());
        Load(Rc::new(Inner {
            handle: handle.clone(),
            files: scratches.iter().map(|scratch| scratch.durable().clone()).collect(),
            copies,
            mix,
            len,
            content,
            prng: RefCell::new(prng),
            sample: RefCell::new(None),
            error: Cell::new(None),
            moved: RefCell::new(vec![[0; 2]; scratches.len()]),
            names: scratches.iter().map(|scratch| scratch.path().to_owned()).collect(),
        }))
    }

    /// Bytes that were read and written in each directory so far.
    pub(super) fn moved(&self) -> Vec<[u64; 2]> {
        self.0.moved.borrow().clone()
    }

    /// Does one step.
    ///
    /// # Errors
    /// `Io` where a disk fails or does not answer.
    pub(super) async fn run(&self, step: Step) -> Result<Sample> {
        let inner = &self.0;
        *inner.sample.borrow_mut() = Some(Sample::new(step, inner.handle.now()));
        match step.arrivals {
            Arrivals::Alone => inner.spawn_chain(),
            Arrivals::Full(depth) => (0..depth).for_each(|_| inner.spawn_chain()),
            Arrivals::Random(per_sec) => inner.arrive(per_sec).await,
        }
        while !inner.is_over() {
            let now = inner.handle.now();
            let look = inner.with(|sample| sample.next_look(now));
            inner.handle.sleep_until(look.max(now + LOOK)).await;
        }
        inner.drain().await?;
        inner.sample.borrow_mut().take().ok_or_else(|| Error::internal("a step without a sample"))
    }
}

impl Inner {
    fn with<T>(&self, look: impl FnOnce(&mut Sample) -> T) -> T {
        look(self.sample.borrow_mut().as_mut().expect("tasks run during steps only"))
    }

    fn is_over(&self) -> bool {
        let error = self.error.take();
        let has_failed = error.is_some();
        self.error.set(error);
        has_failed || self.with(|sample| sample.is_over(self.handle.now()))
    }

    /// Requests one after the other until the step is over.
    fn spawn_chain(self: &Rc<Self>) {
        let this = self.clone();
        let chain = async move {
            while !this.is_over() {
                let ask = this.draw();
                this.serve(ask).await;
            }
        };
        self.handle.spawn(Class::Io, "calibration", chain).detach();
    }

    /// Requests at random times until the step is over. Who comes late, because the processor was busy, is not left out.
    async fn arrive(self: &Rc<Self>, per_sec: f64) {
        let mut next = self.handle.now();
        while !self.is_over() {
            for _ in 0..AT_ONCE {
                if next > self.handle.now() || self.is_over() {
                    break;
                }
                let (this, ask) = (self.clone(), self.draw());
                self.handle.spawn(Class::Io, "calibration", async move { this.serve(ask).await }).detach();
                next = next + Duration::from_nanos(gap_ns(&mut self.prng.borrow_mut(), per_sec));
            }
            let now = self.handle.now();
            match next > now {
                true => {
                    self.handle.sleep_until(next.min(self.with(|sample| sample.next_look(now)).max(now + LOOK))).await
                }
                false => self.handle.yield_now().await,
            }
        }
    }

    /// The next request; it counts as made.
    fn draw(&self) -> Ask {
        let ask = self.mix.draw(&mut self.prng.borrow_mut(), self.len);
        self.with(|sample| sample.on_start(&ask));
        ask
    }

    /// One request: a read from one directory, a write to as many as there are copies.
    async fn serve(&self, ask: Ask) {
        let first = self.prng.borrow_mut().below(self.files.len() as u64) as usize;
        let begun = self.handle.now();
        let mut done = Ok(());
        match ask.direction {
            Direction::Read => {
                let read = self.files[first].read_at(ask.offset, ask.bytes as usize).await;
                done = read.map(drop).map_err(|error| (first, error));
                self.moved.borrow_mut()[first][0] += ask.bytes;
            }
            Direction::Write => {
                let from = (self.prng.borrow_mut().below(MIB / base::BLOCK) * base::BLOCK) as usize;
                let data = self.content.slice(from..from + ask.bytes as usize);
                let places = (first..first + self.copies).map(|place| place % self.files.len());
                // All are queued before the first one is waited for.
                let queued: Vec<_> =
                    places.map(|place| (place, self.files[place].write_at(ask.offset, data.clone()))).collect();
                for (place, write) in queued {
                    done = done.and(write.await.map_err(|error| (place, error)));
                    self.moved.borrow_mut()[place][1] += ask.bytes;
                }
            }
        }
        let now = self.handle.now();
        self.with(|sample| sample.on_done(now, ask, now.nanos_since(begun)));
        if let Err(error) = done {
            self.error.set(Some(error));
        }
    }

    /// Waits for what is in flight.
    async fn drain(&self) -> Result<()> {
        let patience = self.handle.now() + PATIENCE;
        while self.with(|sample| sample.in_flight()) > 0 {
            if self.handle.now() >= patience {
                return Err(Error::io(format!(
                    "a disk has not answered for {} s: nothing can be measured on it",
                    PATIENCE.as_secs()
                )));
            }
            self.handle.sleep(LOOK).await;
        }
        match self.error.take() {
            None => Ok(()),
            Some((place, error)) => Err(failed(&self.names[place], &error)),
        }
    }
}
