//! Which clients are virtual machines, and what their disks are like.
//!
//! They are drawn apart from the rest of a plan, so that a seed means what it meant before there were any.

use base::{MIB, Prng};
use node::settings::Queues;

/// What the disks of a virtual machine are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vm {
    /// Queues of each disk.
    pub queues: usize,
    /// Descriptors of each queue.
    pub size: u16,
    /// Requests that it has in flight at most.
    pub depth: usize,
    /// Whether its driver says when it wants to be told, and hears when the device does.
    pub tells: bool,
    /// Whether descriptors may lie in tables of their own.
    pub tables: bool,
}

/// What all clients of an agent together may read and write in a second, if there is a limit: small enough that loops leave
/// queues to each other.
pub(super) fn draw_limit(seed: u64) -> Option<u64> {
    *Prng::new(seed ^ 0x6c61_626c).pick(&[None, None, None, Some(8 * MIB), Some(32 * MIB)])
}

/// Draws for each client whether it is one, which a third of them are, and which loops serve their queues.
pub(super) fn draw(seed: u64, clients: usize) -> (Vec<Option<Vm>>, Queues) {
    let mut prng = Prng::new(seed ^ 0x6c61_6267);
    let queues = *prng.pick(&[Queues::Shared, Queues::Shared, Queues::Shared, Queues::Static]);
    let mut vm = |_| {
        prng.one_in(3).then(|| Vm {
            queues: prng.between(1, 4) as usize,
            size: *prng.pick(&[16, 64, 256]),
            depth: *prng.pick(&[1, 4, 12]),
            tells: !prng.one_in(4),
            tables: !prng.one_in(4),
        })
    };
    ((0..clients).map(&mut vm).collect(), queues)
}
