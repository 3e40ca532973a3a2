//! One run of several servers: managers, servers, agents and their shared store, each on a machine of its own, and a plan.
//!
//! **Intuition.** What runs is the roles as their commands start them (`node::cluster`). The clients, their history and the
//! judgement of it are those of one server ([`super::clients`]); only that they go through agents, and are told of nothing
//! but the end of their agent, their attachment or their volume.
//!
//! **Flow.** All machines start; workers take the steps of the plan; what a person orders is asked of the manager in charge
//! ([`people`]), accidents happen to machines ([`hands`]), each followed by its own end. All the time somebody looks whether
//! what must hold at each moment does ([`watch`]). In the end everything is healed, and has to prove itself ([`proof`]).

mod hands;
mod machines;
mod people;
mod proof;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use runtime::sim::World;
use runtime::{Address, Class};

use self::hands::Hands;
use self::machines::Machines;
use self::people::People;
use self::watch::Watch;
use super::clients::Client;
use super::coverage::Coverage;
use super::plan::{Plan, Role};
use super::shared::{Share, Shared};

/// How often somebody looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long it may take until every segment has an owner, when nothing is wrong any more.
const SETTLE_PATIENCE: Duration = Duration::from_secs(60);

/// Carries the plan of several servers out in a fresh world.
pub fn run(world: &World, plan: &Plan) -> (Coverage, Option<String>) {
    let mut run = Run::new(world, plan);
    run.work();
    run.prove();
    let mut shared = run.share.borrow_mut();
    shared.coverage.several = 1;
    shared.coverage.pooled = u64::from(plan.shape.pool.is_some());
    shared.coverage.coded = u64::from(plan.shape.pool.is_some_and(|pool| pool.is_coded));
    shared.coverage.carded = u64::from(plan.shape.card.is_some());
    shared.conclude(world.now())
}

struct Run {
    world: World,
    plan: Plan,
    machines: Machines,
    share: Share,
    people: Rc<People>,
    watch: Rc<RefCell<Watch>>,
    clients: Rc<[Rc<Client>]>,
}

impl Run {
    fn new(world: &World, plan: &Plan) -> Run {
        let machines = Machines::new(world, plan);
        let agents = machines.of(Role::Agent).map(|agent| Address::Tcp(machines.nbd(agent)));
        let share = Rc::new(RefCell::new(Shared::new(plan, agents)));
        share.borrow_mut().is_strict = true;
        // A pool that has given no answer for as long as its clients wait is an error to whoever writes.
        share.borrow_mut().errors_allowed = plan.shape.pool.is_some_and(|pool| pool.lost_one_in > 0);
        share.borrow_mut().doors = machines.doors();
        let handle = world.start_loop(machines.clients());
        let people = Rc::new(People::new(&handle, &share, &machines));
        let client = |number| {
            let client = Client::new(&handle, &share, number);
            client.set_errands(people.clone());
            client
        };
        let clients = (0..plan.shape.clients).map(client).collect();
        Run { world: world.clone(), plan: plan.clone(), machines, share, people, watch: Rc::default(), clients }
    }

    fn is_over(&self) -> bool {
        self.share.borrow().violation.is_some()
    }

    fn hands(&self) -> Hands {
        let clients = self.people.handle().clone();
        Hands { machines: self.machines.clone(), share: self.share.clone(), clients, users: self.clients.clone() }
    }

    /// Looks now, and again and again for as long as there are workers.
    fn look(&self) {
        fn look(world: &World, machines: Machines, share: Share, watch: Rc<RefCell<Watch>>) {
            watch.borrow_mut().look(&machines, world.now(), &mut share.borrow_mut());
            if share.borrow().workers > 0 {
                world.after(LOOK, move |world| look(world, machines, share, watch));
            }
        }
        look(&self.world, self.machines.clone(), self.share.clone(), self.watch.clone());
    }

    /// The steps of the plan.
    fn work(&mut self) {
        self.machines.all().for_each(|machine| self.machines.start(&self.world, machine));
        if !self.settle() {
            return;
        }
        let (people, volumes) = (self.people.clone(), self.plan.shape.volumes);
        self.world.block_on(&self.people.handle().clone(), async move {
            for volume in 0..volumes {
                people.make(volume).await;
            }
        });
        for client in self.clients.iter() {
            for _ in 0..client.depth() {
                self.share.borrow_mut().workers += 1;
                client.handle().spawn(Class::Io, "lab worker", client.clone().work()).detach();
            }
        }
        self.look();
        while self.share.borrow().workers > 0 {
            let share = self.share.clone();
            self.world.run_until(|| {
                let shared = share.borrow();
                shared.workers == 0 || !shared.accidents.is_empty()
            });
            let accidents = std::mem::take(&mut self.share.borrow_mut().accidents);
            for (fault, after) in accidents {
                let hands = self.hands();
                self.world.after(after, move |world| hands.cause(world, &fault));
            }
        }
    }

    /// Waits until every segment has an owner that lives, and every server is in touch. Says whether that came about.
    fn settle(&self) -> bool {
        let deadline = self.world.now() + SETTLE_PATIENCE;
        let servers = self.machines.of(Role::Server).count();
        while self.world.now() < deadline && !self.is_over() {
            if self.machines.cluster().is_some_and(|cluster| machines::is_settled(&cluster, servers)) {
                return true;
            }
            self.world.run_for(LOOK);
        }
        let how = self.machines.cluster();
        let what = format!("not every segment has an owner after {SETTLE_PATIENCE:?} in which nothing was wrong");
        let refusal = self.machines.refusal();
        self.share.borrow_mut().fail(format!("{what}: {how:?}; the last start that was refused: {refusal:?}"));
        false
    }
}
