//! What clients did and saw, and whether a correct disk could have answered so.
//!
//! Every sector of every volume is a register of its own. A write puts its own number into each sector that it covers,
//! together with the place, so that a read tells exactly which write it saw, and bytes of another volume, another
//! place or another life of a volume of the same name are noticed at once. Moments are numbers of events, in the order
//! in which clients noticed them: what one client was told before another one asked has the lower number.
//!
//! Neighbours to which the same things happened have one history, until something happens to a part of them only: one
//! answer stands for all of them.
//!
//! A request without an answer may have taken effect until the next recovery is over, or never
//! ([`History::on_recovered`]).

use std::collections::BTreeMap;
use std::ops::Range;

use base::SECTOR;

use crate::linearizability::{Action, End, Moment, Operation, Value, check_register};

/// A volume: its number, and how often one of that name was made before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeLife {
    /// The number of the volume.
    pub volume: usize,
    /// Which of those that had its name.
    pub life: u64,
}

/// The number of a request.
pub type RequestId = u64;

/// A request that began.
struct Begun {
    at: VolumeLife,
    sectors: Range<u64>,
    invoked: Moment,
    /// The value of every sector that it writes.
    value: Value,
}

/// Sectors side by side with the same history.
#[derive(Clone)]
struct Alike {
    /// Behind the last one.
    end: u64,
    operations: Vec<Operation>,
}

/// Everything that was asked and answered.
#[derive(Default)]
pub struct History {
    clock: Moment,
    next: RequestId,
    begun: BTreeMap<RequestId, Begun>,
    /// Those whose outcome is not known, and whose connection is gone.
    unknown: Vec<RequestId>,
    /// By the first sector.
    registers: BTreeMap<(VolumeLife, u64), Alike>,
    /// Requests that were answered.
    pub answered: u64,
}

impl History {
    fn tick(&mut self) -> Moment {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, at: VolumeLife, sectors: Range<u64>, writes_zeros: bool) -> RequestId {
        self.next += 1;
        let (id, invoked) = (self.next, self.tick());
        let value = if writes_zeros { 0 } else { id };
        self.begun.insert(id, Begun { at, sectors, invoked, value });
        id
    }

    /// A write begins. Its number is its value: see [`encode`].
    pub fn begin_write(&mut self, at: VolumeLife, sectors: Range<u64>) -> RequestId {
        self.begin(at, sectors, false)
    }

    /// A discard begins, or a write of zeros.
    pub fn begin_zeros(&mut self, at: VolumeLife, sectors: Range<u64>) -> RequestId {
        self.begin(at, sectors, true)
    }

    /// A read begins.
    pub fn begin_read(&mut self, at: VolumeLife, sectors: Range<u64>) -> RequestId {
        self.begin(at, sectors, true)
    }

    /// A read ends with these bytes.
    ///
    /// # Errors
    /// Bytes that nobody wrote there.
    pub fn end_read(&mut self, id: RequestId, data: &[u8]) -> Result<(), String> {
        let now = self.tick();
        let Some(Begun { at, sectors, invoked, .. }) = self.begun.remove(&id) else { return Ok(()) };
        self.answered += 1;
        let seen = |value| Operation { id, invoked, end: End::Returned(now), action: Action::Read(value) };
        let mut run: Option<(u64, Value)> = None;
        for (sector, bytes) in sectors.clone().zip(data.chunks_exact(SECTOR as usize)) {
            let value = decode(at, sector, bytes)?;
            match run {
                Some((_, before)) if before == value => {}
                before => {
                    if let Some((first, value)) = before {
                        self.record(at, first..sector, seen(value));
                    }
                    run = Some((sector, value));
                }
            }
        }
        if let Some((first, value)) = run {
            self.record(at, first..sectors.end, seen(value));
        }
        Ok(())
    }

    /// A read ends without bytes.
    pub fn drop_read(&mut self, id: RequestId) {
        self.begun.remove(&id);
    }

    /// A change was answered with success.
    pub fn on_done(&mut self, id: RequestId) {
        let now = self.tick();
        self.answered += 1;
        self.settle(id, End::Returned(now));
    }

    /// A change was refused as a whole.
    pub fn on_refused(&mut self, id: RequestId) {
        self.answered += 1;
        self.settle(id, End::Refused);
    }

    /// A change may have happened, or still happen.
    pub fn on_unknown(&mut self, id: RequestId) {
        self.unknown.push(id);
    }

    /// A recovery is over that began when these requests had no answer any more: what of them has not happened
    /// never will.
    pub fn on_recovered(&mut self) {
        let now = self.tick();
        for id in std::mem::take(&mut self.unknown) {
            self.settle(id, End::Settled(now));
        }
    }

