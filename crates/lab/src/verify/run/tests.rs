//! Every question of a run must be able to get a bad answer: a store is sabotaged behind its back, and must be caught.

use runtime::OpenOptions;

use super::super::agents;
use super::super::nbd::Connection;
use super::super::plan::{FaultKind, Request, Shape, Step, Vm};
use super::super::shared::name_of;
use super::*;

/// A run without accidents on one disk, whose requests are done.
fn calm() -> (World, Run) {
    calm_with(|shape| shape.promise == Promise::Flawless && shape.disks == 1)
}

/// The same in another world.
fn calm_with(fits: impl Fn(&Shape) -> bool) -> (World, Run) {
    calm_of(fits, None)
}

/// The same where every client is a virtual machine.
fn calm_guests() -> (World, Run) {
    let vm = Vm { queues: 2, size: 16, depth: 4, tells: true, tables: true };
    calm_of(|shape| shape.promise == Promise::Flawless && shape.disks == 1, Some(vm))
}

fn calm_of(fits: impl Fn(&Shape) -> bool, vm: Option<Vm>) -> (World, Run) {
    let mut plans = (0..1_000).map(|seed| Plan::draw(seed, &FaultKind::ALL));
    let is_alone = |shape: &Shape| shape.several.is_none() && shape.packet_loss_one_in == 0;
    let mut plan = plans.find(|plan| fits(&plan.shape) && is_alone(&plan.shape)).unwrap();
    plan.steps.retain(|step| matches!(step, Step::Ask { .. }));
    plan.shape.vms = vec![vm; plan.shape.clients];
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
    let client = run.users[0].clone();
    let handle = client.handle().clone();
    run.world.block_on(&handle, async move { client.ask(0, &request).await });
}

fn make_files(run: &Run, names: impl IntoIterator<Item = String>) {
    let handle = run.share.borrow().store.clone().expect("it is up").handle;
    let paths: Vec<_> = names.into_iter().map(|name| run.settings.directories[0].join(name)).collect();
    let inside = handle.clone();
    run.world.block_on(&handle, async move {
        for path in paths {
            inside.open(&path, OpenOptions { write: true, create: true, ..OpenOptions::default() }).await.unwrap();
        }
    });
}

#[test]
fn nothing_is_wrong_with_a_calm_run() {
    let (_world, mut run) = calm();
    run.prove();
    assert_eq!(run.share.borrow().violation, None);
    let coverage = run.share.borrow().coverage.clone();
    assert!(coverage.audits > 0 && coverage.sectors > 0 && coverage.restarts > 0);
}

#[test]
fn files_that_are_left_are_noticed() {
    let (_world, run) = calm();
    make_files(&run, ["data-00000000deadbeef".to_owned()]);
    run.delete_everything();
    assert!(violation(&run).contains("data-00000000deadbeef"));
}

#[test]
fn a_journal_without_bounds_is_noticed() {
    let (_world, run) = calm();
    make_files(&run, (0..=JOURNAL_FILES).map(|number| format!("journal-00000000deadbee{number}")));
    run.count_journals();
    assert!(violation(&run).contains("journal files"));
}

#[test]
fn a_request_without_an_answer_is_noticed() {
    let (world, run) = calm();
    ask(&run, Request::Flush);
    world.run_for(Duration::from_secs(100));
    world.cut_link(run.server, run.clients);
    ask(&run, Request::Flush);
    assert!(violation(&run).contains("had no answer"));
}

#[test]
fn an_error_without_a_reason_is_noticed() {
    let (_world, run) = calm();
    run.disks[0].set_capacity(0);
    let sectors = run.plan.shape.sectors.clone();
    for _ in 0..2_000 {
        ask(&run, Request::Write(sectors.clone()));
        if run.is_over() {
            break;
        }
    }
    let what = violation(&run);
    assert!(what.contains("nothing was wrong"), "{what}");
}

#[test]
fn a_recovery_without_end_is_noticed() {
    let (_world, run) = calm();
    assert!(run.stop());
    run.disks[0].set_slowness(10_000_000);
    run.hands().start(&run.world);
    assert!(!run.wait_until_up());
    assert!(violation(&run).contains("did not end"));
}

#[test]
fn a_store_that_does_not_start_is_noticed() {
    let (_world, run) = calm();
    assert!(run.stop());
    let superblock = run.settings.directories[0].join("superblock");
    let len = run.disks[0].content(superblock.strip_prefix("/disk0").unwrap()).len();
    run.disks[0].overwrite(superblock.strip_prefix("/disk0").unwrap(), 0, &vec![0; len]);
    run.hands().start(&run.world);
    run.wait_until_up();
    assert!(violation(&run).contains("does not start"));
}

