//! What is on its way home, of all volumes together: out of a server that has it in a log, and into its owner.
//!
//! Each way out of a server and into one has a [`Window`] of its own: which of them is busy says nothing of the others. What has
//! been read waits in memory for its way in, so all of it together is bounded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Instant, Map};
use policies::forwarding::{Window, WindowSettings};
use runtime::Handle;
use runtime::sync::{Budget, Event, Permit};

/// Bytes that are on their way, or wait in memory for it.
const CARRIED_MAX: u64 = 16 << 20;
/// Ways that are remembered between looks, after which those are forgotten that nobody takes.
const REMEMBERED_MAX: usize = 1_024;

/// Which way something passes at a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Way {
    /// Out of the server with the log.
    Out,
    /// Into the owner.
    In,
}

/// See the module.
pub(super) struct WayHome {
    handle: Handle,
    /// By server ([`wire::BlockService::server`]).
    ways: RefCell<Map<(u64, Way), Rc<Passing>>>,
    carried: Budget,
}

/// One way.
struct Passing {
    window: RefCell<Window>,
    /// Bytes that are under way.
    under_way: Cell<u64>,
    /// Who waits for room has it, one after the other; and is told when there may be more.
    door: Budget,
    room: Event,
}

/// Bytes that are under way, until this is dropped.
pub(super) struct UnderWay {
    handle: Handle,
    passing: Rc<Passing>,
    bytes: u64,
    begun: Instant,
}

impl WayHome {
    pub(super) fn new(handle: &Handle) -> Rc<WayHome> {
        Rc::new(WayHome { handle: handle.clone(), ways: RefCell::default(), carried: Budget::new(CARRIED_MAX) })
    }

    /// Returns when there is memory for so many bytes: whoever waits longest first.
    pub(super) async fn memory(&self, bytes: u64) -> Permit {
        self.carried.take(bytes.min(CARRIED_MAX)).await
    }

    /// Returns when so many bytes may go a way, or one piece, however large: whoever waits longest first.
    pub(super) async fn enter(&self, server: u64, way: Way, bytes: u64) -> UnderWay {
        let passing = self.passing(server, way);
        let door = passing.door.take(1).await;
        while passing.under_way.get() > 0 && passing.under_way.get() + bytes > passing.window.borrow().bytes() {
            passing.room.wait().await;
        }
        drop(door);
        passing.under_way.set(passing.under_way.get() + bytes);
        UnderWay { handle: self.handle.clone(), passing, bytes, begun: self.handle.now() }
    }

    fn passing(&self, server: u64, way: Way) -> Rc<Passing> {
        let mut ways = self.ways.borrow_mut();
        if ways.len() >= REMEMBERED_MAX {
            ways.retain(|_, passing| Rc::strong_count(passing) > 1);
        }
        let new = || {
            Rc::new(Passing {
                window: RefCell::new(Window::new(WindowSettings::default(), self.handle.now())),
                under_way: Cell::new(0),
                door: Budget::new(1),
                room: Event::new(),
            })
        };
        ways.entry((server, way)).or_insert_with(new).clone()
    }
}

impl UnderWay {
    /// It is there.
    pub(super) fn has_arrived(self) {
        let (now, is_full) = (self.handle.now(), self.passing.door.available() == 0);
        self.passing.window.borrow_mut().on_piece(now, self.bytes, now - self.begun, is_full);
    }

    /// The server has sent it away, since clients want that.
    pub(super) fn was_sent_away(self) {
        self.passing.window.borrow_mut().on_sent_away(self.bytes);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.passing.under_way.set(self.passing.under_way.get() - self.bytes);
        self.passing.room.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::Class;
    use runtime::sim::{NodeOptions, World};
    use runtime::sync::first;

    use super::*;

    const PIECE: u64 = 64 << 10;
    const SERVER: u64 = 7;

    #[test]
    fn who_came_first_goes_first_and_no_more_than_there_is_room_for() {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.restart(node);
        let inside = handle.clone();
        world.block_on(&handle, async move {
            let (way, went) = (WayHome::new(&inside), Rc::new(RefCell::new(Vec::new())));
            // Larger than there is room for is a piece by itself.
            let large = way.enter(SERVER, Way::In, 3 * PIECE).await;
            let pieces = [PIECE, PIECE / 2, PIECE / 2, PIECE, PIECE].into_iter().enumerate().map(|(number, bytes)| {
                let (way, went, handle) = (way.clone(), went.clone(), inside.clone());
                let carry = async move {
                    let piece = way.enter(SERVER, Way::In, bytes).await;
                    went.borrow_mut().push(number);
                    handle.sleep(Duration::from_millis(20)).await;
                    piece.has_arrived();
                };
                inside.spawn(Class::Io, "carry a piece", carry)
            });
            let _pieces: Vec<_> = pieces.collect();
            // One that does not wait any more is in nobody's way.
            assert!(first(way.enter(SERVER, Way::In, PIECE), inside.sleep(Duration::from_millis(5))).await.is_err());
            assert!(went.borrow().is_empty(), "nothing is known of the way: one at a time");
            // Other ways are as free as they were.
            drop((way.enter(SERVER, Way::Out, PIECE).await, way.enter(SERVER + 1, Way::In, PIECE).await));
            drop(large);
            inside.sleep(Duration::from_millis(5)).await;
            assert_eq!(*went.borrow(), [0]);
            inside.sleep(Duration::from_millis(20)).await;
            assert_eq!(*went.borrow(), [0, 1, 2, 3], "it took no longer than alone: twice as many bytes");
            inside.sleep(Duration::from_millis(40)).await;
            assert_eq!((went.borrow().len(), way.passing(SERVER, Way::In).under_way.get()), (5, 0));
        });
    }
}
