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
    /// It is home.
    pub(super) fn has_arrived(self) {
        let (now, is_full) = (self.way.handle.now(), self.way.door.available() == 0);
        self.way.window.borrow_mut().on_piece(now, self.bytes, now - self.begun, is_full);
    }

    /// A server has sent it away, since clients want that.
    pub(super) fn was_sent_away(self) {
        self.way.window.borrow_mut().on_sent_away(self.bytes);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.way.under_way.set(self.way.under_way.get() - self.bytes);
        self.way.room.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::Class;
    use runtime::sim::{NodeOptions, World};
    use runtime::sync::first;

    use super::*;

    const PIECE: u64 = 128 << 10;

    #[test]
    fn who_came_first_goes_first_and_no_more_than_there_is_room_for() {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.restart(node);
        let inside = handle.clone();
        world.block_on(&handle, async move {
            let (way, went) = (WayHome::new(&inside), Rc::new(RefCell::new(Vec::new())));
            // Larger than there is room for is a piece by itself.
            let large = way.enter(3 * PIECE).await;
            let pieces = [PIECE, PIECE / 2, PIECE / 2, PIECE, PIECE].into_iter().enumerate().map(|(number, bytes)| {
                let (way, went, handle) = (way.clone(), went.clone(), inside.clone());
                let carry = async move {
                    let piece = way.enter(bytes).await;
                    went.borrow_mut().push(number);
                    handle.sleep(Duration::from_millis(20)).await;
                    piece.has_arrived();
                };
                inside.spawn(Class::Io, "carry a piece", carry)
            });
            let _pieces: Vec<_> = pieces.collect();
            // One that does not wait any more is in nobody's way.
            assert!(first(way.enter(PIECE), inside.sleep(Duration::from_millis(5))).await.is_err());
            assert!(went.borrow().is_empty(), "nothing is known of the way: one at a time");
            drop(large);
            inside.sleep(Duration::from_millis(5)).await;
            assert_eq!(*went.borrow(), [0]);
            inside.sleep(Duration::from_millis(20)).await;
            assert_eq!(*went.borrow(), [0, 1, 2, 3], "it took no longer than alone: twice as many bytes");
            inside.sleep(Duration::from_millis(40)).await;
            assert_eq!((went.borrow().len(), way.under_way.get()), (5, 0));
        });
    }
}
