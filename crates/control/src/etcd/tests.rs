//! One suite over an etcd that speaks its gateway's language in the simulated world, and over a real one where there is one.

mod fake;

use base::ErrorKind;
use runtime::sim::{NodeOptions, World};

use self::fake::Fake;
use super::*;
use crate::lease::tests::{kind, put, swaps, yes};

const MS: Duration = Duration::from_millis(1);

/// What is asked of any etcd, under a prefix that nobody has used.
async fn conforms(handle: Handle, store: Rc<Etcd>) {
    swaps(&*store).await;

    // Leases, and what goes with them.
    let lease = store.grant(600).await.unwrap();
    let ttl = Duration::from_millis(lease.ttl_ms.into());
    assert!((1..=5).contains(&ttl.as_secs()), "{ttl:?}");
    assert_eq!(kind(store.keep_alive(LeaseId(lease.id.0 ^ 1 << 40)).await), ErrorKind::NotFound);
    let bound = yes(&*store, "live/a", Revision(0), put("a", lease.id)).await;
    yes(&*store, "live/b", Revision(0), put("b", LeaseId(0))).await;
    yes(&*store, "lively", Revision(0), put("c", LeaseId(0))).await;
    for _ in 0..3 {
        handle.sleep(ttl / 2).await;
        assert_eq!(store.keep_alive(lease.id).await.unwrap(), lease);
    }
    let seen = store.watch("live/", Revision(0)).await.unwrap();
    assert_eq!(seen.entries.iter().map(|entry| &entry.key[..]).collect::<Vec<_>>(), ["live/a", "live/b"]);
    assert_eq!((seen.entries[0].revision, seen.entries[0].lease), (bound, lease.id));
    // The lease ends, and a watch hears of it: the first one, or the one after it.
    let begun = handle.now();
    let mut next = store.watch("live/", seen.revision).await.unwrap();
    while next.entries.len() == 2 && handle.now().since(begun) < 2 * ttl {
        next = store.watch("live/", next.revision).await.unwrap();
    }
    let waited = handle.now().since(begun);
    assert!((ttl / 2..2 * ttl + Duration::from_secs(1)).contains(&waited), "the lease ended after {waited:?}");
    assert_eq!((next.entries.len(), &next.entries[0].key[..]), (1, "live/b"));
    assert_eq!(kind(store.keep_alive(lease.id).await), ErrorKind::NotFound);
    let late = store.compare_and_swap("live/a", Revision(0), put("a", lease.id)).await;
    assert_eq!(kind(late), ErrorKind::NotFound);

    // A watch sleeps until something happens, and misses nothing that has happened before it began.
    let (watching, from) = (store.clone(), next.revision);
    let watch = handle.spawn(runtime::Class::Io, "watch", async move { watching.watch("live/", from).await.unwrap() });
    handle.sleep(100 * MS).await;
    yes(&*store, "other", Revision(0), put("", LeaseId(0))).await;
    handle.sleep(100 * MS).await;
    assert!(!watch.is_finished(), "nothing has changed there");
    yes(&*store, "live/c", Revision(0), put("c", LeaseId(0))).await;
    assert_eq!(watch.await.entries.len(), 2);
    let begun = handle.now();
    assert_eq!(store.watch("live/", next.revision).await.unwrap().entries.len(), 2);
    assert!(handle.now().since(begun) < Duration::from_secs(2));
}

fn at(endpoints: Vec<Address>) -> Place {
    Place { endpoints, prefix: "test".into(), tls: None, user: None }
}

/// Tokens end, and who has a password gets another one; a write that was refused for its token was not done.
#[test]
fn who_has_a_password_is_let_in_again_when_a_token_ends() {
    let world = World::new(4);
    let nodes = [0, 1].map(|_| world.add_node(NodeOptions::default()));
    let [near, far] = nodes.map(|node| world.start_loop(node));
    let fake = Fake::default();
    fake.wants_password("geheim");
    let endpoint = fake.start(&world, nodes[1], &far);
    let password = |text: &'static str| {
        let inside = near.clone();
        world.block_on(&near, async move {
            let options = runtime::OpenOptions { write: true, create: true, ..Default::default() };
            let file = inside.open("/disk/password".as_ref(), options).await.unwrap();
            file.set_len(0).await.unwrap();
            file.write_at(0, base::Bytes::from_static(text.as_bytes())).await.unwrap();
        });
    };
    let ask = |user: Option<&str>| {
        let user = user.map(|name| User { name: name.into(), password: "/disk/password".into() });
        let store = Etcd::new(&near, Place { user, ..at(vec![endpoint.clone()]) });
        (store.clone(), world.block_on(&near, async move { store.grant(600).await }))
    };
    let nobody = ask(None).1.unwrap_err();
    assert!(nobody.message.contains("name a user with ?user=NAME&password=FILE"), "{nobody}");
    let missing = ask(Some("levee")).1.unwrap_err();
    assert!(missing.message.contains("/disk/password"), "{missing}");
    password("falsch\n");
    let wrong = ask(Some("levee")).1.unwrap_err();
    assert!(wrong.message.contains("authentication failed"), "{wrong}");
    password("geheim\n");
    let (store, granted) = ask(Some("levee"));
    granted.unwrap();
    for round in 0..3_u64 {
        let store = store.clone();
        world.block_on(&near, async move {
            yes(&*store, &format!("key-{round}"), Revision(0), put("x", LeaseId(0))).await;
            assert_eq!(store.watch("key-", Revision(0)).await.unwrap().entries.len() as u64, round + 1);
        });
        fake.end_tokens();
    }
}

