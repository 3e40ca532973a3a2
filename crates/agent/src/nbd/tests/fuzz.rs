//! Fuzz targets of everything that a client sends: the parsers by themselves, and whole connections.

use base::Prng;
use base::units::is_aligned;

use super::client::{Client, meta_context, option_bytes, request_bytes};
use super::*;
use crate::nbd::handshake::{ClientOption, HandshakeParser, OPTIONS_MAX};
use crate::nbd::protocol::*;
use crate::nbd::request::{Command, Export, Header, Plan, plan_request};

/// A seed of something valid, edits of it, and noise.
type Bytes = (u64, Vec<(u16, u8)>, Vec<u8>);

/// What a client may say in a handshake: options that are well formed, more or less.
fn handshake(prng: &mut Prng) -> Vec<u8> {
    let mut bytes = (prng.below(4) as u32).to_be_bytes().to_vec();
    for _ in 0..prng.below(6) {
        let info = [&4u32.to_be_bytes()[..], b"disk", &1u16.to_be_bytes(), &info::BLOCK_SIZE.to_be_bytes()].concat();
        let (option, data) = match prng.below(7) {
            0 => (option::LIST, Vec::new()),
            1 => (option::STRUCTURED_REPLY, Vec::new()),
            2 => (option::GO, info),
            3 => (option::INFO, info),
            4 => (option::SET_META_CONTEXT, meta_context("disk", &[CONTEXT_NAME])),
            5 => (prng.below(12) as u32, vec![0; prng.below(20_000) as usize]),
            _ => (option::EXPORT_NAME, b"disk".to_vec()),
        };
        bytes.extend(option_bytes(option, &data));
    }
    bytes
}

fn edited(mut bytes: Vec<u8>, edits: &[(u16, u8)], count: usize) -> Vec<u8> {
    let len = bytes.len();
    edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % len] ^= value);
    bytes
}

/// The options in `bytes`, which arrive in pieces of at most `piece` bytes; and whether the connection was ended.
fn options(bytes: &[u8], piece: usize) -> (Vec<ClientOption>, bool) {
    let mut parser = HandshakeParser::new();
    let (mut start, mut end, mut found) = (0, 0, Vec::new());
    loop {
        match parser.parse(&bytes[start..end]) {
            Err(_) => return (found, true),
            Ok((taken, option)) => {
                assert!(taken <= end - start);
                found.extend(option.clone());
                if taken == 0 && option.is_none() {
                    if end == bytes.len() {
                        return (found, false);
                    }
                    end = bytes.len().min(end + piece);
                }
                start += taken;
            }
        }
    }
}

#[test]
fn a_handshake_means_the_same_however_it_is_cut() {
    let mut seen = 0;
    bolero::check!().with_iterations(1500).with_type().for_each(|(seed, edits, noise): &Bytes| {
        let mut prng = Prng::new(*seed);
        let bytes = handshake(&mut prng);
        let count = prng.below(4) as usize;
        for bytes in [edited(bytes, edits, count), noise.clone()] {
            let whole = options(&bytes, usize::MAX - bytes.len());
            assert!(whole.0.len() <= OPTIONS_MAX as usize + 1);
            assert_eq!(options(&bytes, prng.between(1, 100) as usize), whole);
            seen += whole.0.len();
        }
    });
    assert!(seen > 0, "no option was ever read: the target tests nothing");
}

#[test]
fn a_request_that_runs_is_within_its_export() {
    let mut runs = 0;
    type Input = (u16, u16, u64, u32, u8, u8);
    bolero::check!().with_iterations(20_000).with_type().for_each(|(kind, flags, offset, len, how, wild): &Input| {
        let export =
            Export { size: 1 << 30, read_only: how & 1 != 0, structured: how & 2 != 0, block_status: how & 4 != 0 };
        // Mostly sectors within reach, and known commands and flags.
        let (kind, flags) = if wild & 1 != 0 { (*kind, *flags) } else { (kind % 9, flags & 0x1f) };
        let (offset, len) = match wild & 6 {
            0 => (*offset, *len),
            2 => ((offset % (1 << 31)) & !511, (len % (1 << 26)) & !511),
            _ => ((offset % (1 << 30)) & !511, (len % (1 << 20)) & !511),
        };
        let bytes = request_bytes(kind, flags, 7, offset, len);
        assert!((0..Header::SIZE).all(|end| Header::parse(&bytes[..end]).unwrap().is_none()));
        let header = Header::parse(&bytes).unwrap().expect("it is all there");
        assert_eq!((header.kind, header.flags, header.cookie), (kind, flags, 7));
        assert_eq!((header.offset, header.len), (offset, len));
        let Ok(Plan::Run(command)) = plan_request(&header, &export) else { return };
        runs += 1;
        assert!(is_aligned(offset, 512) && is_aligned(u64::from(len), 512));
        assert!(offset + u64::from(len) <= export.size);
        let moves_data = matches!(command, Command::Read { .. } | Command::Write | Command::Cache);
        assert!(!moves_data || len <= PAYLOAD_MAX, "{command:?}");
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes { .. });
        assert!(!changes || !export.read_only, "{command:?}");
    });
    assert!(runs > 0, "no request ever ran: the target tests nothing");
}

/// A whole connection: whatever it sends, it ends, leaves nothing behind, and a bystander does not notice.
#[test]
fn a_connection_harms_nobody_whatever_it_sends() {
    bolero::check!().with_iterations(150).with_type().for_each(|(seed, edits, noise): &Bytes| {
        let mut prng = Prng::new(*seed);
        let mut bytes = handshake(&mut prng);
        if prng.one_in(2) {
            // Then it is in transmission: requests.
            bytes = [&3u32.to_be_bytes()[..], &option_bytes(option::EXPORT_NAME, b"disk")].concat();
            for _ in 0..prng.below(8) {
                let len = prng.below(64) as u32 * 512;
                let kind = prng.below(9) as u16;
                bytes.extend(request_bytes(kind, prng.below(4) as u16, 1, prng.below(1000) * 512, len));
                bytes.resize(bytes.len() + if kind == command::WRITE { len as usize } else { 0 }, 7);
            }
        }
        bytes.extend(noise);
        let count = prng.below(4) as usize;
        let bytes = edited(bytes, edits, count);
        let fixture = Fixture::new(*seed);
        let (handle, address) = (fixture.client.clone(), fixture.address.clone());
        fixture.world.block_on(&fixture.client, async move {
            let mut bystander = Client::attach(&handle, &address, "disk").await.unwrap();
            bystander.write(1 << 32, &[0x55; 512]).await.unwrap();
            let mut client = Client::connect_silently(&handle, &address).await.unwrap();
            // It may be cut off before it has said everything.
            let _ = client.send(&bytes).await;
            drop(client);
            assert_eq!(bystander.read(1 << 32, 512).await.unwrap().content, [0x55; 512]);
        });
        fixture.settle();
        let statistics = fixture.agent.statistics();
        assert_eq!((statistics.connections_open, statistics.payload_bytes), (0, 0), "nothing is left behind");
    });
}
