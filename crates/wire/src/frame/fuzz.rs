//! A fuzz target of frames: messages with edits, their checksums made right again.

use base::{ErrorKind, Prng};

use super::tests::{bytes_of, messages, read, reseal};
use super::*;

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

/// Fields of a header that depend on what else is in the frame than the message.
fn masked(bytes: &[u8], header: &Header) -> (Vec<u8>, Vec<u8>) {
    let mut head = bytes[..HEADER_LEN].to_vec();
    // Its checksum, the length of the extensions, and the checksum that covers them.
    [4..8, 100..104, 112..116].into_iter().for_each(|range: std::ops::Range<usize>| head[range].fill(0));
    (head, bytes[HEADER_LEN + header.extensions_len as usize..].to_vec())
}

#[test]
fn a_frame_is_refused_or_means_what_it_says() {
    let samples = messages();
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Input| {
        assert!(read(noise).is_err(), "noise has no checksum");
        let mut prng = Prng::new(*seed);
        let mut bytes = bytes_of(&prng.pick(&samples).encode(VERSION));
        if prng.one_in(4) {
            bytes.truncate(prng.between(HEADER_LEN as u64, bytes.len() as u64) as usize);
        }
        if prng.one_in(4) {
            bytes.extend(noise);
        }
        // One edit or many: a single changed field is what a decoder is most likely to swallow.
        let count = if prng.one_in(2) { 1 } else { edits.len() };
        let len = bytes.len();
        edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % len] ^= value);
        reseal(&mut bytes);
        match read(&bytes) {
            Ok((header, message)) => {
                accepted += 1;
                let again = bytes_of(&message.encode(header.version));
                let (again_header, again_message) = read(&again).expect("what was read is written and read again");
                match message {
                    // A later version may say more, which this one passes over.
                    Message::Hello(hello) => {
                        assert!(matches!(again_message, Message::Hello(again) if again == hello));
                    }
                    _ => assert_eq!(masked(&again, &again_header), masked(&bytes, &header), "{message:?}"),
                }
            }
            Err(error) => assert!(matches!(error.kind, ErrorKind::Invalid | ErrorKind::Corrupt), "{error}"),
        }
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}
