//! What is agreed on before the first request.

use base::MIB;
use bytes::Buf;

use super::client::{info_request, meta_context, option_bytes};
use super::*;
use crate::nbd::protocol::*;

#[test]
fn exports_are_listed_described_and_taken_by_name() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.store.add_volume("other", MIB);
        fixture.run(|handle, address| async move {
            let mut client = Client::connect(&handle, &address).await.unwrap();
            let names: Vec<_> = client.option(option::LIST, b"").await.unwrap();
            let expected = [
                (option_reply::SERVER, b"\0\0\0\x04disk".to_vec()),
                (option_reply::SERVER, b"\0\0\0\x05other".to_vec()),
                (option_reply::ACK, vec![]),
            ];
            assert_eq!(names, expected);

            let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
            let items = client.option(option::INFO, &info_request("other", &wanted)).await.unwrap();
            let of = |item: u16| {
                let found = items.iter().find(|(_, data)| data.starts_with(&item.to_be_bytes()));
                found.map(|(_, data)| data[2..].to_vec()).unwrap()
            };
            assert_eq!(&of(info::EXPORT)[..8], MIB.to_be_bytes());
            assert_eq!(of(info::NAME), b"other");
            assert_eq!(of(info::DESCRIPTION), b"Levee volume other, 1 MiB");
            assert_eq!(of(info::BLOCK_SIZE), [512u32, 4096, 32 << 20].map(u32::to_be_bytes).concat());
            assert_eq!(items.last().unwrap(), &(option_reply::ACK, vec![]));

            let (size, flags) = client.go("disk").await.unwrap().unwrap();
            assert_eq!((size, flags & export_flag::SEND_DF), (8 * GIB, 0));
            assert_eq!(client.read(0, 512).await.unwrap().content, [0; 512]);
        });
    }
}

#[test]
fn a_long_list_arrives_whole() {
    let fixture = Fixture::new(8);
    (0..3000).for_each(|n| fixture.store.add_volume(&format!("volume-{n:04}"), MIB));
    fixture.run(|handle, address| async move {
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(Client::connect(&handle, &address).await.unwrap());
        }
        for client in &mut clients {
            client.send(&option_bytes(option::LIST, b"")).await.unwrap();
        }
        for mut client in clients {
            let names = client.option_replies(option::LIST).await.unwrap();
            assert_eq!(names.len(), 3002);
            assert_eq!(names[3000].1[4..], *b"volume-2999");
        }
    });
}

#[test]
fn the_empty_name_is_the_only_volume() {
    let fixture = Fixture::new(1);
    let go = |export: &'static str| {
        fixture.run(|handle, address| async move {
            let mut client = Client::connect(&handle, &address).await.unwrap();
            client.go(export).await.unwrap()
        })
    };
    assert_eq!(go("").unwrap().0, 8 * GIB);
    assert_eq!(go("nothing").unwrap_err(), (option_reply::ERR_UNKNOWN, "there is no volume 'nothing'".into()));
    fixture.store.add_volume("second", MIB);
    let (reply, text) = go("").unwrap_err();
    assert!(reply == option_reply::ERR_UNKNOWN && text.contains("'disk'") && text.contains('1'), "{text}");
    fixture.store.volumes.borrow_mut().clear();
    let (reply, text) = go("").unwrap_err();
    assert!(reply == option_reply::ERR_UNKNOWN && text.contains("volume create"), "{text}");
}

#[test]
fn the_old_way_of_taking_an_export() {
    let fixture = Fixture::new(2);
    fixture.run(|handle, address| async move {
        // With and without the 124 zeros.
        for (flags, zeros) in [(1u32, 124), (3, 0), (0, 124), (2, 0)] {
            let mut client = Client::connect_silently(&handle, &address).await.unwrap();
            client.take(18).await.unwrap();
            client.send(&flags.to_be_bytes()).await.unwrap();
            client.send(&option_bytes(option::EXPORT_NAME, b"disk")).await.unwrap();
            assert_eq!((&client.take(8).await.unwrap()[..]).get_u64(), 8 * GIB);
            assert_ne!((&client.take(2).await.unwrap()[..]).get_u16() & export_flag::HAS_FLAGS, 0);
            assert_eq!(client.take(zeros).await.unwrap(), vec![0; zeros]);
            assert_eq!(client.write(512, &[7; 512]).await.unwrap().errno, 0);
            assert_eq!(client.read(512, 512).await.unwrap().content, [7; 512]);
        }
        let mut client = Client::connect(&handle, &address).await.unwrap();
        client.send(&option_bytes(option::EXPORT_NAME, b"nothing")).await.unwrap();
        assert!(client.is_ended().await, "there is no other way to refuse");
    });
}

#[test]
fn a_client_may_send_requests_with_the_option_that_takes_the_export() {
    let fixture = Fixture::new(3);
    fixture.run(|handle, address| async move {
        let mut client = Client::connect(&handle, &address).await.unwrap();
        let read = client::request_bytes(command::READ, 0, 9, 0, 512);
        client.send(&[option_bytes(option::EXPORT_NAME, b"disk"), read].concat()).await.unwrap();
        client.take(10).await.unwrap();
        let mut reply = &client.take(16).await.unwrap()[..];
        assert_eq!((reply.get_u32(), reply.get_u32(), reply.get_u64()), (SIMPLE_REPLY_MAGIC, 0, 9));
        assert_eq!(client.take(512).await.unwrap(), [0; 512]);
    });
}

