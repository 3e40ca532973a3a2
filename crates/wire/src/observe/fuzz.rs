//! A fuzz target of what processes say of themselves: texts with edits.

use base::{ErrorKind, Prng, VolumeId};

use super::bytes;
use super::tests::{full, full_explanation};
use super::{Explained, Snapshot};

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

#[test]
fn what_is_said_is_refused_or_can_be_added_up_and_said_again() {
    let samples = [bytes::part_of(full(), VolumeId(0)).unwrap(), bytes::of_explained(&full_explanation()).unwrap()];
    let mut accepted = 0;
    bolero::check!().with_iterations(5_000).with_type().for_each(|(seed, edits, noise): &Input| {
        let mut prng = Prng::new(*seed);
        let mut text = prng.pick(&samples).to_vec();
        let len = text.len();
        // A digit for a digit is what a decoder is most likely to swallow.
        let count = if prng.one_in(2) { 1 } else { edits.len() };
        edits.iter().take(count).for_each(|(at, value)| {
            let byte = &mut text[usize::from(*at) % len];
            *byte = if byte.is_ascii_digit() && prng.one_in(2) { b'0' + value % 10 } else { *byte ^ value };
        });
        if prng.one_in(8) {
            text.extend(noise);
        }
        match bytes::snapshot(&text) {
            Ok(snapshot) => {
                accepted += 1;
                let again = bytes::part_of(snapshot.clone(), VolumeId(0)).unwrap();
                // There is no volume of that number, so it is not said again.
                let traffic = snapshot.traffic.iter().filter(|volume| volume.volume != VolumeId(0)).cloned().collect();
                assert_eq!(bytes::snapshot(&again).unwrap(), Snapshot { traffic, ..snapshot.clone() });
                let mut sum = full();
                sum.add(&snapshot);
                sum.add(&snapshot);
            }
            Err(error) => assert_eq!(error.kind, ErrorKind::Io, "{error}"),
        }
        if let Ok(explained) = bytes::explained(&text) {
            accepted += 1;
            let again = bytes::of_explained(&explained).unwrap();
            assert_eq!(bytes::explained(&again).unwrap(), explained);
            let mut sum = Explained::default();
            sum.add(&explained);
            sum.add(&explained);
            sum.latency.iter().for_each(|timed| assert!(timed.quantile(500_000) <= timed.max_ns));
        }
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}
