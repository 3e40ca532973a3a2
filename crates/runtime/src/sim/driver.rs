//! The driver of one simulated loop: a window on the shared state of its world.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::Instant;
use policies::loop_schedule::LoopSettings;

use super::World;
use super::state::{Event, LoopId, State};
use crate::Class;
use crate::driver::{Driver, LoopMain, Op, OpId, Outcome, Started, Token, Unpark, Wait, Work};
use crate::guest::{Port, Visitor};

/// The driver of one loop. Once its process is dead it does nothing more.
pub(super) struct SimDriver {
    pub(super) state: Rc<RefCell<State>>,
    pub(super) id: LoopId,
    pub(super) unparker: Arc<Unparker>,
}

/// Remembers that a loop was woken, until the world looks.
pub(super) struct Unparker {
    woken: AtomicBool,
    any_woken: Arc<AtomicBool>,
}

impl Unparker {
    pub(super) fn new(any_woken: Arc<AtomicBool>) -> Self {
        Unparker { woken: AtomicBool::new(false), any_woken }
    }

    pub(super) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }
}

impl Unpark for Unparker {
    fn unpark(&self) {
        self.woken.store(true, Ordering::Relaxed);
        self.any_woken.store(true, Ordering::Relaxed);
    }
}

impl Driver for SimDriver {
    fn now(&self) -> Instant {
        self.state.borrow_mut().loop_now(self.id)
    }

    fn wall_ms(&self) -> u64 {
        self.state.borrow().loop_wall_ms(self.id)
    }

    fn random_u64(&self) -> u64 {
        self.state.borrow_mut().loop_random(self.id)
    }

    fn submit(&self, id: OpId, op: Op) {
        self.state.borrow_mut().loop_submit(self.id, id, op);
    }

    fn cancel(&self, id: OpId) {
        self.state.borrow_mut().loop_cancel(self.id, id);
    }

    fn flush(&self) {
        self.state.borrow_mut().loop_flush(self.id);
    }

    fn reap(&self, wait: Wait, _poll: Duration, outcomes: &mut Vec<(OpId, Outcome)>) {
        // The world decides when the loop's next turn is, from what the turn returns: a reap never waits here.
        assert!(wait == Wait::No, "a simulated loop does not block in its driver");
        let mut state = self.state.borrow_mut();
        state.loop_flush(self.id);
        state.loop_reap(self.id, outcomes);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.unparker.clone()
    }

    fn charge(&self, span: Duration) {
        self.state.borrow_mut().loop_charge(self.id, span.as_nanos() as u64);
    }

    fn spend(&self, work: Work) {
        self.state.borrow_mut().loop_spend(self.id, work);
    }

    fn on_lock(&self, held_until_ns: &AtomicU64) {
        self.state.borrow_mut().loop_lock(self.id, held_until_ns);
    }

    fn offload(&self, job: Box<dyn FnOnce() + Send>, cost: Duration) {
        self.state.borrow_mut().loop_offload(self.id, job, cost.as_nanos() as u64);
    }

    fn attend(&self, stream: Token) -> io::Result<Port> {
        self.state.borrow_mut().network.attend(stream)
    }

    fn visit(&self, stream: Token) -> io::Result<Visitor> {
        self.state.borrow_mut().network.visit(stream)
    }

    fn start_loop(&self, _name: &str, settings: LoopSettings, main: LoopMain, started: Started) {
        let (asking, world_state) = (self.id, self.state.clone());
        let start = move |world: &World| {
            let Some(node) = world_state.borrow().node_of_living(asking) else { return };
            let handle = world.start_loop_with(node, settings);
            let id = world_state.borrow().newest_loop();
            let running = main(handle.clone());
            let end = async move {
                running.await;
                let now_ns = world_state.borrow().now_ns;
                let end = Event::Call(Box::new(move |world: &World| world.end_loop(id)));
                world_state.borrow_mut().queue.push(now_ns, end);
            };
            handle.spawn(Class::Io, "main", end).detach();
            // Whoever asked may be gone.
            drop(started.send(Ok(())));
        };
        self.state.borrow_mut().loop_call(self.id, Box::new(start));
    }
}
