//! Whether a peer is gone, or nobody knows: who refuses a connection, and who only does not answer.

use std::time::Duration;

use base::ErrorKind;
use runtime::sim::NodeId;
use runtime::{Address, Class, Handle, uring};
use wire::VolumeDirectory;

use super::store::Store;
use super::world::{Fixture, SILENCE, listen, options};
use crate::stream::{FarEnd, NearEnd, Options, Services};

/// Asks something: whether that was answered, and then whether the attempt to connect was refused.
async fn ask(near: &NearEnd) -> (bool, bool) {
    let answer = near.list().await;
    if let Err(error) = &answer {
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
    }
    (answer.is_ok(), near.is_refused())
}

const ANSWERED: (bool, bool) = (true, false);
const NOT_ANSWERED: (bool, bool) = (false, false);
const REFUSED: (bool, bool) = (false, true);

/// Lets the redial pause go by, and asks.
fn asked(fixture: &Fixture, near: &NearEnd) -> (bool, bool) {
    fixture.world.run_for(SILENCE);
    let near = near.clone();
    fixture.run(async move { ask(&near).await })
}

/// Starts a store on a node that was killed, at its old address.
fn start_again(fixture: &Fixture, node: NodeId) -> Handle {
    let handle = fixture.world.restart(node);
    let end = FarEnd::new(&handle, Store::new(&handle).services(), options("the store"));
    listen(&fixture.world, &handle, &end, fixture.address.clone());
    handle
}

#[test]
fn who_was_killed_refuses_and_who_cannot_be_reached_does_not() {
    for seed in 0..5 {
        let fixture = Fixture::new(seed);
        let near = fixture.dial();
        let [here, there] = fixture.nodes;
        assert!(!near.is_refused(), "nothing was tried");
        assert_eq!(asked(&fixture, &near), ANSWERED);

        // A link that carries nothing, in both directions or one: the connection is lost, and nobody says why.
        for cut in [&[(here, there), (there, here)][..], &[(here, there)], &[(there, here)]] {
            cut.iter().for_each(|(from, to)| fixture.world.cut_link(*from, *to));
            fixture.world.run_for(4 * SILENCE);
            assert!(!near.is_refused(), "a connection that was lost says nothing");
            assert_eq!(asked(&fixture, &near), NOT_ANSWERED);
            cut.iter().for_each(|(from, to)| fixture.world.mend_link(*from, *to));
            assert_eq!(asked(&fixture, &near), ANSWERED);
        }
        fixture.world.reset_connections(here, there);
        assert!(!near.is_refused());
        assert_eq!(asked(&fixture, &near), ANSWERED);

        // Its process is gone, and its machine says so, until there is another one.
        fixture.world.kill(there);
        assert!(!near.is_refused(), "nobody has tried");
        assert_eq!(asked(&fixture, &near), REFUSED);
        assert!(near.is_refused());
        // A refusal that was said once is no answer to a later attempt.
        fixture.world.partition(here, there);
        assert_eq!(asked(&fixture, &near), NOT_ANSWERED);
        fixture.world.heal(here, there);
        assert_eq!(asked(&fixture, &near), REFUSED);
        let handle = start_again(&fixture, there);
        assert_eq!(asked(&fixture, &near), ANSWERED);

        // A machine without power says nothing.
        drop(handle);
        fixture.world.power_loss(there);
        assert_eq!(asked(&fixture, &near), NOT_ANSWERED);
        let _handle = start_again(&fixture, there);
        assert_eq!(asked(&fixture, &near), ANSWERED);
    }
}

#[test]
fn who_answers_and_is_no_such_peer_has_refused_nothing() {
    let fixture = Fixture::new(7);
    let elsewhere = Address::Tcp(([10, 9, 9, 9], 80).into());
    let stranger = NearEnd::dial(&fixture.near, elsewhere, Services::default(), options("an agent"));
    assert_eq!(asked(&fixture, &stranger), NOT_ANSWERED);
    // One who has as many connections as it takes.
    let others: Vec<NearEnd> = (0..4).map(|_| fixture.dial()).collect();
    others.iter().for_each(|near| assert_eq!(asked(&fixture, near), ANSWERED));
    let near = fixture.dial();
    assert_eq!(asked(&fixture, &near), NOT_ANSWERED);
    drop(others);
    assert_eq!(asked(&fixture, &near), ANSWERED);
}

#[test]
fn a_unix_socket_that_nobody_listens_on_refuses_whether_or_not_it_is_there() {
    let fixture = Fixture::new(8);
    let address = Address::Unix("/disk/levee.sock".into());
    let near = NearEnd::dial(&fixture.far, address.clone(), Services::default(), options("an agent"));
    let ask_there = || {
        fixture.world.run_for(SILENCE);
        let near = near.clone();
        fixture.world.block_on(&fixture.far, async move { ask(&near).await })
    };
    assert_eq!(ask_there(), REFUSED, "it was never there");
    listen(&fixture.world, &fixture.far, &fixture.end, address.clone());
    assert_eq!(ask_there(), ANSWERED);
    let end = fixture.end.clone();
    fixture.world.block_on(&fixture.far, async move { end.stop().await });
    assert_eq!(ask_there(), REFUSED, "it is gone");

    // A process that was killed leaves its socket behind.
    let fixture = Fixture::new(9);
    listen(&fixture.world, &fixture.far, &fixture.end, address.clone());
    let handle = fixture.world.restart(fixture.nodes[1]);
    let near = NearEnd::dial(&handle, address, Services::default(), options("an agent"));
    assert_eq!(fixture.world.block_on(&handle, async move { ask(&near).await }), REFUSED);
}

#[test]
fn the_kernel_says_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("levee.sock");
    let stale = directory.path().join("stale.sock");
    // The file stays when its listener goes.
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let carry = async move |handle: Handle| {
        for address in [Address::Tcp(([127, 0, 0, 1], 0).into()), Address::Unix(path)] {
            let end = FarEnd::new(&handle, Store::new(&handle).services(), options("the store"));
            let listener = handle.listen(&address).await.unwrap();
            let address = listener.address().clone();
            end.serve(listener);
            let near = NearEnd::dial(&handle, address, Services::default(), options("an agent"));
            assert_eq!(ask(&near).await, ANSWERED);
            end.stop().await;
            // The first one may find the end of its connection; there is none for the next.
            if ask(&near).await != REFUSED {
                assert_eq!(ask(&near).await, REFUSED);
            }
        }
        let gone = NearEnd::dial(&handle, Address::Unix(stale), Services::default(), options("an agent"));
        assert_eq!(ask(&gone).await, REFUSED);
        // One that is there and says nothing.
        let listener = handle.listen(&Address::Tcp(([127, 0, 0, 1], 0).into())).await.unwrap();
        let brief = Options { silence: Duration::from_millis(200), ..options("an agent") };
        let near = NearEnd::dial(&handle, listener.address().clone(), Services::default(), brief);
        assert_eq!(ask(&near).await, NOT_ANSWERED);
        let accepted = handle.spawn(Class::Io, "accept", async move { listener.accept().await.is_ok() });
        assert!(accepted.await);
    };
    if let Err(error) = uring::run(uring::Options::default(), carry) {
        eprintln!("there is no real world here: {error}");
    }
}