    /// Whoever carried these changes out has ended, maybe in the middle, and the next one does them again from now on. So each
    /// may take effect twice: what was done of it until the next recovery is over, or never, and once more until it is
    /// answered. Gives the numbers of the first times.
    pub fn on_again(&mut self, ids: &[RequestId]) -> Vec<RequestId> {
        let mut firsts = Vec::new();
        for id in ids {
            let Some(begun) = self.begun.remove(id) else { continue };
            self.next += 1;
            let (first, now) = (self.next, self.tick());
            self.begun.insert(*id, Begun { invoked: now, sectors: begun.sectors.clone(), ..begun });
            self.begun.insert(first, begun);
            firsts.push(first);
        }
        self.unknown.extend(&firsts);
        firsts
    }

    /// Of these changes nothing happens any more that has not happened.
    pub fn on_settled(&mut self, ids: &[RequestId]) {
        let now = self.tick();
        self.unknown.retain(|id| !ids.contains(id));
        ids.iter().for_each(|id| self.settle(*id, End::Settled(now)));
    }

    fn settle(&mut self, id: RequestId, end: End) {
        let Some(Begun { at, sectors, invoked, value }) = self.begun.remove(&id) else { return };
        self.record(at, sectors, Operation { id, invoked, end, action: Action::Write(value) });
    }

    /// Adds to the history of each of these sectors.
    fn record(&mut self, at: VolumeLife, sectors: Range<u64>, operation: Operation) {
        // Mostly the same as last time.
        if let Some(alike) = self.registers.get_mut(&(at, sectors.start)).filter(|alike| alike.end == sectors.end) {
            return alike.operations.push(operation);
        }
        self.part(at, sectors.start);
        self.part(at, sectors.end);
        let mut first = sectors.start;
        while first < sectors.end {
            let next = self.registers.range_mut((at, first)..(at, sectors.end)).next();
            first = match next {
                Some(((_, start), alike)) if *start == first => {
                    alike.operations.push(operation);
                    alike.end
                }
                next => {
                    let end = next.map_or(sectors.end, |((_, start), _)| *start);
                    self.registers.insert((at, first), Alike { end, operations: vec![operation] });
                    end
                }
            };
        }
    }

    /// From here on the sectors before `sector` are no longer alike to it.
    fn part(&mut self, at: VolumeLife, sector: u64) {
        let before = self.registers.range_mut((at, 0)..(at, sector)).next_back();
        let Some((_, alike)) = before.filter(|(_, alike)| alike.end > sector) else { return };
        let behind = alike.clone();
        alike.end = sector;
        self.registers.insert((at, sector), behind);
    }

    /// Whether every sector's history is that of a register.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&mut self) -> Result<(), String> {
        for id in std::mem::take(&mut self.unknown) {
            self.settle(id, End::Open);
        }
        for ((at, sector), Alike { operations, .. }) in &mut self.registers {
            operations.sort_by_key(|operation| operation.invoked);
            check_register(operations, &[0])
                .map_err(|violation| format!("sector {sector} of volume v{} ({}): {violation}", at.volume, at.life))?;
        }
        Ok(())
    }

    /// Sectors whose history was recorded.
    pub fn registers(&self) -> u64 {
        self.registers.iter().map(|((_, first), alike)| alike.end - first).sum()
    }
}

/// The bytes that write `value` puts into a sector.
pub fn encode(value: Value, at: VolumeLife, sector: u64, out: &mut [u8]) {
    let words = [value, (at.volume as u64) << 32 | at.life, sector];
    let mut mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sector.rotate_left(17);
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&words.get(i).copied().unwrap_or(mixed).to_le_bytes());
        mixed = mixed.rotate_left(7).wrapping_add(0x1234_5678_9abc_def1);
    }
}

