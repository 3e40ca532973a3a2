//! How the model's server takes agents over, against the real one: each step of each state of the model without a
//! change of owner, done to a block server in a simulated world.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{
    AllocationExtent, Bytes, Epoch, ErrorKind, Generation, MIB, ReadPart, Result, SegmentId, Set, VolumeId,
    WriteSequence, WriteStamp,
};
use runtime::sim::NodeOptions;
use runtime::sync::Event;
use runtime::{Class, Handle};
use server::{Backend, Options, Server};
use wire::{BlockService, LocalBoxFuture, SessionId, Target, VolumeDescriptor, VolumeDirectory};

use super::state::{Request, What, World};
use super::{Fencing, Left, Step};
use crate::protocol::explore::Model;

const VOLUME: VolumeId = VolumeId(1);

/// An engine whose writes end when the test says so, in order.
#[derive(Default)]
struct Gate {
    begun: Cell<u64>,
    ended: Cell<u64>,
    changed: Event,
}

impl Gate {
    async fn pass(&self) {
        let turn = self.begun.get();
        self.begun.set(turn + 1);
        loop {
            let changed = self.changed.wait();
            if self.ended.get() > turn {
                return;
            }
            changed.await;
        }
    }

    fn end_one(&self) {
        self.ended.set(self.ended.get() + 1);
        self.changed.notify();
    }
}

/// The engine as the server has it.
struct Gated(Rc<Gate>);

impl Backend for Gated {
    async fn read(&self, _: SegmentId, _: u64, len: u64, _: &mut base::Passage) -> Result<Vec<ReadPart>> {
        Ok(vec![ReadPart::Zeros(len)])
    }

    async fn write(
        &self,
        _: SegmentId,
        _: u64,
        _: Bytes,
        _: Vec<u32>,
        _: WriteStamp,
        _: &mut base::Passage,
    ) -> Result<()> {
        self.0.pass().await;
        Ok(())
    }

    async fn discard(&self, _: SegmentId, _: u64, _: u64, _: WriteStamp) -> Result<()> {
        self.0.pass().await;
        Ok(())
    }

    async fn allocation(&self, _: SegmentId, _: u64, len: u64, _: usize) -> Result<Vec<AllocationExtent>> {
        Ok(vec![AllocationExtent { len, allocated: false }])
    }

    async fn drop_volume(&self, _volume: VolumeId) -> Result<()> {
        Ok(())
    }
}

/// The one volume, and its newest attachment.
struct Volume(RefCell<VolumeDescriptor>);

impl VolumeDirectory for Volume {
    fn resolve<'a>(&'a self, _name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        unreachable!("a server knows ids only")
    }

    fn describe(&self, _volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async { Ok(self.0.borrow().clone()) })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        unreachable!("a server knows ids only")
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        self.0.borrow_mut().generation.0 += 1;
        self.describe(volume)
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        unreachable!("nobody detaches")
    }
}

/// What came of a request, once something has.
type Outcome<T> = Rc<RefCell<Option<Result<T>>>>;

/// The real server, and what was asked of it.
struct Real {
    world: runtime::sim::World,
    handle: Handle,
    gate: Rc<Gate>,
    volume: Rc<Volume>,
    server: Rc<Server<Gated>>,
    /// By generation from 1.
    attached: Vec<Outcome<SessionId>>,
    written: Vec<Outcome<()>>,
}

impl Real {
    /// The first agent has attached.
    fn new() -> Real {
        let world = runtime::sim::World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let gate = Rc::new(Gate::default());
        let volume = Rc::new(Volume(RefCell::new(VolumeDescriptor::new(VOLUME, "disk", MIB))));
        let server = Server::new(&handle, Gated(gate.clone()), volume.clone(), Options::default());
        let mut real = Real { world, handle, gate, volume, server, attached: Vec::new(), written: Vec::new() };
        real.count();
        real.attach(Generation(1));
        real
    }

    fn count(&self) -> u64 {
        let mut volume = self.volume.0.borrow_mut();
        volume.generation.0 += 1;
        volume.generation.0
    }

