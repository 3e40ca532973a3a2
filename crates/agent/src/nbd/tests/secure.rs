//! Clients that come under TLS, or should.

use std::path::Path;

use base::{Bytes, ErrorKind, MIB};
use link::tls::{AUTHORITY, CERTIFICATE, Credentials, KEY, Role};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use runtime::OpenOptions;

use super::client::{info_request, meta_context, option_bytes, request_bytes};
use super::*;
use crate::nbd::protocol::*;
use crate::nbd::{Demand, NbdTls};

const DIRECTORY: &str = "/disk/tls";

struct Authority(CertificateParams, KeyPair);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Authority(params, KeyPair::generate().unwrap())
    }

    /// Gives the machine of a loop what shows that it is a `role`.
    fn issue(&self, world: &World, handle: &Handle, role: Role) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![role.dns_name()]).unwrap();
        let certificate = params.signed_by(&key, &Issuer::from_params(&self.0, &self.1)).unwrap();
        let authority = self.0.self_signed(&self.1).unwrap();
        let files = [(AUTHORITY, authority.pem()), (CERTIFICATE, certificate.pem()), (KEY, key.serialize_pem())];
        let inside = handle.clone();
        world.block_on(handle, async move {
            let _ = inside.create_directory(Path::new(DIRECTORY)).await;
            for (name, content) in files {
                let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
                let file = inside.open(&Path::new(DIRECTORY).join(name), options).await.unwrap();
                file.set_len(0).await.unwrap();
                file.write_at(0, Bytes::from(content.into_bytes())).await.unwrap();
            }
        });
    }
}

fn fixture(seed: u64, demand: Demand) -> (Fixture, Authority) {
    let tls = Some(NbdTls { directory: DIRECTORY.into(), demand });
    let fixture = Fixture::with(seed, Options { tls, ..Options::default() });
    let authority = Authority::new();
    authority.issue(&fixture.world, &fixture.server, Role::Agent);
    authority.issue(&fixture.world, &fixture.client, Role::Client);
    (fixture, authority)
}

async fn credentials(handle: &Handle) -> Rc<Credentials> {
    Credentials::open(handle, Path::new(DIRECTORY)).await.unwrap()
}

#[test]
fn a_disk_is_read_and_written_under_tls_on_every_loop() {
    for seed in 0..12 {
        let (fixture, _) = fixture(seed, Demand::Remote);
        fixture.run(|handle, address| async move {
            let credentials = credentials(&handle).await;
            // One connection after the other goes to another loop.
            for connection in 0..3_u64 {
                let mut client = Client::connect(&handle, &address).await.unwrap();
                client.start_tls(&credentials, b"").await.unwrap();
                client.negotiate_structured().await.unwrap();
                client.select_allocation("disk").await.unwrap();
                client.go("disk").await.unwrap().unwrap();
                let at = connection * 4 * MIB;
                let data: Vec<u8> = (0..MIB).map(|at| (at / 4096 + connection) as u8).collect();
                for (offset, len) in [(0, 512), (4096, 4096), (65536, MIB as usize / 2)] {
                    client.write(at + offset, &data[offset as usize..offset as usize + len]).await.unwrap();
                    let found = client.read(at + offset, len as u32).await.unwrap();
                    assert!(found.content == data[offset as usize..offset as usize + len], "seed {seed}");
                }
                client.send(&request_bytes(command::DISC, 0, 0, 0, 0)).await.unwrap();
                assert!(client.is_ended().await);
            }
        });
        assert_eq!(fixture.agent.statistics().violations, 0);
    }
}

#[test]
fn where_tls_is_demanded_nothing_is_said_before_it() {
    let (fixture, _) = fixture(1, Demand::All);
    fixture.run(|handle, address| async move {
        let mut client = Client::connect(&handle, &address).await.unwrap();
        for (option, data) in [
            (option::LIST, vec![]),
            (option::STRUCTURED_REPLY, vec![]),
            (option::INFO, info_request("disk", &[])),
            (option::GO, info_request("disk", &[])),
            (option::SET_META_CONTEXT, meta_context("disk", &[CONTEXT_NAME])),
        ] {
            let replies = client.option(option, &data).await.unwrap();
            assert_eq!(replies[0].0, option_reply::ERR_TLS_REQD, "option {option}");
        }
        client.start_tls(&*credentials(&handle).await, b"").await.unwrap();
        assert_eq!(client.option(option::LIST, b"").await.unwrap().len(), 2, "then it is");
        // And once only.
        assert_eq!(client.option(option::STARTTLS, b"").await.unwrap()[0].0, option_reply::ERR_POLICY);
        let mut client = Client::connect(&handle, &address).await.unwrap();
        client.send(&option_bytes(option::EXPORT_NAME, b"disk")).await.unwrap();
        assert!(client.is_ended().await, "there is no other way to refuse");
        let mut client = Client::connect(&handle, &address).await.unwrap();
        assert_eq!(client.option(option::ABORT, b"").await.unwrap(), [(option_reply::ACK, vec![])]);
    });
}

/// What somebody in between puts behind STARTTLS must not count as said by the client (CVE-2021-3716 of nbdkit).
#[test]
fn what_came_in_the_open_is_forgotten() {
    for seed in 0..20 {
        let (fixture, _) = fixture(seed, Demand::Nobody);
        fixture.run(|handle, address| async move {
            let credentials = credentials(&handle).await;
            let mut client = Client::connect(&handle, &address).await.unwrap();
            client.negotiate_structured().await.unwrap();
            // It may arrive in the same bytes as the option, and then is no handshake; or later, and then breaks it.
            let sneaked = option_bytes(option::STRUCTURED_REPLY, b"");
            if client.start_tls(&credentials, &sneaked).await.is_err() {
                return;
            }
            client.structured = false;
            let replies = client.option(option::LIST, b"").await.unwrap();
            assert_eq!(replies.len(), 2, "seed {seed}: nothing else is answered");
            // What was agreed on in the open does not hold either.
            client.go("disk").await.unwrap().unwrap();
            client.send(&request_bytes(command::READ, 0, 5, 0, 512)).await.unwrap();
            assert_eq!(client.take(4).await.unwrap(), SIMPLE_REPLY_MAGIC.to_be_bytes(), "seed {seed}");
        });
    }
}

#[test]
fn who_is_no_client_of_this_authority_gets_nothing() {
    let (fixture, authority) = fixture(2, Demand::Remote);
    let is_refused = |fixture: &Fixture| {
        fixture.run(|handle, address| async move {
            let credentials = credentials(&handle).await;
            let mut client = Client::connect(&handle, &address).await.unwrap();
            match client.start_tls(&credentials, b"").await {
                Err(error) => error.kind == ErrorKind::Invalid,
                // In TLS 1.3 a client is done before it is believed.
                Ok(()) => {
                    let asked = client.send(&option_bytes(option::LIST, b"")).await;
                    asked.is_err() || client.is_ended().await
                }
            }
        })
    };
    assert!(!is_refused(&fixture));
    authority.issue(&fixture.world, &fixture.client, Role::Server);
    assert!(is_refused(&fixture), "a server is no client");
    Authority::new().issue(&fixture.world, &fixture.client, Role::Client);
    assert!(is_refused(&fixture), "another authority's client");
    assert_eq!(fixture.agent.statistics().violations, 1, "the other one has left by itself");
}
