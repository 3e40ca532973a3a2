//! A fuzz target of connections: two ends that talk, with edits of what one of them hears.

use base::{ErrorKind, Prng, ReadPart, VolumeId};

use super::tests::{append, assign, bytes_of, done, feed, greeted, left, read, read_file, release, write};
use super::*;
use crate::VolumeDescriptor;

/// A seed of what is said, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

/// Some requests within the credit, and the replies to some of them.
fn talk(prng: &mut Prng, near: &mut Connection, far: &mut Connection) -> (Vec<u8>, Vec<u8>) {
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..prng.between(1, 6) {
        let request = match prng.below(7) {
            0 => read(prng.between(1, 8) * 512),
            1 => write(prng.between(1, 8) as usize * 512),
            2 => append(prng.between(1, 8) as usize * 4096),
            3 => read_file(prng.between(1, 3) * 4096),
            4 => assign(prng.below(40_000) as usize),
            5 => release(prng.below(15_000) as u32),
            _ => Request::Resolve { name: "disk".into() },
        };
        if !near.may_ask(request.bytes()) {
            break;
        }
        let (_, frame) = near.ask(Instant::ZERO, request, Marks::default());
        let bytes = bytes_of(&frame);
        asked.extend_from_slice(&bytes);
        for event in feed(far, &bytes, usize::MAX).expect("what one end says the other understands") {
            let Event::Request { sequence, request, .. } = event else { panic!("{event:?}") };
            if prng.one_in(4) {
                continue;
            }
            let value = match request {
                Request::Read { len, .. } | Request::ReadFile { len, .. } => {
                    Value::Parts(vec![ReadPart::Data(vec![3; len as usize].into())])
                }
                Request::ReleaseSegment { most, .. } => left(prng.below(u64::from(most) + 1) as usize),
                Request::Assign { .. } => Value::Outcomes(vec![Ok(())]),
                Request::Resolve { name } => Value::Volume(Box::new(VolumeDescriptor::new(VolumeId(1), name, 1 << 30))),
                _ => Value::Done,
            };
            answered.extend_from_slice(&bytes_of(&far.answer(Instant::ZERO, sequence, done(value))));
        }
    }
    (asked, answered)
}

#[test]
fn an_end_hears_the_same_however_it_is_cut_or_gives_up() {
    let (mut whole, mut given_up) = (0, 0);
    bolero::check!().with_iterations(3_000).with_type().for_each(|(seed, edits, noise): &Input| {
        let mut prng = Prng::new(*seed);
        let [mut near, mut far] = greeted();
        let (_, mut bytes) = talk(&mut prng, &mut near, &mut far);
        // The same talk again, in which nothing goes wrong.
        let [mut twin, mut other] = greeted();
        let (_, said) = talk(&mut Prng::new(*seed), &mut twin, &mut other);
        let said: Vec<String> = shown(&feed(&mut twin, &said, usize::MAX).expect("nothing is wrong with it"));

        let at = prng.below(bytes.len() as u64 + 1) as usize;
        let len = noise.len().min(if prng.one_in(4) { 64 } else { 0 });
        bytes.splice(at..at, noise[..len].iter().copied());
        if let Some(len) = std::num::NonZero::new(bytes.len()) {
            let count = prng.below(4) as usize;
            edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % len] ^= value);
        }
        let piece = prng.between(1, 5000) as usize;
        let mut heard = Vec::new();
        let mut there = Bytes::new();
        for next in bytes.chunks(piece) {
            there = [&there[..], next].concat().into();
            match near.receive(&mut there) {
                Ok(Some(event)) => heard.push(event),
                Ok(None) => {}
                Err(error) => {
                    given_up += 1;
                    assert!(matches!(error.kind, ErrorKind::Invalid | ErrorKind::Corrupt), "{error}");
                    break;
                }
            }
            near.check_invariants();
        }
        whole += heard.len();
        assert!(said.starts_with(&shown(&heard)), "what is heard was said, in this order");
    });
    assert!(whole > 0 && given_up > 0, "{whole} events, {given_up} given up: the target tests nothing");
}

fn shown(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| format!("{event:?}")).collect()
}
