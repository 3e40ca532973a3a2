//! Levels of a volume whose segments are on several servers.

use std::cell::Cell;
use std::rc::Rc;

use base::GIB;
use control::levels::LevelsChange;
use control::service::Request;
use node::settings::Enforcer;
use runtime::{Class, Task};

use super::MS;
use super::bed::{Bed, Role};
use super::nbd::Nbd;

fn set_burst(bed: &Bed, iops: u64) {
    let change = LevelsChange { burst_iops: Some(iops), base_iops: Some(100), ..LevelsChange::default() };
    bed.ask(Request::Set { name: "disk".into(), change: change.into() }).unwrap();
}

/// Clients that read, one block after the other, from all segments.
fn start(bed: &Bed, count: u64) -> (Rc<Cell<u64>>, Vec<Task<()>>) {
    let (handle, address, read) = (bed.handle(Role::Agent, 0), bed.nbd(0), Rc::new(Cell::new(0)));
    let start = |client: u64| {
        let (inside, address, read) = (handle.clone(), address.clone(), read.clone());
        handle.spawn(Class::Io, "client", async move {
            let nbd = Nbd::attach(&inside, &address).await.unwrap();
            for number in client.. {
                // The stripe unit: the next one is in the next segment.
                assert!(nbd.read(number % 1000 * (128 << 10), 4096).await.is_some());
                read.set(read.get() + 1);
            }
        })
    };
    (read.clone(), (0..count).map(start).collect())
}

fn in_a_second(bed: &Bed, read: &Cell<u64>) -> u64 {
    let before = read.get();
    bed.world.run_for(1000 * MS);
    read.get() - before
}

#[test]
fn a_volume_gets_its_burst_level_once_from_all_servers() {
    for enforcer in [Enforcer::Agent, Enforcer::Server] {
        let mut bed = Bed::new(31, 1, 3, 1);
        bed.enforcer = enforcer;
        bed.start_all();
        bed.create("disk", GIB);
        set_burst(&bed, 400);
        let (read, clients) = start(&bed, 24);
        bed.world.run_for(200 * MS);
        let count = in_a_second(&bed, &read);
        match enforcer {
            Enforcer::Agent => assert!((390..=405).contains(&count), "{count}"),
            Enforcer::Server => assert!(count >= 800, "each server holds it to the level by itself: {count}"),
        }
        // Another level holds at once, wherever it is looked at.
        set_burst(&bed, 1200);
        let count = in_a_second(&bed, &read);
        match enforcer {
            Enforcer::Agent => assert!((1170..=1215).contains(&count), "{count}"),
            Enforcer::Server => assert!(count >= 1800, "{count}"),
        }
        drop(clients);
    }
}
