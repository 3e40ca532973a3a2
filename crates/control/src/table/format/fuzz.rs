//! A fuzz target of the volume table's records: bodies with edits, their checksum made right again.

use base::{Prng, VolumeId};

use super::tests::{bodies, header};
use super::*;

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

#[test]
fn a_record_is_refused_or_means_what_it_says() {
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Input| {
        let file = header().file;
        assert!(matches!(decode(file, noise), Ok(Found::Nothing)), "noise has no checksum");
        let mut prng = Prng::new(*seed);
        let mut bytes = encode(&header(), prng.pick(&bodies()));
        let used = HEADER + u32_at(&bytes, 12) as usize;
        let count = if prng.one_in(2) { 1 } else { edits.len() };
        edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % used] ^= value);
        let len = (round_up(HEADER as u64 + u64::from(u32_at(&bytes, 12)), BLOCK) as usize).min(bytes.len());
        let checksum = record_checksum(&bytes[..len]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
        let Ok(Found::Record(header, body, padded)) = decode(file, &bytes) else { return };
        accepted += 1;
        // What is planned from it does not break it.
        if let Body::Checkpoint(table) = &body {
            assert!(table.rows().all(|row| row.id < table.next_id()));
            assert!(table.get(VolumeId(u64::MAX)).is_err());
        }
        let mut again = encode(&header, &body);
        assert_eq!(again.len() as u64, padded);
        // Rows may be in another order, flags of compatible features are passed over, and what lies behind the
        // body is covered by the checksum, and by nothing else.
        let end = HEADER + u32_at(&bytes, 12) as usize;
        if matches!(body, Body::Change(_)) {
            again[48..50].copy_from_slice(&bytes[48..50]);
            again[60..64].copy_from_slice(&bytes[60..64]);
            assert_eq!(again[..end], bytes[..end], "{body:?}");
        }
        assert!(matches!(decode(file, &encode(&header, &body)), Ok(Found::Record(_, same, _)) if same == body));
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}
