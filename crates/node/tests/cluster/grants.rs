//! What the roles set aside of a pool that they share.

use std::future::ready;
use std::rc::Rc;

use base::{GIB, MIB, Result};
use files::rados::StorePools;
use files::rados::librados::Place;
use files::rados::simulated::{Pool, PoolOptions};
use node::cluster::Pools;
use node::cluster::manager::ManagerRole;
use node::cluster::server::ServerRole;
use node::settings::{ApiSettings, Settings};
use runtime::Handle;
use runtime::sim::{NodeOptions, World};
use wire::LocalBoxFuture;

struct Simulated(Pool);

impl Pools for Simulated {
    fn open(&self, handle: &Handle, _place: Place) -> LocalBoxFuture<'static, Result<StorePools>> {
        Box::pin(ready(Ok(self.0.reached_from(handle).into())))
    }
}

/// A small pool has room for servers, then.
#[test]
fn a_manager_sets_little_of_a_pool_aside() {
    let world = World::new(1);
    let pool = Pool::new(&world, PoolOptions { capacity: 16 * GIB, ..PoolOptions::default() });
    let pools: Rc<dyn Pools> = Rc::new(Simulated(pool.clone()));
    let start = || {
        let node = world.add_node(NodeOptions::default());
        let listen = format!("{}:7000", world.address(node));
        let api = ApiSettings { is_off: true, ..ApiSettings::default() };
        let mut settings = Settings { api, ..Settings::default() };
        let cluster = &mut settings.cluster;
        (cluster.name, cluster.store) = ("one".into(), "rados:levee".into());
        // Nobody listens there: it can wait.
        cluster.leases = Some(format!("{}:1", world.address(node)));
        (cluster.listen, cluster.managers) = (listen.clone(), vec![listen]);
        (world.start_loop(node), settings)
    };
    let (handle, settings) = start();
    let (inside, over) = (handle.clone(), pools.clone());
    let _manager =
        world.block_on(&handle, async move { ManagerRole::start_over(&inside, &settings, over).await }).unwrap();
    let (handle, settings) = start();
    let (inside, over) = (handle.clone(), pools.clone());
    let _server =
        world.block_on(&handle, async move { ServerRole::start_over(&inside, &settings, over).await }).unwrap();
    let granted: Vec<u64> = pool.lives(None).unwrap().iter().map(|life| life.granted_bytes).collect();
    assert_eq!(granted, [64 * MIB, GIB]);
}
