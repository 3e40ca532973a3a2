//! What guests and devices ring, on a loop; and how a loop takes a hypervisor's connection.
//!
//! See [`crate::guest`] for what it is good for.

use std::io;

use crate::Handle;
use crate::driver::{Op, ResourceId};
use crate::guest::{Bell, Hung, Port, Visitor};
use crate::net::Released;

/// A bell that a loop waits for, or rings. Dropped, it is closed.
pub struct Doorbell(Kind);

enum Kind {
    World { handle: Handle, id: ResourceId },
    Plain(async_channel::Sender<()>, async_channel::Receiver<()>),
}

impl Doorbell {
    /// Waits until it is rung; what was rung before, and not heard, counts.
    ///
    /// # Errors
    /// The world's.
    pub async fn wait(&self) -> io::Result<()> {
        match &self.0 {
            Kind::World { handle, id } => handle.operate(Op::Await { id: *id }).await.value.map(drop),
            Kind::Plain(_, receiver) => {
                let _ = receiver.recv().await;
                Ok(())
            }
        }
    }

    /// Rings it. Queued at the call; completes when the other end can hear it.
    ///
    /// # Errors
    /// The world's.
    pub fn ring(&self) -> impl Future<Output = io::Result<()>> + use<> {
        let operation = match &self.0 {
            Kind::World { handle, id } => Some(handle.operate(Op::Ring { id: *id })),
            Kind::Plain(sender, _) => {
                let _ = sender.try_send(());
                None
            }
        };
        async move {
            match operation {
                Some(operation) => operation.await.value.map(drop),
                None => Ok(()),
            }
        }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        if let Kind::World { handle, id } = &self.0 {
            drop(handle.operate(Op::Close { id: *id }));
        }
    }
}

impl Handle {
    /// Takes a connection of a hypervisor that was accepted as a stream, of which nothing was received.
    ///
    /// # Errors
    /// The world's: it comes from another one, or there is no thread to be had.
    pub fn attend(&self, released: Released) -> io::Result<Port> {
        self.0.driver().attend(released.into_token())
    }

    /// Makes a connection the hypervisor's end of one, in the simulated world: there must be a device that attends to the
    /// other end, now or later.
    ///
    /// # Errors
    /// `Unsupported` in the real world.
    pub fn visit(&self, released: Released) -> io::Result<Visitor> {
        self.0.driver().visit(released.into_token())
    }

    /// Makes a bell one of this loop.
    ///
    /// # Errors
    /// It comes from another world.
    pub async fn hang(&self, bell: Bell) -> io::Result<Doorbell> {
        match bell.0 {
            Hung::Plain(sender, receiver) => Ok(Doorbell(Kind::Plain(sender, receiver))),
            Hung::World(bell) => {
                let token = bell.into_token();
                let id = ResourceId(self.operate(Op::Adopt { token }).await.value?);
                Ok(Doorbell(Kind::World { handle: self.clone(), id }))
            }
        }
    }
}
