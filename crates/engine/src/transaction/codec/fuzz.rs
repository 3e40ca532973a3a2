//! A fuzz target of transaction records: bodies and headers with edits, their checksum made right again.

use base::Prng;
use base::checksum::crc32c;

use super::tests::{HEADER, samples};
use super::*;

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

#[test]
fn a_record_is_refused_or_means_what_it_says() {
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Input| {
        assert!(matches!(decode(noise, HEADER.file), Ok(None)), "noise has no checksum");
        let mut prng = Prng::new(*seed);
        let record = prng.pick(&samples()).clone();
        let mut body = encode_body(&record);
        if prng.one_in(4) {
            body.truncate(prng.below(body.len() as u64 + 1) as usize);
        }
        if prng.one_in(4) {
            body.extend(noise);
        }
        let mut kind = kind_of(&record);
        if prng.one_in(4) {
            kind.number = prng.below(16) as u16;
        }
        let mut bytes = encode(&HEADER, kind, &body).to_vec();
        let used = HEADER_BYTES + body.len();
        // One edit or many: a single changed field is what a decoder is most likely to swallow.
        let count = if prng.one_in(2) { 1 } else { edits.len() };
        edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % used] ^= value);
        let len = HEADER_BYTES + claimed_body_len(&bytes).min(bytes.len() - HEADER_BYTES);
        bytes[CRC_AT..CRC_AT + 4].fill(0);
        let crc = crc32c(&bytes[..len]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        let Ok(Some((header, decoded, padded))) = decode(&bytes, HEADER.file) else { return };
        accepted += 1;
        let again = encode(&header, kind_of(&decoded), &encode_body(&decoded));
        assert_eq!(again.len() as u64, padded);
        // Flags of compatible features are passed over.
        bytes[52..56].fill(0);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&again[CRC_AT..CRC_AT + 4]);
        assert_eq!(again[..len], bytes[..len], "{decoded:?}");
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}