#[test]
fn an_etcd_in_the_simulated_world_conforms() {
    let world = World::new(3);
    let nodes = [0, 1].map(|_| world.add_node(NodeOptions::default()));
    let [near, far] = nodes.map(|node| world.start_loop(node));
    let fake = Fake::default();
    let endpoint = fake.start(&world, nodes[1], &far);
    let store = Etcd::new(&near, at(vec![endpoint]));
    world.block_on(&near, conforms(near.clone(), store));
}

#[test]
fn a_real_etcd_conforms() {
    let Ok(named) = std::env::var("LEVEE_TEST_ETCD") else {
        eprintln!("skipped: LEVEE_TEST_ETCD names no etcd (make test-cluster starts one)");
        return;
    };
    let mut place = Place::parse(&named).unwrap();
    place.prefix = format!("conformance-{}", std::process::id());
    let run = runtime::uring::run(runtime::uring::Options::default(), |handle| async move {
        conforms(handle.clone(), Etcd::new(&handle, place)).await;
    });
    run.unwrap();
}

/// Three members, of which one after the other is away: silent, or not there.
#[test]
fn a_member_that_does_not_answer_is_passed_over() {
    let world = World::new(5);
    let nodes = [0, 1, 2, 3].map(|_| world.add_node(NodeOptions::default()));
    let near = world.start_loop(nodes[0]);
    let fake = Fake::default();
    let endpoints: Vec<_> =
        (1..4).map(|member| fake.start(&world, nodes[member], &world.start_loop(nodes[member]))).collect();
    let store = Etcd::new(&near, at(endpoints));
    let ask = |write: bool| {
        let store = store.clone();
        world.block_on(&near, async move {
            if write {
                // A write may have no answer; what came of it is seen.
                let _ = store.compare_and_swap("a", Revision(0), put("1", LeaseId(0))).await;
            }
            store.watch("a", Revision(0)).await.unwrap().entries.len()
        })
    };
    assert_eq!(ask(true), 1);
    for away in 1..4 {
        world.partition(nodes[0], nodes[away]);
        assert_eq!(ask(false), 1);
        world.heal(nodes[0], nodes[away]);
    }
    world.kill(nodes[1]);
    world.kill(nodes[2]);
    assert_eq!(ask(true), 1);
    world.kill(nodes[3]);
    let refused = world.block_on(&near, async move { store.grant(600).await });
    assert!(
        matches!(&refused, Err(error) if error.kind == ErrorKind::Io && error.message.contains("etcd at")),
        "{refused:?}"
    );
}

#[test]
fn what_an_etcd_refuses_or_nobody_can_read_is_an_error_that_says_so() {
    let endpoint = Address::Tcp("127.0.0.1:2379".parse().unwrap());
    let said = |is_good, text: &str| {
        let value = serde_json::from_str(text).unwrap();
        refused(Answer { is_good, value }, &endpoint).unwrap_err().error
    };
    let gone = said(false, r#"{"error":"etcdserver: requested lease not found","message":"x","code":5}"#);
    assert_eq!(gone.kind, ErrorKind::NotFound);
    let leaderless = said(false, r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#);
    assert!(leaderless.kind == ErrorKind::Io && leaderless.message.contains("no leader"), "{leaderless}");
    let streamed = said(true, r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#);
    assert!(streamed.message.contains("no leader"), "{streamed}");
    assert!(odd(&json!({"nonsense": true})).message.contains("3.4"));
    assert_eq!(lease_of(&json!({"ID": "-7", "TTL": "2"})).unwrap().id, LeaseId(u64::MAX - 6), "an id has a sign there");
}

#[test]
fn an_etcd_is_named_by_its_endpoints_and_a_prefix() {
    let place = Place::parse("etcd:10.0.0.1:2379,10.0.0.2:2379").unwrap();
    assert_eq!((place.endpoints.len(), place.prefix.as_str()), (2, "levee"));
    assert_eq!(Place::parse("etcd:[::1]:2379/two").unwrap().prefix, "two");
    for wrong in
        ["10.0.0.1:2379", "etcd:", "etcd:host", "etcd:10.0.0.1:2379,", "etcd:10.0.0.1:1/", "etcd:10.0.0.1:1/a/b"]
    {
        assert!(Place::parse(wrong).unwrap_err().contains("write etcd:"), "{wrong}");
    }
}
