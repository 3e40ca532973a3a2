//! Two who need each other hold each other: until their loop ends.

use std::cell::OnceCell;
use std::rc::Rc;

use base::{Generation, VolumeId};
use wire::{LocalBoxFuture, VolumeUser};

use super::world::{DISK, Fixture, options};
use crate::stream::{NearEnd, Services};

/// An agent: it uses what the store has, and tells the store who uses it.
#[derive(Default)]
struct Agent {
    store: OnceCell<NearEnd>,
}

impl VolumeUser for Agent {
    fn release(&self, _: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn users(&self, _: VolumeId) -> usize {
        1
    }
}

#[test]
fn what_is_offered_is_let_go_with_its_loop() {
    let fixture = Fixture::new(1);
    let agent = Rc::new(Agent::default());
    let services = Services { user: Some(agent.clone()), ..Services::default() };
    let near = NearEnd::dial(&fixture.near, fixture.address.clone(), services, options("an agent"));
    agent.store.set(near.clone()).ok().unwrap();
    fixture.run(async move {
        let block: Rc<dyn wire::BlockService> = Rc::new(near);
        block.attach(DISK, Generation(1)).await.unwrap();
    });
    let agent = {
        let weak = Rc::downgrade(&agent);
        drop(agent);
        weak
    };
    fixture.world.run_for(std::time::Duration::from_secs(1));
    assert!(agent.upgrade().is_some(), "it is offered, whoever else knows it");
    fixture.world.kill(fixture.nodes[0]);
    assert!(agent.upgrade().is_none(), "nobody is left who could be asked");
}
