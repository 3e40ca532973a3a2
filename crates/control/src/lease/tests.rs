//! One suite over every way to a store of leases: the store itself, and a stream to it.

use std::time::Duration;

use base::{ErrorKind, Prng};
use link::stream::{self, FarEnd, NearEnd, Services};
use runtime::sim::{NetworkOptions, NodeOptions, World};
use runtime::{Address, Class};

use super::*;

const MS: Duration = Duration::from_millis(1);
const QUIET: Duration = Duration::from_millis(2_000);

pub(crate) fn put(value: &str, lease: LeaseId) -> Write {
    Write::Put { value: value.as_bytes().to_vec(), lease }
}

pub(crate) async fn yes(store: &dyn LeaseStore, key: &str, expected: Revision, write: Write) -> Revision {
    match store.compare_and_swap(key, expected, write).await.unwrap() {
        Swapped::Yes(revision) => revision,
        Swapped::No(entry) => panic!("{key} is {entry:?}"),
    }
}

pub(crate) async fn no(store: &dyn LeaseStore, key: &str, expected: Revision, write: Write) -> Option<Entry> {
    match store.compare_and_swap(key, expected, write).await.unwrap() {
        Swapped::Yes(revision) => panic!("{key} was written: {revision:?}"),
        Swapped::No(entry) => entry,
    }
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind
}

/// What any store does with keys that nobody has used.
pub(crate) async fn swaps(store: &dyn LeaseStore) {
    let first_revision = yes(store, "a", Revision(0), put("1", LeaseId(0))).await;
    let there = no(store, "a", Revision(0), put("2", LeaseId(0))).await.unwrap();
    assert_eq!((&there.key[..], &there.value[..], there.revision), ("a", &b"1"[..], first_revision));
    assert_eq!(no(store, "b", Revision(7), Write::Delete).await, None);
    let second = yes(store, "a", first_revision, put("2", LeaseId(0))).await;
    assert!(second > first_revision);
    no(store, "a", first_revision, Write::Delete).await.unwrap();
    yes(store, "a", second, Write::Delete).await;
    assert_eq!(no(store, "a", second, Write::Delete).await, None);
    for (key, write) in [("", put("", LeaseId(0))), ("a", put(&"x".repeat(128), LeaseId(0)))] {
        assert_eq!(kind(store.compare_and_swap(key, Revision(0), write).await), ErrorKind::Invalid);
    }
    assert_eq!(kind(store.watch(&"x".repeat(64), Revision(0)).await), ErrorKind::Invalid);
}

/// What every store does. `handle` is the loop of whoever asks.
async fn conforms(handle: Handle, store: Rc<dyn LeaseStore>) {
    assert_eq!(kind(store.grant(500).await), ErrorKind::Retry, "it is quiet");
    assert_eq!(kind(store.watch("a", Revision(0)).await), ErrorKind::Retry);
    assert_eq!(kind(store.compare_and_swap("a", Revision(0), put("1", LeaseId(0))).await), ErrorKind::Retry);
    handle.sleep(QUIET).await;

    swaps(&*store).await;

    // Leases, and what goes with them.
    let lease = store.grant(300).await.unwrap();
    assert_eq!(lease.ttl_ms, 300);
    assert_eq!(store.grant(1).await.unwrap().ttl_ms, 100);
    assert_eq!(store.grant(u32::MAX).await.unwrap().ttl_ms, 2_000);
    assert_eq!(kind(store.keep_alive(LeaseId(lease.id.0 ^ 1 << 40)).await), ErrorKind::NotFound);
    let bound = yes(&*store, "live/a", Revision(0), put("a", lease.id)).await;
    yes(&*store, "live/b", Revision(0), put("b", LeaseId(0))).await;
    for _ in 0..4 {
        handle.sleep(200 * MS).await;
        assert_eq!(store.keep_alive(lease.id).await.unwrap(), lease);
    }
    let seen = store.watch("live/", Revision(0)).await.unwrap();
    assert_eq!(seen.entries.iter().map(|entry| &entry.key[..]).collect::<Vec<_>>(), ["live/a", "live/b"]);
    assert_eq!((seen.entries[0].revision, seen.entries[0].lease), (bound, lease.id));
    let begun = handle.now();
    let next = store.watch("live/", seen.revision).await.unwrap();
    let waited = handle.now().since(begun);
    assert!((290 * MS..400 * MS).contains(&waited), "the lease ended after {waited:?}");
    assert_eq!((next.entries.len(), &next.entries[0].key[..]), (1, "live/b"));
    assert_eq!(kind(store.keep_alive(lease.id).await), ErrorKind::NotFound);
    let late = store.compare_and_swap("live/a", Revision(0), put("a", lease.id)).await;
    assert_eq!(kind(late), ErrorKind::NotFound);

    // A watch sleeps until something happens, or for a while.
    let begun = handle.now();
    let same = store.watch("live/", next.revision).await.unwrap();
    assert_eq!((same.entries, handle.now().since(begun) >= Duration::from_secs(1)), (next.entries, true));
    let (watching, from) = (store.clone(), same.revision);
    let watch = handle.spawn(Class::Io, "watch", async move { watching.watch("live/", from).await.unwrap() });
    handle.sleep(100 * MS).await;
    yes(&*store, "other", Revision(0), put("", LeaseId(0))).await;
    handle.sleep(100 * MS).await;
    assert!(!watch.is_finished(), "nothing has changed there");
    yes(&*store, "live/c", Revision(0), put("c", LeaseId(0))).await;
    assert_eq!(watch.await.entries.len(), 2);
}

