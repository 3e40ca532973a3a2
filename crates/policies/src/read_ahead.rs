//! Which reads belong to a stream, and how far ahead of it to read.
//!
//! **Intuition.** Whoever reads one piece after the other will most likely read the next one, too. So the disk can be
//! asked for it while the client still works on the last one, and for much of it at a time. Whoever jumps about will
//! not, and every byte that is read for him in advance is a waste. The addresses of the last reads tell one from the
//! other: a read that starts where another one ended continues it.
//!
//! **Names.** A *space* is what addresses are counted in: a segment. A *candidate* is the end of a read that nothing
//! has continued far enough yet. A *stream* is a row of reads that have continued each other for
//! [`ReadAheadSettings::recognized_bytes`]. Its *position* is where its next read should start, its *front* where what
//! was read ahead ends, its *window* how far the front may be from the position. What lies behind the position by more
//! than a little is *passed*: reads of several that were in flight may overtake each other by that much.
//!
//! **Flow.** [`ReadAhead::on_read`] hears of each read and says whether it belongs to a stream, and what to read ahead
//! for it: when half of the window has been used up, the other half. The window starts small and doubles while
//! [`ReadAhead::on_used`] says that what was read ahead is used; [`ReadAhead::on_unused`] halves it, and below the
//! smallest one the stream is followed, but nothing is read ahead for it until it has gone on for long. Random reads leave candidates only, each in the place that
//! its address says, over whatever was there: that is all that they cost, they never displace a stream, and nothing is
//! read ahead for them.
//!
//! **Invariants.** The windows of all streams together are at most [`ReadAheadSettings::bytes_max`]: where there are
//! many streams each gets less, and none at all below the smallest window. A stream that was idle is forgotten, so that
//! the caller can give back its memory.

use std::hash::{BuildHasher, Hash};
use std::ops::Range;
use std::time::Duration;

use base::{Hashing, Instant, KIB, MIB};

/// How streams are recognised, and how much is read ahead. Baseline: [`ReadAheadSettings::OFF`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadAheadSettings {
    /// Bytes of all windows together; zero: nothing is read ahead.
    pub bytes_max: u64,
    /// Streams that are followed; beyond that the one that was read longest ago is given up.
    pub streams_max: usize,
    /// Ends of reads that are remembered until something continues them, a power of two: some are lost before.
    pub candidates_max: usize,
    /// Reads that continue each other for so many bytes are a stream. At least two of them.
    pub recognized_bytes: u64,
    /// The first window, and the smallest one.
    pub window_min: u64,
    /// The largest window.
    pub window_max: u64,
    /// A stream that stands for so long is forgotten.
    pub idle: Duration,
}

impl ReadAheadSettings {
    /// Nothing is ever read ahead.
    pub const OFF: ReadAheadSettings = ReadAheadSettings {
        bytes_max: 0,
        streams_max: 64,
        candidates_max: 512,
        recognized_bytes: 64 * KIB,
        window_min: 128 * KIB,
        window_max: MIB,
        idle: Duration::from_secs(1),
    };
}

impl Default for ReadAheadSettings {
    fn default() -> Self {
        ReadAheadSettings { bytes_max: 16 * MIB, ..Self::OFF }
    }
}

/// Windows without use after which a stream is left alone: it is tried again when it has gone on for so many of the
/// largest windows.
const REST_WINDOWS: u64 = 16;

/// A stream, by a number that is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// What a read that belongs to a stream means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Follow {
    /// Its stream.
    pub stream: StreamId,
    /// What was read ahead and ends here or before is passed.
    pub passed: u64,
    /// What to read ahead now.
    pub ahead: Option<Range<u64>>,
    /// A stream that was given up for this one.
    pub given_up: Option<StreamId>,
}

/// The streams of one loop, in spaces of type `K`.
#[derive(Clone, Debug)]
pub struct ReadAhead<K> {
    settings: ReadAheadSettings,
    /// Each in the place that its space and position say.
    candidates: Vec<Option<Candidate<K>>>,
    streams: Vec<Stream<K>>,
    last_id: u64,
}

#[derive(Clone, Debug)]
struct Candidate<K> {
    space: K,
    position: u64,
    /// How far it has come, and by how many reads.
    bytes: u64,
    reads: u64,
}

#[derive(Clone, Debug)]
struct Stream<K> {
    id: StreamId,
    space: K,
    position: u64,
    /// At least the position, unless reads overtook it.
    front: u64,
    /// Zero: at rest.
    window: u64,
    /// Whether anything that was read ahead was used since the front was moved last.
    is_used: bool,
    /// Where a stream at rest is tried again.
    retry_at: u64,
    read_at: Instant,
}

