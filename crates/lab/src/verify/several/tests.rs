//! What is looked at in a run of several servers must be able to be wrong.

use base::{Epoch, Incarnation, SegmentId, Term, VolumeId};
use engine::Tenure;
use files::shared::LifeInfo;

use super::super::plan::{FaultKind, Machine, Request, Step};
use super::*;

/// A run without accidents whose requests are done.
fn calm() -> (World, Run) {
    let mut plan = Plan::draw_several(1, &[]);
    plan.steps.retain(|step| matches!(step, Step::Ask { .. }));
    plan.shape.vms.clear();
    let world = World::new(1);
    let mut run = Run::new(&world, &plan);
    run.work();
    assert_eq!(run.share.borrow().violation, None);
    (world, run)
}

fn violation(run: &Run) -> String {
    run.share.borrow_mut().violation.take().expect("it is noticed")
}

fn ask(run: &Run, request: Request) {
    let client = run.clients[0].clone();
    let handle = client.handle().clone();
    run.world.block_on(&handle, async move { client.ask(0, &request).await });
}

#[test]
fn nothing_is_wrong_with_a_calm_run() {
    let (_world, mut run) = calm();
    run.prove();
    assert_eq!(run.share.borrow().violation, None);
    assert!(run.share.borrow().coverage.sectors > 0);
}

#[test]
fn one_seed_in_three_has_several_servers() {
    let seeds = (0..300).filter(|seed| Plan::draw(*seed, &FaultKind::ALL).shape.several.is_some());
    assert!((70..130).contains(&seeds.count()));
}

#[test]
fn a_segment_with_two_owners_under_one_epoch_is_noticed() {
    let (_world, run) = calm();
    let segment = SegmentId { volume: VolumeId(1), index: 0 };
    let see = |engine, epoch| {
        run.watch.borrow_mut().on_owner(segment, Epoch(epoch), Incarnation(engine), &mut run.share.borrow_mut());
    };
    see(90, 1 << 60);
    see(91, (1 << 60) + 1);
    see(90, 1 << 60);
    assert_eq!(run.share.borrow().violation, None);
    see(91, 1 << 60);
    assert!(violation(&run).contains("two owners"));
}

#[test]
fn a_term_of_two_managers_and_one_that_falls_are_noticed() {
    let (_world, run) = calm();
    let see = |life, term| run.watch.borrow_mut().on_term(term, life, &mut run.share.borrow_mut());
    see((0, 7), 100);
    see((1, 7), 101);
    assert_eq!(run.share.borrow().violation, None);
    see((1, 7), 100);
    assert!(violation(&run).contains("two managers"));
    see((2, 7), 110);
    see((2, 7), 109);
    assert!(violation(&run).contains("fell"));
}

#[test]
fn segments_without_an_owner_are_noticed() {
    let (world, run) = calm();
    run.machines.kill(&world, Machine { role: Role::Server, index: 0 }, false);
    // As long as it takes until it is missed.
    world.run_for(Duration::from_secs(3));
    assert!(!run.settle());
    assert!(violation(&run).contains("not every segment has an owner"));
}

#[test]
fn an_error_of_an_agent_that_lives_is_noticed() {
    let (_world, run) = calm();
    ask(&run, Request::Flush);
    let agent = run.machines.of(Role::Agent).next().expect("there is one");
    // To the clients the agent lives, and their connection ends under a request.
    run.world.reset_connections(run.machines.node(agent), run.machines.clients());
    ask(&run, Request::Flush);
    assert!(violation(&run).contains("lost its connection"));
}

#[test]
fn a_segment_with_two_engines_that_may_write_and_one_of_a_volume_that_is_gone_are_noticed() {
    let (world, run) = calm();
    let servers = run.machines.servers();
    assert!(servers.len() > 1);
    let (segment, tenure) = servers.iter().find_map(|server| server.segments().next()).expect("somebody has one");
    // All of them run, in their order.
    let index = servers.iter().position(|server| server.store.tenure(segment).is_none()).expect("somebody does not");
    let store = servers[index].store.clone();
    let handle = run.machines.handle(Machine { role: Role::Server, index }).expect("it runs");
    let later = Tenure { epoch: Epoch(tenure.epoch.0 + (1 << 40)), ..tenure };
    world.block_on(&handle, async move { store.create_segment(segment, later).await }).expect("nobody forbids it");
    run.look();
    assert!(violation(&run).contains("two engines that may write"));
    run.delete_everything();
    assert!(violation(&run).contains("volumes that are gone"));
}

#[test]
fn an_engine_that_follows_an_older_manager_is_noticed() {
    let (_world, run) = calm();
    let see = |term| run.watch.borrow_mut().on_orders(Incarnation(7), Term(term), &mut run.share.borrow_mut());
    see(3);
    see(4);
    assert_eq!(run.share.borrow().violation, None);
    see(3);
    assert!(violation(&run).contains("obeyed a manager"));
}

#[test]
fn a_life_that_grows_after_its_fence_and_one_that_keeps_its_grant_are_noticed() {
    let (_world, run) = calm();
    let see = |used_bytes, granted_bytes| {
        let life = LifeInfo { incarnation: Incarnation(7), is_fenced: true, granted_bytes, used_bytes };
        run.watch.borrow_mut().on_life(&life, &mut run.share.borrow_mut());
    };
    // Until the fence returns, what was in flight may still come.
    see(1, 100);
    see(2, 100);
    see(2, 0);
    see(1, 0);
    assert_eq!(run.share.borrow().violation, None);
    see(2, 0);
    assert!(violation(&run).contains("was fenced with"));
}

#[test]
fn a_server_that_dies_of_what_happened_to_a_manager_is_noticed() {
    let (world, run) = calm();
    let [server, other] = [0, 1].map(|index| Machine { role: Role::Server, index });
    let see = |server| {
        let mut watch = run.watch.borrow_mut();
        watch.on_dismissed(&run.machines, server, world.now(), &mut run.share.borrow_mut());
    };
    run.machines.on_harm(server, world.now());
    see(server);
    assert_eq!(run.share.borrow().violation, None);
    see(other);
    assert!(violation(&run).contains("nothing had happened to it"));
}

#[test]
fn a_write_through_an_attachment_that_is_over_is_noticed() {
    let (_world, run) = calm();
    // The attachment is not over: what is written through it is done.
    let client = run.clients[0].clone();
    let handle = client.handle().clone();
    run.world.block_on(&handle, async move {
        client.ask(0, &Request::Flush).await;
        client.go_on_as_if_over(0).await;
    });
    assert!(violation(&run).contains("which was over"));
}
