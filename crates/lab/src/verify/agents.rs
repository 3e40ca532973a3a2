//! What agents keep of clients when all have left: nothing.

use std::rc::Rc;
use std::time::Duration;

use agent::AgentStatistics;
use runtime::sim::World;

use super::clients::Client;
use super::shared::{Door, Share};

/// How long connections may take to end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(60);

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