#[test]
fn options_that_are_refused_leave_the_handshake_going() {
    let fixture = Fixture::new(4);
    fixture.run(|handle, address| async move {
        let mut client = Client::connect(&handle, &address).await.unwrap();
        let table = [
            (option::STARTTLS, vec![], option_reply::ERR_POLICY),
            (option::EXTENDED_HEADERS, vec![], option_reply::ERR_UNSUP),
            (4711, vec![1; 20_000], option_reply::ERR_UNSUP),
            (option::LIST, vec![1], option_reply::ERR_INVALID),
            (option::INFO, info_request("nothing", &[]), option_reply::ERR_UNKNOWN),
            (option::GO, info_request("nothing", &[]), option_reply::ERR_UNKNOWN),
            (option::GO, vec![1, 2, 3], option_reply::ERR_INVALID),
            (option::SET_META_CONTEXT, meta_context("disk", &[CONTEXT_NAME]), option_reply::ERR_INVALID),
            (option::LIST_META_CONTEXT, meta_context("disk", &[]), option_reply::ERR_INVALID),
        ];
        for (option, data, expected) in table {
            let replies = client.option(option, &data).await.unwrap();
            assert_eq!(replies.len(), 1, "option {option}");
            assert_eq!(replies[0].0, expected, "option {option}");
            assert!(!replies[0].1.is_empty(), "option {option} is refused with a reason");
        }
        client.negotiate_structured().await.unwrap();
        let unknown = client.option(option::LIST_META_CONTEXT, &meta_context("nothing", &[])).await.unwrap();
        assert_eq!(unknown[0].0, option_reply::ERR_UNKNOWN);
        for queries in [&[][..], &["base:"], &[CONTEXT_NAME, "x-other:thing"]] {
            let replies = client.option(option::LIST_META_CONTEXT, &meta_context("disk", queries)).await.unwrap();
            let named = [&[0; 4], CONTEXT_NAME.as_bytes()].concat();
            assert_eq!(replies, [(option_reply::META_CONTEXT, named), (option_reply::ACK, vec![])], "{queries:?}");
        }
        let none = client.option(option::SET_META_CONTEXT, &meta_context("disk", &["base:"])).await.unwrap();
        assert_eq!(none, [(option_reply::ACK, vec![])]);
        client.go("disk").await.unwrap().unwrap();
        assert_eq!(client.read(0, 512).await.unwrap().content.len(), 512);
    });
}

#[test]
fn a_context_counts_for_the_export_that_it_was_selected_for() {
    let fixture = Fixture::new(5);
    fixture.store.add_volume("other", MIB);
    fixture.run(|handle, address| async move {
        for (selected_for, errno) in [("disk", 0), ("other", Errno::Inval as u32)] {
            let mut client = Client::connect(&handle, &address).await.unwrap();
            client.negotiate_structured().await.unwrap();
            client.select_allocation(selected_for).await.unwrap();
            client.go("disk").await.unwrap().unwrap();
            let status = client.ask(command::BLOCK_STATUS, 0, 0, 512, b"").await.unwrap();
            assert_eq!(status.errno, errno, "{selected_for}");
        }
        // A later selection that selects nothing replaces an earlier one.
        let mut client = Client::connect(&handle, &address).await.unwrap();
        client.negotiate_structured().await.unwrap();
        client.select_allocation("disk").await.unwrap();
        client.option(option::SET_META_CONTEXT, &meta_context("disk", &[])).await.unwrap();
        client.go("disk").await.unwrap().unwrap();
        let status = client.ask(command::BLOCK_STATUS, 0, 0, 512, b"").await.unwrap();
        assert_eq!(status.errno, Errno::Inval as u32);
    });
}

#[test]
fn an_abort_is_acknowledged() {
    let fixture = Fixture::new(6);
    fixture.run(|handle, address| async move {
        let mut client = Client::connect(&handle, &address).await.unwrap();
        assert_eq!(client.option(option::ABORT, b"data is ignored").await.unwrap(), [(option_reply::ACK, vec![])]);
        assert!(client.is_ended().await);
    });
    fixture.settle();
    assert_eq!(fixture.agent.statistics().connections_open, 0);
    assert_eq!(*fixture.store.log.borrow(), [""; 0], "no volume was attached");
}

#[test]
fn a_handshake_has_a_time_limit_and_a_connection_has_none() {
    let fixture = Fixture::new(7);
    fixture.run(|handle, address| async move {
        let mut idle = Client::attach(&handle, &address, "disk").await.unwrap();
        let start = handle.now();
        let mut slow = Client::connect(&handle, &address).await.unwrap();
        assert!(slow.is_ended().await);
        let waited = store::since(&handle, start);
        assert!(waited >= Duration::from_secs(30) && waited < Duration::from_secs(31), "{waited:?}");
        handle.sleep(Duration::from_secs(1000)).await;
        assert_eq!(idle.read(0, 512).await.unwrap().errno, 0);
    });
}
