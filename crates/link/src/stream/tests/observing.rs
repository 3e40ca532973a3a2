//! How a process stands, over a stream: what was said is heard, in parts if need be; a peer that does not tell says so, and one
//! that tells what cannot be is not believed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Result, VolumeId};
use wire::observe::{Detail, Explained, Metric, Snapshot, VolumeCounters};
use wire::{EngineRegistry, LocalBoxFuture, Observer};

use super::world::{Fixture, listen, options};
use crate::stream::{FarEnd, NearEnd, Services};

/// One that stands as it is told to.
#[derive(Default)]
struct Told {
    snapshot: RefCell<Snapshot>,
    asked: Cell<u32>,
}

impl Observer for Told {
    fn observe(&self, detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        self.asked.set(self.asked.get() + 1);
        let all = self.snapshot.borrow().clone();
        let traffic = if detail == Detail::Full { all.traffic.clone() } else { vec![] };
        Box::pin(std::future::ready(Ok(Snapshot { traffic, ..all })))
    }

    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        let explained = match volume {
            VolumeId(9) => Err(Error::retry("it is starting")),
            VolumeId(id) => Ok(Explained { started_requests: id, ..Explained::default() }),
        };
        Box::pin(std::future::ready(explained))
    }
}

fn volume(id: u64) -> VolumeCounters {
    let name = "a name of a volume ".repeat(20);
    VolumeCounters { volume: VolumeId(id), name, clients: id, requests: vec![], waits: vec![], slow: vec![] }
}

fn stands(fixture: &Fixture, snapshot: Snapshot) -> (Rc<Told>, NearEnd) {
    let told = Rc::new(Told { snapshot: RefCell::new(snapshot), ..Told::default() });
    let services = Services { observer: Some(told.clone()), ..Services::default() };
    let end = FarEnd::new(&fixture.far, services, options("a server"));
    let any = runtime::Address::Tcp((fixture.world.address(fixture.nodes[1]), 0).into());
    let address = listen(&fixture.world, &fixture.far, &end, any);
    std::mem::forget(end);
    (told, NearEnd::dial(&fixture.near, address, Services::default(), options("a manager")))
}

#[test]
fn what_is_told_is_heard_in_parts_if_need_be() {
    let fixture = Fixture::new(1);
    let few = Snapshot { name: "s1".into(), incarnation: 7, traffic: vec![volume(3)], ..Snapshot::default() };
    let (told, near) = stands(&fixture, few.clone());
    fixture.run(async move {
        assert_eq!(near.observe(Detail::Full).await.unwrap(), few);
        assert_eq!(told.asked.get(), 1);
        assert_eq!(near.observe(Detail::WithoutVolumes).await.unwrap(), Snapshot { traffic: vec![], ..few.clone() });
        let many = Snapshot { traffic: (1..=5_000).map(volume).collect(), ..few };
        *told.snapshot.borrow_mut() = many.clone();
        told.asked.set(0);
        assert_eq!(near.observe(Detail::Full).await.unwrap(), many);
        assert!(told.asked.get() > 1, "one part has all");
        assert_eq!(near.explain(VolumeId(5)).await.unwrap().started_requests, 5);
        let refused = near.explain(VolumeId(9)).await.unwrap_err();
        assert_eq!((refused.kind, refused.message.as_str()), (ErrorKind::Retry, "it is starting"));
    });
}

/// One of an older version, that has other services: its connection goes on.
#[test]
fn who_does_not_tell_is_not_asked() {
    let fixture = Fixture::new(2);
    let near = fixture.dial();
    let inside = near.clone();
    fixture.run(async move {
        inside.missing(vec![]).await.unwrap();
        for refused in [inside.observe(Detail::Full).await.unwrap_err(), inside.explain(VolumeId(1)).await.unwrap_err()]
        {
            assert!(
                refused.kind == ErrorKind::Invalid && refused.message.contains("the store does no tell"),
                "{refused}"
            );
        }
        inside.missing(vec![]).await.unwrap();
    });
    let counted = fixture.end.statistics();
    assert_eq!((counted.accepted, counted.violations), (1, 0));
}

#[test]
fn what_cannot_be_is_not_believed() {
    let fixture = Fixture::new(3);
    let metric = Metric { name: "two words".into(), ..Metric::plain("one", "A number.", 1.0) };
    let (told, near) = stands(&fixture, Snapshot { metrics: vec![metric], ..Snapshot::default() });
    fixture.run(async move {
        assert_eq!(near.observe(Detail::Full).await.unwrap_err().kind, ErrorKind::Io);
        // More than may be said at once, of all but volumes.
        *told.snapshot.borrow_mut() = Snapshot { nbd: vec!["x".repeat(2 << 20)], ..Snapshot::default() };
        assert_eq!(near.observe(Detail::Full).await.unwrap_err().kind, ErrorKind::Internal);
        *told.snapshot.borrow_mut() = Snapshot::default();
        near.observe(Detail::Full).await.unwrap();
    });
}