#[test]
fn the_store_itself_conforms() {
    for seed in 0..3 {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let store = Leases::new(&handle, Options::default());
        world.block_on(&handle, conforms(handle.clone(), store));
    }
}

#[test]
fn a_store_behind_a_stream_conforms() {
    for seed in 0..20 {
        let world = World::new(seed);
        let mut prng = Prng::new(seed);
        let nodes = [0, 1].map(|_| world.add_node(NodeOptions::default()));
        let [near, far] = nodes.map(|node| world.start_loop(node));
        world.set_network(NetworkOptions { delay: prng.below(5) as u32 * MS, ..NetworkOptions::default() });
        let any = Address::Tcp((world.address(nodes[1]), 0).into());
        let store: Rc<dyn LeaseStore> = Leases::new(&far, Options::default());
        let services = Services { lease: Some(store), ..Services::default() };
        let end = FarEnd::new(&far, services, stream::Options::new("leases"));
        let inside = far.clone();
        let listener = world.block_on(&far, async move { inside.listen(&any).await.unwrap() });
        let address = listener.address().clone();
        end.serve(listener);
        let asks = NearEnd::dial(&near, address, Services::default(), stream::Options::new("a manager"));
        world.block_on(&near, conforms(near.clone(), Rc::new(asks)));
    }
}

/// Many who grab one key: one has it at a time, for as long as its lease lives.
#[test]
fn one_at_a_time_has_a_key() {
    for seed in 0..50 {
        runtime::sim::run(seed, |handle| async move {
            let store = Leases::new(&handle, Options::default());
            handle.sleep(QUIET).await;
            let holder: Rc<Cell<Option<u64>>> = Rc::default();
            let turns: Rc<Cell<u64>> = Rc::default();
            let grabs = (0..5).map(|who| {
                let (handle, store, holder, turns) = (handle.clone(), store.clone(), holder.clone(), turns.clone());
                let inside = handle.clone();
                inside.spawn(Class::Io, "grab", async move {
                    let mut prng = Prng::new(seed * 8 + who);
                    for _ in 0..60 {
                        let lease = store.grant(200).await.unwrap();
                        if let Swapped::Yes(_) =
                            store.compare_and_swap("k", Revision(0), put("", lease.id)).await.unwrap()
                        {
                            assert_eq!(holder.replace(Some(who)), None, "seed {seed}");
                            for _ in 0..prng.below(4) {
                                handle.sleep(prng.below(150) as u32 * MS).await;
                                store.keep_alive(lease.id).await.unwrap();
                            }
                            turns.set(turns.get() + 1);
                            holder.set(None);
                            // It is let go, not deleted.
                        }
                        handle.sleep(prng.below(100) as u32 * MS).await;
                    }
                })
            });
            for grab in grabs.collect::<Vec<_>>() {
                grab.await;
            }
            assert!(turns.get() > 5, "seed {seed}: {}", turns.get());
        });
    }
}

#[test]
fn everything_is_bounded() {
    runtime::sim::run(1, |handle| async move {
        let store = Leases::new(&handle, Options::default());
        handle.sleep(QUIET).await;
        for index in 0..LEASES_MAX {
            let lease = store.grant(2_000).await.unwrap();
            let key = format!("{index:063}");
            let write = Write::Put { value: vec![7; 127], lease: lease.id };
            assert!(matches!(store.compare_and_swap(&key, Revision(0), write).await.unwrap(), Swapped::Yes(_)));
        }
        assert_eq!(kind(store.grant(2_000).await), ErrorKind::Full);
        assert_eq!(kind(store.compare_and_swap("x", Revision(0), put("", LeaseId(0))).await), ErrorKind::Full);
        let all = store.watch("0", Revision(0)).await.unwrap();
        assert_eq!(all.entries.len(), LEASES_MAX);
        let watches: Vec<_> = (0..WATCHES_MAX + 1)
            .map(|_| {
                let store = store.clone();
                handle.spawn(Class::Io, "watch", async move { store.watch("1", all.revision).await.is_ok() })
            })
            .collect();
        let mut refused = 0;
        for watch in watches {
            refused += usize::from(!watch.await);
        }
        assert_eq!((refused, store.watching.get()), (1, 0));
        handle.sleep(QUIET).await;
        assert_eq!(store.watch("0", Revision(0)).await.unwrap().entries, []);
    });
}
