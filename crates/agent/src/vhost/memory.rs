//! Memory for the payload of one queue, in two tiers (BurstCBS, OSDI 2024, §5.1, figure 12).
//!
//! A little of it is set aside for the queue for as long as that runs, so that a queue that was idle starts at once, whoever
//! else holds the rest. What a burst needs beyond comes from the pool of all connections, as far as one may have of it, and goes
//! back with each request: when the burst ends, nothing of it is kept. (There a queue keeps what it took until then, because
//! its buffers are filled in with what belongs to the queue; here they are not.) What is set aside comes out of the pool, so
//! that all of it stays within the same bound; a queue that cannot have it, because the pool is taken or enough queues
//! have theirs, uses the pool alone, and gets it when it is free.

use std::future::pending;
use std::rc::Rc;

use base::KIB;
use runtime::sync::first;
use runtime::{Class, Handle, SharedBudget, SharedPermit, Task};

use crate::home::Home;
use crate::shared::{SetAside, Shared};

/// Bytes that are set aside for a queue: 32 requests of 4 KiB, or one of 128 KiB, the largest that the paper measures with. It
/// says "a few buffers" and no number.
pub(super) const DEDICATED: u64 = 128 * KIB;

/// What is set aside for a queue. Clones are the same, for any loop.
#[derive(Clone)]
pub(super) struct Dedicated(SharedBudget);

/// Keeps memory set aside until it is dropped, when nothing of the queue is in flight.
pub(super) struct Keeper {
    _keeping: Task<()>,
}

/// Memory of a request: what was set aside for its queue; or of its connection and of all.
pub(super) type Payload = (SharedPermit, Option<SharedPermit>);

/// Sets memory aside for a queue, at once or when it is free. To be called on the agent's first loop.
pub(super) fn set_aside(shared: &Rc<Shared>, home: &Home) -> (Dedicated, Keeper) {
    let budget = SharedBudget::new(DEDICATED);
    // Nobody has any of it until it is there.
    let closed = budget.try_take(&shared.handle, DEDICATED);
    let share = home.of_queues.try_take(DEDICATED);
    let keeping_for = shared.clone();
    let keeping = async move {
        if share.is_some() {
            let (permit, _) = keeping_for.take_payload(DEDICATED).await;
            let _kept = SetAside::new(&keeping_for.commons, permit, DEDICATED);
            drop(closed);
            pending::<()>().await;
        }
        pending().await
    };
    let keeping = shared.handle.spawn(Class::Io, "memory of a queue", keeping);
    (Dedicated(budget), Keeper { _keeping: keeping })
}

impl Dedicated {
    /// Takes memory for `bytes` of payload from what was set aside, or from the pool, of which one connection may have `own`:
    /// whichever has it first. Says whether it had to wait, too.
    pub(super) async fn take(&self, shared: &Shared, own: &SharedBudget, bytes: u64) -> (Payload, bool) {
        let handle = &shared.handle;
        if bytes > DEDICATED {
            return take_of_pool(shared, own, bytes).await;
        }
        if let Some(permit) = self.0.try_take(handle, bytes) {
            return ((permit, None), false);
        }
        // In line for the queue's own only when the pool makes it wait.
        let dedicated = async { self.0.take(handle, bytes).await };
        match first(take_of_pool(shared, own, bytes), dedicated).await {
            Ok(taken) => taken,
            Err(permit) => ((permit, None), true),
        }
    }
}

async fn take_of_pool(shared: &Shared, own: &SharedBudget, bytes: u64) -> (Payload, bool) {
    let handle: &Handle = &shared.handle;
    let of_own = bytes.min(own.total());
    let (own, own_waited) = match own.try_take(handle, of_own) {
        Some(permit) => (permit, false),
        None => (own.take(handle, of_own).await, true),
    };
    let (all, all_waited) = shared.take_payload(bytes).await;
    shared.commons.count_pooled(shared.index());
    ((own, Some(all)), own_waited || all_waited)
}
