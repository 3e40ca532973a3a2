//! What is on its way home, of all volumes together: never more than [`Window`] has it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::Instant;
use policies::forwarding::{Window, WindowSettings};
use runtime::Handle;
use runtime::sync::{Budget, Event};

/// See the module.
pub(super) struct WayHome {
    handle: Handle,
    window: RefCell<Window>,
    /// Bytes that are under way.
    under_way: Cell<u64>,
    /// Who waits for room has it, one after the other; and is told when there may be more.
    door: Budget,
    room: Event,
}

/// A piece that is under way, until this is dropped.
pub(super) struct UnderWay {
    way: Rc<WayHome>,
    bytes: u64,
    begun: Instant,
}

impl WayHome {
    pub(super) fn new(handle: &Handle) -> Rc<WayHome> {
        Rc::new(WayHome {
            handle: handle.clone(),
            window: RefCell::new(Window::new(WindowSettings::default(), handle.now())),
            under_way: Cell::new(0),
            door: Budget::new(1),
            room: Event::new(),
        })
    }

    /// Returns when there is room for so many bytes, or for one piece, however large: whoever waits longest first.
    pub(super) async fn enter(self: &Rc<WayHome>, bytes: u64) -> UnderWay {
        let door = self.door.take(1).await;
        while self.under_way.get() > 0 && self.under_way.get() + bytes > self.window.borrow().bytes() {
            self.room.wait().await;
        }
        drop(door);
        self.under_way.set(self.under_way.get() + bytes);
        UnderWay { way: self.clone(), bytes, begun: self.handle.now() }
    }
}

impl UnderWay {
    /// It is home, or was sent away by somebody whom clients want.
    pub(super) fn has_arrived(self) {
        let (now, is_full) = (self.way.handle.now(), self.way.door.available() == 0);
        self.way.window.borrow_mut().on_piece(now, self.bytes, now - self.begun, is_full);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.way.under_way.set(self.way.under_way.get() - self.bytes);
        self.way.room.notify();
    }
}