impl<K: Copy + PartialEq + Hash> ReadAhead<K> {
    /// No streams.
    pub fn new(settings: ReadAheadSettings) -> Self {
        assert!(settings.window_min > 0 && settings.window_min <= settings.window_max, "a window has a size");
        assert!(settings.streams_max > 0, "there is room for a stream");
        assert!(settings.candidates_max.is_power_of_two(), "a place is some bits of a hash");
        let candidates = (0..settings.candidates_max).map(|_| None).collect();
        ReadAhead { settings, candidates, streams: Vec::new(), last_id: 0 }
    }

    /// Streams that are followed.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Somebody reads `range` of `space`. `None`: it belongs to no stream.
    pub fn on_read(&mut self, now: Instant, space: K, range: Range<u64>) -> Option<Follow> {
        if self.settings.bytes_max == 0 {
            return None;
        }
        if let Some(index) = self.streams.iter().position(|stream| self.settings.continues(stream, space, range.start))
        {
            return Some(self.follow(index, now, range, None));
        }
        let recognized = self.on_candidate(space, &range)?;
        let given_up = self.make_room();
        self.last_id += 1;
        self.streams.push(Stream {
            id: StreamId(self.last_id),
            space,
            position: recognized,
            front: recognized,
            window: self.settings.window_min,
            is_used: false,
            retry_at: 0,
            read_at: now,
        });
        Some(self.follow(self.streams.len() - 1, now, range, given_up))
    }

    /// What was read ahead for `stream` was the answer to a read.
    pub fn on_used(&mut self, stream: StreamId) {
        if let Some(stream) = self.streams.iter_mut().find(|other| other.id == stream) {
            stream.is_used = true;
        }
    }

    /// A part of what was read ahead for `stream` was passed by, and nothing of it was used.
    pub fn on_unused(&mut self, stream: StreamId) {
        let ReadAheadSettings { window_min, window_max, .. } = self.settings;
        if let Some(stream) = self.streams.iter_mut().find(|other| other.id == stream) {
            stream.window /= 2;
            if stream.window < window_min {
                stream.window = 0;
                stream.retry_at = stream.position + REST_WINDOWS * window_max;
            }
        }
    }

    /// Forgets the streams that have stood for long, and says which.
    pub fn plan_forget(&mut self, now: Instant) -> Vec<StreamId> {
        let idle = self.settings.idle;
        let (gone, kept): (Vec<_>, Vec<_>) = self.streams.drain(..).partition(|stream| stream.read_at + idle <= now);
        self.streams = kept;
        gone.into_iter().map(|stream| stream.id).collect()
    }

    /// When [`ReadAhead::plan_forget`] will have something to say, if nobody reads; `None`: there is no stream.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.streams.iter().map(|stream| stream.read_at + self.settings.idle).min()
    }

    /// # Panics
    /// If an invariant is broken.
    pub fn check_invariants(&self) {
        let ReadAheadSettings { streams_max, candidates_max, window_min, window_max, .. } = self.settings;
        assert!(self.streams.len() <= streams_max && self.candidates.len() == candidates_max);
        for (index, stream) in self.streams.iter().enumerate() {
            assert!(self.streams[..index].iter().all(|other| other.id != stream.id));
            assert!(stream.window == 0 || (window_min..=window_max).contains(&stream.window));
            assert!(stream.front <= stream.position + window_max);
        }
    }

    /// Moves the stream on, and plans what to read ahead for it.
    fn follow(&mut self, index: usize, now: Instant, range: Range<u64>, given_up: Option<StreamId>) -> Follow {
        let share = self.settings.bytes_max / self.streams.len() as u64;
        let ReadAheadSettings { window_min, window_max, .. } = self.settings;
        let stream = &mut self.streams[index];
        stream.read_at = now;
        stream.position = stream.position.max(range.end);
        stream.front = stream.front.max(stream.position);
        if stream.window == 0 && stream.position >= stream.retry_at {
            stream.window = window_min;
        }
        let window = stream.window.min(share);
        let mut ahead = None;
        if window >= window_min && (stream.front - stream.position) * 2 <= window {
            let doubled = if stream.is_used { 2 * stream.window } else { stream.window };
            stream.window = doubled.min(window_max);
            stream.is_used = false;
            let front = stream.position + stream.window.min(share);
            ahead = (front > stream.front).then_some(stream.front..front);
            stream.front = stream.front.max(front);
        }
        Follow { stream: stream.id, passed: stream.position.saturating_sub(window_min), ahead, given_up }
    }

    /// A read that belongs to no stream. Gives the position of the stream that it makes, before the read.
    fn on_candidate(&mut self, space: K, range: &Range<u64>) -> Option<u64> {
        let place = self.place_of(space, range.start);
        let is_continued = |candidate: &Candidate<K>| candidate.position == range.start && candidate.space == space;
        let (mut bytes, mut reads) = (range.end - range.start, 1);
        if let Some(before) = self.candidates[place].take_if(|candidate| is_continued(candidate)) {
            (bytes, reads) = (before.bytes + bytes, before.reads + 1);
        }
        if reads > 1 && bytes >= self.settings.recognized_bytes {
            return Some(range.start);
        }
        let place = self.place_of(space, range.end);
        self.candidates[place] = Some(Candidate { space, position: range.end, bytes, reads });
        None
    }

    fn place_of(&self, space: K, position: u64) -> usize {
        // The high bits of this hash are the good ones.
        let hash = Hashing::default().hash_one((space, position));
        (hash >> 32) as usize & (self.candidates.len() - 1)
    }

    /// Gives up the stream that was read longest ago, if there are too many.
    fn make_room(&mut self) -> Option<StreamId> {
        if self.streams.len() < self.settings.streams_max {
            return None;
        }
        let (oldest, _) = self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.read_at)?;
        Some(self.streams.swap_remove(oldest).id)
    }
}