/// Which write put `bytes` there: zero for zeros.
fn decode(at: VolumeLife, sector: u64, bytes: &[u8]) -> Result<Value, String> {
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[i * 8 + k]));
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let mut expected = [0; SECTOR as usize];
    encode(word(0), at, sector, &mut expected);
    if expected == bytes {
        return Ok(word(0));
    }
    let (tag, place) = (word(1), word(2));
    let whose = VolumeLife { volume: (tag >> 32) as usize, life: tag & u64::from(u32::MAX) };
    encode(word(0), whose, place, &mut expected);
    let here = format!("a read of sector {sector} of volume v{} ({})", at.volume, at.life);
    Err(match expected == bytes {
        true => format!(
            "{here} returned what write {} put into sector {place} of v{} ({})",
            word(0),
            whose.volume,
            whose.life
        ),
        false => format!("{here} returned bytes that nobody wrote: {:02x?} ...", &bytes[..32]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: VolumeLife = VolumeLife { volume: 1, life: 2 };

    fn sectors_of(value: Value, at: VolumeLife, sectors: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; ((sectors.end - sectors.start) * SECTOR) as usize];
        for (sector, out) in sectors.zip(bytes.chunks_exact_mut(SECTOR as usize)) {
            encode(value, at, sector, out);
        }
        bytes
    }

    fn written(history: &mut History, sectors: Range<u64>) -> RequestId {
        let id = history.begin_write(HERE, sectors);
        history.on_done(id);
        id
    }

    fn read(history: &mut History, sectors: Range<u64>, bytes: &[u8]) -> Result<(), String> {
        let id = history.begin_read(HERE, sectors);
        history.end_read(id, bytes)
    }

    #[test]
    fn what_was_written_is_read() {
        let mut history = History::default();
        let first = written(&mut history, 4..8);
        read(&mut history, 4..8, &sectors_of(first, HERE, 4..8)).unwrap();
        let second = written(&mut history, 6..10);
        let mixed = [sectors_of(first, HERE, 4..6), sectors_of(second, HERE, 6..8)].concat();
        read(&mut history, 4..8, &mixed).unwrap();
        history.check().unwrap();
        assert_eq!(history.registers(), 6);
    }

    #[test]
    fn neighbours_share_a_history_as_long_as_it_is_the_same() {
        let mut whole = History::default();
        (0..3).for_each(|_| _ = written(&mut whole, 8..16));
        assert!(whole.registers.len() == 1 && whole.registers() == 8);
        let mut prng = base::Prng::new(1);
        let other = VolumeLife { volume: 1, life: 3 };
        for _ in 0..200 {
            let (mut history, mut each) = (History::default(), BTreeMap::<(VolumeLife, u64), Vec<u64>>::new());
            for id in 0..40 {
                let at = if prng.one_in(3) { other } else { HERE };
                let start = prng.below(40);
                let sectors = start..start + prng.between(1, 16);
                let operation = Operation { id, invoked: id, end: End::Open, action: Action::Write(id) };
                history.record(at, sectors.clone(), operation);
                sectors.for_each(|sector| each.entry((at, sector)).or_default().push(id));
            }
            let mut found = BTreeMap::new();
            for ((at, first), alike) in &history.registers {
                let ids: Vec<u64> = alike.operations.iter().map(|operation| operation.id).collect();
                found.extend((*first..alike.end).map(|sector| ((*at, sector), ids.clone())));
            }
            assert!(found == each && history.registers() == each.len() as u64);
        }
    }

    #[test]
    fn a_lost_write_is_noticed() {
        let mut history = History::default();
        written(&mut history, 4..8);
        read(&mut history, 4..8, &[0; 4 * SECTOR as usize]).unwrap();
        assert!(history.check().unwrap_err().contains("sector 4 of volume v1 (2)"));
    }

    #[test]
    fn bytes_of_another_volume_place_or_life_and_torn_sectors_are_noticed() {
        let mut history = History::default();
        let id = written(&mut history, 0..2);
        let elsewhere = [(VolumeLife { volume: 0, life: 2 }, 0), (VolumeLife { volume: 1, life: 1 }, 0), (HERE, 1)];
        for (at, sector) in elsewhere {
            let error = read(&mut history, 0..1, &sectors_of(id, at, sector..sector + 1)).unwrap_err();
            assert!(error.contains("put into sector"), "{error}");
        }
        let mut torn = sectors_of(id, HERE, 0..1);
        torn[256..].fill(0);
        assert!(read(&mut history, 0..1, &torn).unwrap_err().contains("nobody wrote"));
    }

    #[test]
    fn what_is_done_again_takes_effect_until_the_recovery_and_once_more_until_it_is_answered() {
        // It is seen, hidden by another write, and done again; without a death in between nobody could explain that.
        for died in [false, true] {
            let mut history = History::default();
            let again = history.begin_write(HERE, 0..1);
            read(&mut history, 0..1, &sectors_of(again, HERE, 0..1)).unwrap();
            if died {
                history.on_again(&[again]);
                history.on_recovered();
            }
            let other = written(&mut history, 0..1);
            read(&mut history, 0..1, &sectors_of(other, HERE, 0..1)).unwrap();
            history.on_done(again);
            read(&mut history, 0..1, &sectors_of(again, HERE, 0..1)).unwrap();
            assert_eq!(history.check().is_ok(), died);
        }
        // The first time ends with the recovery, the second one with the answer.
        for is_between in [false, true] {
            let mut history = History::default();
            let again = history.begin_write(HERE, 0..1);
            history.on_again(&[again]);
            history.on_recovered();
            if !is_between {
                history.on_done(again);
            }
            let other = written(&mut history, 0..1);
            read(&mut history, 0..1, &sectors_of(other, HERE, 0..1)).unwrap();
            if is_between {
                history.on_done(again);
            }
            read(&mut history, 0..1, &sectors_of(again, HERE, 0..1)).unwrap();
            assert_eq!(history.check().is_ok(), is_between);
        }
    }

    #[test]
    fn an_unknown_outcome_is_settled_by_a_recovery() {
        for seen_late in [false, true] {
            let mut history = History::default();
            let lost = history.begin_write(HERE, 0..1);
            history.on_unknown(lost);
            history.on_recovered();
            read(&mut history, 0..1, &[0; SECTOR as usize]).unwrap();
            if seen_late {
                read(&mut history, 0..1, &sectors_of(lost, HERE, 0..1)).unwrap();
            }
            assert_eq!(history.check().is_err(), seen_late);
        }
    }
}
