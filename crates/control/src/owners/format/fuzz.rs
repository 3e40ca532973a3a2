//! A fuzz target of the records of the table of owners: changes with edits, their checksum made right again.

use base::Prng;

use super::tests::{FILE, entries, header, record};
use super::*;

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

#[test]
fn a_record_is_refused_or_means_what_it_says() {
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Input| {
        assert!(matches!(decode(FILE, noise), Ok(Found::Nothing)), "noise has no checksum");
        let mut prng = Prng::new(*seed);
        let all = entries();
        let first = prng.below(all.len() as u64) as usize;
        let mut bytes = encode(&Record { changes: all[first..].to_vec(), ..record() });
        let used = HEADER + u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        let count = if prng.one_in(2) { 1 } else { edits.len() };
        edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % used] ^= value);
        let body_len = u64::from(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]));
        let len = (round_up(HEADER as u64 + body_len, BLOCK) as usize).min(bytes.len());
        let sum = checksum(&bytes[..len]);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
        let Ok(Found::Record(record, padded)) = decode(FILE, &bytes) else { return };
        accepted += 1;
        // A table takes what follows, and refuses the rest: it never breaks.
        let mut tables = Tables::default();
        for change in all[..first].iter().chain(&record.changes) {
            if tables.check(change).is_ok() {
                tables.apply(change);
                tables.owners.check_invariants();
            }
        }
        // What lies behind the body is covered by the checksum, and by nothing else.
        let again = encode(&record);
        let end = HEADER + body_len as usize;
        assert_eq!(again.len() as u64, padded);
        assert_eq!((&again[..60], &again[HEADER..end]), (&bytes[..60], &bytes[HEADER..end]), "{record:?}");
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
    assert_eq!(header(42), record().header);
}