#[test]
fn a_lost_write_is_noticed() {
    let (_world, run) = calm();
    let sectors = run.plan.shape.sectors.clone();
    assert!(run.stop());
    let before = run.disks[0].snapshot();
    run.hands().start(&run.world);
    assert!(run.wait_until_up());
    ask(&run, Request::Write(sectors));
    assert!(run.stop());
    run.disks[0].restore(&before);
    run.hands().start(&run.world);
    assert!(run.wait_until_up());
    run.read_everything();
    assert_eq!(run.share.borrow().violation, None, "the bytes are old, not wrong");
    assert!(run.share.borrow_mut().history.check().unwrap_err().contains("cannot be explained"));
}

#[test]
fn a_damaged_store_is_noticed() {
    let (_world, run) = calm();
    ask(&run, Request::Write(run.plan.shape.sectors.clone()));
    assert!(run.stop());
    for (path, len) in run.disks[0].files() {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("data-")) {
            run.disks[0].corrupt(&path, 4096..len);
        }
    }
    run.inspect(&[]);
    assert!(violation(&run).contains("damaged"));
}

#[test]
fn damage_that_scrubbing_leaves_is_noticed() {
    let (_world, run) =
        calm_with(|shape| shape.promise == Promise::NothingLost && (shape.disks, shape.copies) == (2, 2));
    ask(&run, Request::Write(run.plan.shape.sectors.clone()));
    run.restart_cleanly();
    assert!(run.wait_until_up());
    let spoil = |name: &str| {
        let files = run.disks[0].files();
        for (path, len) in files.into_iter().filter(|(path, _)| path.to_string_lossy().contains(name)) {
            run.disks[0].corrupt(&path, 4096..len);
        }
    };
    spoil("/data-");
    spoil("/table-");
    let scrubbed = run.scrub();
    assert_eq!((run.share.borrow().violation.clone(), scrubbed.is_empty()), (None, false));
    assert!(run.stop());
    run.inspect(&scrubbed);
    assert_eq!(run.share.borrow().violation, None, "all of it was repaired");
    spoil("/data-");
    run.inspect(&scrubbed);
    assert!(violation(&run).contains("damage is left"));
}

#[test]
fn nothing_is_wrong_with_a_calm_run_of_virtual_machines() {
    let (_world, mut run) = calm_guests();
    run.prove();
    assert_eq!(run.share.borrow().violation, None);
    let coverage = run.share.borrow().coverage.clone();
    // Flushes are not counted as requests.
    assert!(coverage.guests > 0 && coverage.requests > 0 && coverage.guest_requests >= coverage.requests);
}

#[test]
fn a_request_of_a_virtual_machine_without_an_answer_is_noticed() {
    let (world, run) = calm_guests();
    world.run_for(Duration::from_secs(100));
    run.disks[0].set_slowness(10_000_000);
    ask(&run, Request::Write(run.plan.shape.sectors.clone()));
    assert!(violation(&run).contains("had no answer"));
}

#[test]
fn a_virtual_machine_without_a_disk_is_noticed() {
    let (world, run) = calm_guests();
    ask(&run, Request::Flush);
    // It connects again, and nobody is there any more.
    run.hands().set_door(None);
    world.kill(run.server);
    ask(&run, Request::Flush);
    assert!(violation(&run).contains("could not connect"));
}

#[test]
fn a_disk_that_a_start_forgets_is_noticed() {
    let (_world, run) = calm_guests();
    ask(&run, Request::Flush);
    assert!(run.stop());
    let list = run.settings.directories[0].join("devices.toml");
    run.disks[0].overwrite(list.strip_prefix("/disk0").unwrap(), 0, b"not what was written there");
    run.hands().start(&run.world);
    run.wait_until_up();
    assert!(violation(&run).contains("not served any more"));
}

#[test]
fn what_an_agent_keeps_of_clients_that_have_left_is_noticed() {
    let (_world, run) = calm_guests();
    let (user, share) = (&run.users[0], run.share.clone());
    let address = share.borrow().agents[0].address.clone();
    let inside = user.handle().clone();
    let attached = async move { Connection::attach(&inside, &address, &name_of(0)).await };
    let stays = run.world.block_on(user.handle(), attached).expect("the store is up");
    agents::leave(&run.world, &run.share, &run.users);
    assert!(violation(&run).contains("all clients have left"));
    drop(stays);
}
