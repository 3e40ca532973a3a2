//! Who goes first at a modelled server: as at a real one, by [`Coordination`].

use std::cell::RefCell;
use std::pin::pin;
use std::time::Duration;

use base::levels::Level;
use base::{Error, Result};
use policies::forwarding::{Asked, Coordination, CoordinationSettings, Turn};
use runtime::Handle;
use runtime::sync::{Sender, first, oneshot};

/// How often whoever waits has a look at who may go.
const LOOK: Duration = Duration::from_millis(5);

/// What each server knows of who wants it.
pub(super) struct Turns {
    handle: Handle,
    servers: Vec<RefCell<Coordination<Sender<Option<Turn>>>>>,
}

/// A request that is at a server.
pub(super) struct Here<'a> {
    turns: &'a Turns,
    server: usize,
    /// Of what merges.
    turn: Option<Turn>,
}

impl Turns {
    pub(super) fn new(handle: &Handle, servers: usize) -> Turns {
        let coordination = || RefCell::new(Coordination::new(CoordinationSettings::default()));
        Turns { handle: handle.clone(), servers: (0..servers).map(|_| coordination()).collect() }
    }

    /// Returns when a request may begin; it is there until what is returned is dropped.
    ///
    /// # Errors
    /// `Retry`: it merges, and clients want the server.
    pub(super) async fn enter(&self, server: usize, level: Level) -> Result<Here<'_>> {
        let now = self.handle.now();
        if level != Level::Merge {
            self.servers[server].borrow_mut().on_client(now, 0, 0);
            return Ok(Here { turns: self, server, turn: None });
        }
        let mut granted = None;
        let asked = self.servers[server].borrow_mut().ask(now, || {
            let (sender, receiver) = oneshot();
            granted = Some(receiver);
            sender
        });
        let turn = match (asked, granted) {
            (Asked::Goes(turn), _) => Some(turn),
            (Asked::Waits, Some(granted)) => {
                let mut granted = pin!(granted);
                loop {
                    match first(granted.as_mut(), self.handle.sleep(LOOK)).await {
                        Ok(turn) => break turn.flatten(),
                        Err(()) => self.let_home(server),
                    }
                }
            }
            _ => None,
        };
        let turn = turn.ok_or_else(|| Error::retry("clients want this server"))?;
        Ok(Here { turns: self, server, turn: Some(turn) })
    }

    fn let_home(&self, server: usize) {
        loop {
            let next = self.servers[server].borrow_mut().next(self.handle.now());
            let Some((sender, turn)) = next else { return };
            sender.send(turn);
        }
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        let now = self.turns.handle.now();
        let is_due = {
            let mut server = self.turns.servers[self.server].borrow_mut();
            match self.turn {
                None => server.on_client_done(),
                Some(turn) => server.on_done(now, turn),
            }
            server.is_due(now)
        };
        if is_due {
            self.turns.let_home(self.server);
        }
    }
}
