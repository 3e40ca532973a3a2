//! What agents keep: nobody is out of his bounds while clients ask, and nothing is kept for any when all have left.

use std::rc::Rc;
use std::time::Duration;

use agent::AgentStatistics;
use runtime::sim::World;

use super::clients::Client;
use super::shared::{Door, Share, Shared};

/// How long connections may take to end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(60);

/// Checks the books of all agents that run, now; of a store of one server those of its admission, too.
pub fn audit(shared: &mut Shared) {
    let doors = shared.doors.clone();
    for door in doors.borrow().iter().flatten() {
        match (door.audit)() {
            Err(what) => shared.fail(format!("admission: {what}")),
            Ok(waiting) => shared.coverage.throttled += u64::from(waiting > 0),
        }
    }
}

/// All clients leave; then no agent keeps anything for one.
pub fn leave(world: &World, share: &Share, clients: &[Rc<Client>]) {
    clients.iter().for_each(|client| client.leave());
    let doors: Vec<Door> = share.borrow().doors.borrow().iter().flatten().cloned().collect();
    for Door { statistics: agent, .. } in doors {
        let deadline = world.now() + LEAVE_PATIENCE;
        world.run_until(|| agent().connections_open == 0 || world.now() > deadline);
        let AgentStatistics { connections_open, payload_bytes, queue_bytes, violations, .. } = agent();
        if (connections_open, payload_bytes, queue_bytes) != (0, 0, 0) {
            let kept =
                format!("{connections_open} connections, {payload_bytes} bytes of requests, {queue_bytes} of queues");
            share.borrow_mut().fail(format!("all clients have left, and the agent keeps {kept}"));
        }
        if violations > 0 {
            share.borrow_mut().fail(format!("{violations} clients were said to break the rules"));
        }
    }
}