impl ReadAheadSettings {
    /// Whether a read that starts at `start` belongs to `stream`: it goes on with it, or lies in what was read ahead, or
    /// was overtaken a moment ago.
    fn continues<K: PartialEq>(&self, stream: &Stream<K>, space: K, start: u64) -> bool {
        let from = stream.position.saturating_sub(self.window_min);
        (from..=stream.front).contains(&start) && stream.space == space
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    const NOW: Instant = Instant(0);

    fn policy(bytes_max: u64) -> ReadAhead<u32> {
        ReadAhead::new(ReadAheadSettings { bytes_max, ..ReadAheadSettings::OFF })
    }

    /// Reads on from `at` in requests of `len`, and says what was read ahead at each.
    fn read_on(policy: &mut ReadAhead<u32>, at: &mut u64, len: u64, count: usize) -> Vec<Option<Range<u64>>> {
        let mut read = |_| {
            let follow = policy.on_read(NOW, 7, *at..*at + len);
            *at += len;
            if let Some(follow) = &follow {
                policy.on_used(follow.stream);
            }
            policy.check_invariants();
            follow.and_then(|follow| follow.ahead)
        };
        (0..count).map(&mut read).collect()
    }

    #[test]
    fn a_stream_is_recognised_and_its_window_grows_to_the_largest() {
        let (mut policy, mut at) = (policy(16 * MIB), 0);
        let k = 128 * KIB;
        assert_eq!(read_on(&mut policy, &mut at, k, 3), [None, Some(2 * k..3 * k), Some(3 * k..5 * k)]);
        let rest = read_on(&mut policy, &mut at, k, 100);
        let mut front = 5 * k;
        for ahead in rest.iter().flatten() {
            assert_eq!(ahead.start, front, "nothing is read twice, nothing is left out");
            front = ahead.end;
        }
        assert!(front - at >= MIB / 2 && front - at <= MIB, "half of the window is there: {}", front - at);
        let last = rest.iter().rev().flatten().next().unwrap();
        assert_eq!(last.end - last.start, MIB / 2, "in large pieces");
    }

    #[test]
    fn small_reads_are_a_stream_when_they_have_gone_on_for_a_while() {
        let (mut policy, mut at) = (policy(16 * MIB), 12 * KIB);
        let ahead = read_on(&mut policy, &mut at, 4 * KIB, 16);
        assert_eq!(ahead.iter().position(Option::is_some), Some(15), "64 KiB");
    }

    #[test]
    fn random_reads_are_none_and_displace_none() {
        let (mut policy, mut at) = (policy(16 * MIB), 1 << 40);
        read_on(&mut policy, &mut at, 128 * KIB, 4);
        let mut prng = Prng::new(3);
        for _ in 0..100_000 {
            let start = prng.below(1 << 23) * 4096;
            let follow = policy.on_read(NOW, prng.below(4) as u32, start..start + 4096);
            assert_eq!(follow, None);
        }
        policy.check_invariants();
        assert_eq!(policy.streams(), 1);
        assert!(policy.on_read(NOW, 7, at..at + 4096).is_some());
    }

    #[test]
    fn repetitions_of_one_read_are_no_stream() {
        let mut policy = policy(16 * MIB);
        assert!((0..1000).all(|_| policy.on_read(NOW, 1, 0..MIB).is_none()));
    }

    #[test]
    fn reads_that_overtake_each_other_stay_one_stream() {
        let (mut policy, mut at) = (policy(16 * MIB), 0);
        let k = 64 * KIB;
        read_on(&mut policy, &mut at, k, 8);
        for _ in 0..20 {
            let ahead = policy.on_read(NOW, 7, at + k..at + 2 * k).unwrap();
            assert!(ahead.passed <= at, "what was overtaken is not passed");
            assert_eq!(policy.on_read(NOW, 7, at..at + k).unwrap().stream, ahead.stream);
            at += 2 * k;
        }
        assert_eq!(policy.streams(), 1);
    }

    #[test]
    fn without_use_a_window_shrinks_to_nothing_and_is_tried_again_later() {
        let (mut policy, mut at) = (policy(16 * MIB), 0);
        read_on(&mut policy, &mut at, 128 * KIB, 40);
        let stream = policy.on_read(NOW, 7, at..at + 4096).unwrap().stream;
        at += 4096;
        (0..4).for_each(|_| policy.on_unused(stream));
        policy.check_invariants();
        let ahead = read_on(&mut policy, &mut at, 128 * KIB, 200);
        let first = ahead.iter().position(Option::is_some).unwrap();
        assert!((120..=136).contains(&first), "after 16 MiB: {first}");
    }

    #[test]
    fn many_streams_share_the_bound_and_the_oldest_is_given_up() {
        let mut policy = policy(4 * MIB);
        let k = 128 * KIB;
        let mut fronts = vec![0; 100];
        for round in 0..50u64 {
            for space in 0..100u32 {
                let now = Instant(round * 1000 + u64::from(space));
                let follow = policy.on_read(now, space, round * k..(round + 1) * k);
                if let Some(follow) = follow {
                    policy.on_used(follow.stream);
                    fronts[space as usize] = follow.ahead.map_or(0, |ahead| ahead.end - (round + 1) * k);
                }
                policy.check_invariants();
            }
        }
        assert!(policy.streams() <= 64);
        assert!(fronts.iter().all(|&front| front <= 2 * MIB));
        // Thirty-two fit with the smallest window.
        let mut few = self::policy(4 * MIB);
        let mut fronts = [0; 32];
        for round in 0..50u64 {
            for (space, front) in (0..).zip(&mut fronts) {
                if let Some(follow) = few.on_read(NOW, space, round * k..(round + 1) * k) {
                    few.on_used(follow.stream);
                    *front = follow.ahead.map_or(*front, |ahead| ahead.end).max((round + 1) * k);
                }
            }
        }
        let ahead: u64 = fronts.iter().map(|front| front - 50 * k).sum();
        assert_eq!(ahead, 4 * MIB);
    }

    #[test]
    fn what_is_never_used_is_given_up_soon() {
        let (mut policy, mut bytes) = (policy(16 * MIB), 0);
        let k = 128 * KIB;
        for at in 0..120 {
            if let Some(follow) = policy.on_read(NOW, 7, at * k..(at + 1) * k) {
                bytes += follow.ahead.map_or(0, |ahead| ahead.end - ahead.start);
                policy.on_unused(follow.stream);
            }
        }
        assert_eq!((policy.streams(), bytes), (1, k));
    }

    #[test]
    fn what_stands_is_forgotten() {
        let (mut policy, mut at) = (policy(16 * MIB), 0);
        assert_eq!(policy.next_deadline(), None);
        read_on(&mut policy, &mut at, 128 * KIB, 4);
        let deadline = policy.next_deadline().unwrap();
        assert_eq!(deadline, NOW + Duration::from_secs(1));
        assert_eq!(policy.plan_forget(Instant(deadline.0 - 1)), []);
        assert_eq!(policy.plan_forget(deadline).len(), 1);
        assert_eq!((policy.streams(), policy.next_deadline()), (0, None));
    }

    #[test]
    fn off_is_off() {
        let (mut policy, mut at) = (policy(0), 0);
        assert!(read_on(&mut policy, &mut at, 128 * KIB, 100).iter().all(Option::is_none));
    }
}
