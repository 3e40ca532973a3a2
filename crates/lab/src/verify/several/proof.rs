//! What must be true in the end, whatever happened before.

use std::time::Duration;

use super::super::agents;
use super::super::plan::{Machine, Role};
use super::Run;
use super::machines::Known;

/// Accidents and their ends take so long at most.
const ENDS: Duration = Duration::from_secs(6);
/// What may still come after a volume is gone has come by then.
const LATER: Duration = Duration::from_secs(2);

impl Run {
    /// What must be true in the end.
    pub(super) fn prove(&mut self) {
        if self.is_over() {
            return;
        }
        self.heal();
        if !self.settle() || !self.read_everything() {
            return;
        }
        self.count_grants();
        // What is not durable is gone now; nobody remembers anything.
        self.kill_everything();
        if !self.settle() || !self.read_everything() {
            return;
        }
        self.look();
        agents::leave(&self.world, &self.share, &self.clients);
        self.delete_everything();
        if self.is_over() {
            return;
        }
        let mut shared = self.share.borrow_mut();
        let checked = shared.history.check();
        shared.coverage.sectors += shared.history.registers();
        if let Err(what) = checked {
            shared.fail(what);
        }
    }

    /// Ends everything that is wrong.
    fn heal(&self) {
        self.world.run_for(ENDS);
        let nodes = self.machines.nodes();
        for a in &nodes {
            self.world.set_clock_drift(*a, 0);
            for b in nodes.iter().filter(|b| *b != a) {
                self.world.heal(*a, *b);
                self.world.set_extra_delay(*a, *b, Duration::ZERO);
            }
        }
        self.machines.heal_store();
        self.share.borrow_mut().errors_allowed = false;
        self.world.set_network(Default::default());
        let people = self.people.clone();
        self.world.block_on(self.people.handle(), async move { people.undrain_all().await });
    }

    /// Reads all that was ever written; says whether nothing was wrong with it.
    fn read_everything(&self) -> bool {
        for client in self.clients.iter() {
            let reader = client.clone();
            self.world.block_on(client.handle(), async move { reader.read_everything().await });
        }
        !self.is_over()
    }

    /// Kills all machines at once, and starts them again.
    fn kill_everything(&self) {
        let all: Vec<Machine> = self.machines.all().collect();
        for machine in &all {
            let power = machine.role == Role::Store;
            self.hands().kill(&self.world, *machine, power, Duration::from_millis(100));
        }
        self.world.run_for(Duration::from_millis(200));
    }

    /// Deletes all volumes; what they had must go.
    pub(super) fn delete_everything(&self) {
        let (people, volumes) = (self.people.clone(), self.plan.shape.volumes);
        let failed = self.world.block_on(self.people.handle(), async move {
            for volume in 0..volumes {
                if let Err(error) = people.delete(volume).await {
                    return Some(error);
                }
            }
            None
        });
        if let Some(error) = failed {
            return self.share.borrow_mut().fail(format!("a volume cannot be deleted: {error}"));
        }
        // A volume is gone when the owner of each segment has logged that: nobody has any of it, nor gets it later.
        let segments =
            |server: Known| server.segments().map(|(segment, _)| (server.engine, segment)).collect::<Vec<_>>();
        let left = || self.machines.servers().into_iter().flat_map(segments).collect::<Vec<_>>();
        for _ in 0..2 {
            let left = left();
            if !left.is_empty() {
                let what = format!("engines have segments of volumes that are gone: {left:?}");
                return self.share.borrow_mut().fail(what);
            }
            self.world.run_for(LATER);
        }
    }

    /// What lives may set aside is what those have that are not fenced.
    fn count_grants(&self) {
        let lives = self.machines.lives().unwrap_or_default();
        let of_the_dead: Vec<_> = lives.iter().filter(|life| life.is_fenced && life.granted_bytes > 0).collect();
        if !of_the_dead.is_empty() {
            self.share
                .borrow_mut()
                .fail(format!("lives that were fenced keep what they were granted: {of_the_dead:?}"));
        }
    }
}