    fn spawn<T: 'static>(&self, request: impl Future<Output = Result<T>> + 'static) -> Outcome<T> {
        let outcome = Outcome::default();
        let told = outcome.clone();
        let task = async move {
            let result = request.await;
            *told.borrow_mut() = Some(result);
        };
        self.handle.spawn(Class::Io, "request", task).detach();
        self.world.run_for(Duration::from_millis(1));
        outcome
    }

    fn attach(&mut self, generation: Generation) {
        let server = self.server.clone();
        let outcome = self.spawn(async move { Ok(server.attach(VOLUME, generation).await?.session) });
        self.attached.push(outcome);
    }

    fn has_attached(&self, generation: u8) -> bool {
        let outcome = self.attached.get(usize::from(generation) - 1);
        outcome.is_some_and(|outcome| outcome.borrow().as_ref().is_some_and(Result::is_ok))
    }

    /// A request under the session of this generation.
    fn target(&self, generation: u8) -> Target {
        let outcome = self.attached[usize::from(generation) - 1].borrow();
        let session = outcome.as_ref().and_then(|outcome| outcome.as_ref().ok());
        let session = *session.expect("an agent asks when it has attached");
        Target {
            session,
            segment: SegmentId { volume: VOLUME, index: 0 },
            epoch: Epoch(1),
            level: base::levels::Level::Open,
            behind: 0,
        }
    }

    fn read(&self, generation: u8) -> Outcome<()> {
        let (server, target) = (self.server.clone(), self.target(generation));
        self.spawn(async move { server.read(target, 0, 512).await.expect("no link").result.map(drop) })
    }

    fn write(&mut self, generation: u8) -> Outcome<()> {
        let (server, target) = (self.server.clone(), self.target(generation));
        let stamp = WriteStamp {
            generation: Generation(generation.into()),
            sequence: WriteSequence(self.written.len() as u64 + 1),
            ..WriteStamp::default()
        };
        let data = Bytes::from_static(&[7; 512]);
        let write = async move { server.write(target, 0, data, vec![0], stamp).await.expect("no link").result };
        self.spawn(write)
    }

    /// Does the step, and compares what comes of it with what the model says.
    fn follow(&mut self, step: Step, before: &World, after: &World) {
        match step {
            Step::Attach(_, generation) => assert_eq!(self.count(), u64::from(generation)),
            Step::Record(_, generation) => self.attach(Generation(generation.into())),
            Step::RequestArrives(agent, _) => {
                let request = before.requests.iter().find(|request| request.agent == agent && request.reply.is_none());
                self.ask(*request.expect("a request arrives"), before, after);
            }
            Step::AppendReturns(_) => {
                self.gate.end_one();
                self.world.run_for(Duration::from_millis(1));
                let written = self.written.last().and_then(|outcome| outcome.borrow_mut().take());
                assert!(written.is_some_and(|written| written.is_ok()));
            }
            // Of these the real server notices nothing: they concern agents, the manager and files.
            Step::Attached(_) | Step::Write(..) | Step::Read(_) | Step::Send(..) | Step::ReplyArrives(_) => {}
            Step::Create(_) | Step::Register(..) | Step::AppendArrives(..) => {}
            other => unreachable!("{other} needs a change of owner"),
        }
    }

    fn ask(&mut self, request: Request, before: &World, after: &World) {
        let is_refused = after.requests.iter().any(|reply| {
            let is_new = !before.requests.contains(reply);
            is_new && reply.agent == request.agent && reply.reply == Some(super::state::Reply::Refused)
        });
        let begun = self.gate.begun.get();
        let outcome = match request.what {
            What::Read(_) => self.read(request.generation),
            What::Write(_) => self.write(request.generation),
        };
        let refusal = outcome.borrow().as_ref().and_then(|outcome| outcome.as_ref().err().map(|error| error.kind));
        assert_eq!(refusal, is_refused.then_some(ErrorKind::Fenced));
        let is_taken = matches!(request.what, What::Write(_)) && !is_refused;
        assert_eq!(self.gate.begun.get() - begun, u64::from(is_taken));
        assert_eq!(after.servers[0].pending.is_some() && before.servers[0].pending.is_none(), is_taken);
        if is_taken {
            self.written.push(outcome);
        }
    }
}

/// The steps that are possible.
fn steps(model: &Fencing, world: &World) -> Vec<(Step, World)> {
    let mut steps = Vec::new();
    model.steps(world, &mut |step, next| steps.push((step, next)));
    steps
}

#[test]
fn the_server_takes_agents_over_as_the_model_says() {
    let left = Left { writes: 2, reads: 1, ..Left::default() };
    let model = Fencing { servers: 2, agents: 2, left, flaw: None };
    let start = model.starts().remove(0);
    let mut seen = Set::from_iter([start.clone()]);
    let mut ways = vec![(start.clone(), Vec::new())];
    let mut followed = 0;
    while let Some((world, way)) = ways.pop() {
        let possible = steps(&model, &world);
        let mut real = Real::new();
        let mut at = &start;
        for (step, next) in &way {
            real.follow(*step, at, next);
            at = next;
        }
        for agent in world.agents.iter().filter(|agent| agent.generation > 0) {
            let returns =
                |step: &Step| matches!(step, Step::Attached(other) if world.agents[usize::from(*other)] == *agent);
            let has_attached = agent.attached || possible.iter().any(|(step, _)| returns(step));
            assert_eq!(real.has_attached(agent.generation), has_attached, "after {way:?}", way = names(&way));
        }
        followed += 1;
        for (step, next) in possible {
            let is_new = seen.insert(next.clone());
            let mut way = way.clone();
            way.push((step, next.clone()));
            match is_new {
                true => ways.push((next, way)),
                // Its state was reached in another way; the step is compared all the same.
                false => follow_all(&start, &way),
            }
        }
    }
    println!("{followed} states of the model, each as the real server is");
    assert!(followed > 100, "{followed}");
}

fn follow_all(start: &World, way: &[(Step, World)]) {
    let mut real = Real::new();
    let mut at = start;
    for (step, next) in way {
        real.follow(*step, at, next);
        at = next;
    }
}

fn names(way: &[(Step, World)]) -> Vec<String> {
    way.iter().map(|(step, _)| step.to_string()).collect()
}
