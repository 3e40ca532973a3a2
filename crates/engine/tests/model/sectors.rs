//! What an engine may answer: the register of every sector, and the set of values that it may hold.
//!
//! Every write has a number, and puts a value into each sector that no other write puts anywhere. A sector's
//! *candidates* are the writes whose value it may hold now. A write becomes a candidate when it is invoked. When it is
//! acknowledged, every write that was settled before it was invoked is overwritten for good. When a read returns a
//! value, every other write that was settled before the read was invoked is overwritten for good, too: so a value
//! that was seen stays, and one that was seen to be gone never comes back. A write whose outcome is unknown is
//! settled, one way or the other, when the next recovery is done; one that was refused never happened. This is
//! linearizability of each register, exact but for zeros, which do not tell which discard they come from.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{BLOCK, SECTOR, SegmentId};

/// The number of a write or discard. Zero is the state before the first one.
pub type OpId = u64;

const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;
/// It has not happened yet.
const NEVER: u64 = u64::MAX;
/// Values of a sector above which those that no read can return any more are forgotten.
const HISTORY_MAX: usize = 12;

/// A value that a sector may hold, or may have held.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    op: OpId,
    zeros: bool,
    invoked: u64,
    /// Since when it is certain that it has taken effect, if it ever does.
    settled: u64,
    /// Since when it is certain that it is overwritten, or never happened.
    gone: u64,
}

/// All that one sector may hold or have held, oldest first. Empty: zeros since ever.
#[derive(Clone, Default)]
struct Register(Vec<Candidate>);

/// The registers of one segment.
struct Segment {
    registers: Vec<Register>,
    /// Of each block, how many sectors may hold data.
    data_sectors: Vec<u8>,
}

/// All registers, and a clock of events.
pub struct Sectors {
    clock: u64,
    next_op: OpId,
    /// The sectors that are used of every segment.
    used: Range<u64>,
    segments: BTreeMap<SegmentId, Segment>,
    in_flight: BTreeMap<OpId, Op>,
    /// When reads on their way were invoked, and how many.
    reads: BTreeMap<u64, usize>,
    data_blocks: u64,
    /// Whose history is printed.
    watched: Option<u64>,
}

/// A write or discard in flight, or of unknown outcome.
#[derive(Clone, Debug)]
struct Op {
    segment: SegmentId,
    sectors: Range<u64>,
}

/// What a reader knew when it asked.
pub struct ReadToken {
    segment: SegmentId,
    sectors: Range<u64>,
    invoked: u64,
}

/// What a sector was seen to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// The value of this write, or zeros.
    Value(OpId),
    /// Nothing but zeros, by the word of somebody who did not show them.
    Hole,
}

impl Sectors {
    /// Nothing was written. `used` are the sectors of every segment that are.
    pub fn new(used: Range<u64>) -> Self {
        assert!(used.start.is_multiple_of(SECTORS_PER_BLOCK) && used.end.is_multiple_of(SECTORS_PER_BLOCK));
        let watched = std::env::var("LEVEE_SECTOR").ok().map(|text| text.parse().expect("LEVEE_SECTOR is a number"));
        Sectors {
            clock: 0,
            next_op: 1,
            used,
            segments: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            reads: BTreeMap::new(),
            data_blocks: 0,
            watched,
        }
    }

    /// Blocks that may hold data: an upper bound of what is live.
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Changes each register of `sectors`, by sector.
    fn change(&mut self, id: SegmentId, sectors: Range<u64>, mut change: impl FnMut(u64, &mut Register)) {
        let count = (self.used.end - self.used.start) as usize;
        let segment = self.segments.entry(id).or_insert_with(|| Segment {
            registers: vec![Register::default(); count],
            data_sectors: vec![0; count / SECTORS_PER_BLOCK as usize],
        });
        for sector in sectors {
            let index = (sector - self.used.start) as usize;
            let register = &mut segment.registers[index];
            let before = register.may_hold_data();
            change(sector, register);
            let after = register.may_hold_data();
            let in_block = &mut segment.data_sectors[index / SECTORS_PER_BLOCK as usize];
            match (before, after) {
                (false, true) => {
                    self.data_blocks += u64::from(*in_block == 0);
                    *in_block += 1;
                }
                (true, false) => {
                    *in_block -= 1;
                    self.data_blocks -= u64::from(*in_block == 0);
                }
                _ => {}
            }
        }
    }

    fn trace(&self, segment: SegmentId, sectors: &Range<u64>, text: impl FnOnce() -> String) {
        if let Some(watched) = self.watched.filter(|watched| sectors.contains(watched)) {
            println!("{} {segment} {watched}: {}", self.clock, text());
        }
    }

    /// A write (or a discard) of `sectors` begins.
    pub fn begin_write(&mut self, segment: SegmentId, sectors: Range<u64>, zeros: bool) -> OpId {
        let invoked = self.tick();
        let op = self.next_op;
        self.next_op += 1;
        self.trace(segment, &sectors, || format!("write {op} (zeros: {zeros}) begins"));
        let oldest_read = self.reads.keys().next().copied().unwrap_or(NEVER);
        self.change(segment, sectors.clone(), |_, register| {
            register.begin(Candidate { op, zeros, invoked, settled: NEVER, gone: NEVER }, oldest_read);
        });
        self.in_flight.insert(op, Op { segment, sectors });
        op
    }

    /// It was acknowledged.
    pub fn on_acknowledged(&mut self, op: OpId) {
        let now = self.tick();
        let Some(Op { segment, sectors }) = self.in_flight.remove(&op) else { return };
        self.trace(segment, &sectors, || format!("write {op} acknowledged"));
        self.change(segment, sectors, |_, register| register.on_effective(op, now));
    }

    /// It was refused before anything of it was done.
    pub fn on_refused(&mut self, op: OpId) {
        let now = self.tick();
        let Some(Op { segment, sectors }) = self.in_flight.remove(&op) else { return };
        self.trace(segment, &sectors, || format!("write {op} refused"));
        self.change(segment, sectors, |_, register| register.on_refused(op, now));
    }

    /// Its outcome is unknown, but it is one or the other from now on.
    #[allow(dead_code, reason = "for those who attach a volume anew")]
    pub fn on_settled(&mut self, op: OpId) {
        let now = self.tick();
        let Some(Op { segment, sectors }) = self.in_flight.remove(&op) else { return };
        self.trace(segment, &sectors, || format!("write {op} has taken effect, or never will"));
        self.change(segment, sectors, |_, register| register.on_settled(op, now));
    }

    /// A recovery is done: what was in flight, or unknown, has taken effect or never will.
    pub fn on_recovered(&mut self) {
        let now = self.tick();
        self.reads.clear();
        for (op, Op { segment, sectors }) in std::mem::take(&mut self.in_flight) {
            self.change(segment, sectors, |_, register| register.on_settled(op, now));
        }
    }

    /// A volume is gone.
    pub fn forget_volume(&mut self, volume: base::VolumeId) {
        self.in_flight.retain(|_, op| op.segment.volume != volume);
        let data_blocks = &mut self.data_blocks;
        self.segments.retain(|id, segment| {
            let keep = id.volume != volume;
            if !keep {
                *data_blocks -= segment.data_sectors.iter().filter(|&&count| count > 0).count() as u64;
            }
            keep
        });
    }

    /// A read begins.
    pub fn begin_read(&mut self, segment: SegmentId, sectors: Range<u64>) -> ReadToken {
        let invoked = self.tick();
        *self.reads.entry(invoked).or_default() += 1;
        ReadToken { segment, sectors, invoked }
    }

    /// A read ends without an answer.
    pub fn give_up_read(&mut self, token: &ReadToken) {
        if let Some(count) = self.reads.get_mut(&token.invoked) {
            *count -= 1;
            if *count == 0 {
                self.reads.remove(&token.invoked);
            }
        }
    }

    /// A read ends with `data`; says what is wrong with it.
    pub fn end_read(&mut self, token: &ReadToken, data: &[u8]) -> Result<(), String> {
        let count = token.sectors.end - token.sectors.start;
        assert_eq!(data.len() as u64, count * SECTOR, "a read returns what was asked for");
        let mut values = Vec::with_capacity(count as usize);
        for (sector, bytes) in token.sectors.clone().zip(data.chunks_exact(SECTOR as usize)) {
            let value = decode(token.segment, sector, bytes)
                .map_err(|what| format!("sector {sector} of {}: {what}", token.segment))?;
            values.push(Seen::Value(value));
        }
        self.end(token, token.sectors.clone(), |sector| values[(sector - token.sectors.start) as usize])
    }

    /// A read ends with the word that there is nothing in `sectors`, a part of what was asked for.
    pub fn end_hole(&mut self, token: &ReadToken, sectors: Range<u64>) -> Result<(), String> {
        self.end(token, sectors, |_| Seen::Hole)
    }

    fn end(&mut self, token: &ReadToken, sectors: Range<u64>, seen: impl Fn(u64) -> Seen) -> Result<(), String> {
        let now = self.tick();
        let (segment, invoked) = (token.segment, token.invoked);
        if !self.segments.contains_key(&segment) {
            return match sectors.clone().find(|&sector| !matches!(seen(sector), Seen::Value(0) | Seen::Hole)) {
                Some(sector) => Err(format!("sector {sector} of {segment}, never written: {:?}", seen(sector))),
                None => Ok(()),
            };
        }
        self.trace(segment, &sectors, || format!("a read from {invoked} on: {:?}", self.watched.map(&seen)));
        let mut wrong = None;
        self.change(segment, sectors, |sector, register| {
            if let Err(what) = register.on_read(seen(sector), invoked, now) {
                wrong.get_or_insert(format!("sector {sector} of {segment} {what}"));
            }
        });
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }
}

impl Register {
    fn may_hold_data(&self) -> bool {
        self.0.iter().any(|candidate| !candidate.zeros && candidate.gone == NEVER)
    }

    fn begin(&mut self, new: Candidate, oldest_read: u64) {
        if self.0.is_empty() {
            // Zeros, as if written by nobody before the beginning.
            self.0.push(Candidate { op: 0, zeros: true, invoked: 0, settled: 0, gone: NEVER });
        }
        if self.0.len() >= HISTORY_MAX {
            self.0.retain(|candidate| candidate.gone > oldest_read.min(new.invoked));
        }
        self.0.push(new);
    }

    fn on_settled(&mut self, op: OpId, now: u64) {
        if let Some(found) = self.0.iter_mut().find(|candidate| candidate.op == op) {
            found.settled = found.settled.min(now);
        }
    }

    fn on_refused(&mut self, op: OpId, now: u64) {
        if let Some(found) = self.0.iter_mut().find(|candidate| candidate.op == op) {
            // Not even a read that is on its way may return it.
            (found.settled, found.gone) = (now, 0);
        }
    }

    fn on_effective(&mut self, op: OpId, now: u64) {
        let Some(found) = self.0.iter_mut().find(|candidate| candidate.op == op) else { return };
        found.settled = found.settled.min(now);
        let invoked = found.invoked;
        for other in self.0.iter_mut().filter(|other| other.op != op && other.settled <= invoked) {
            other.gone = other.gone.min(now);
        }
    }

    /// A read that was invoked at `invoked` ends at `now` with this.
    fn on_read(&mut self, seen: Seen, invoked: u64, now: u64) -> Result<(), String> {
        let is_seen = move |candidate: &Candidate| match seen {
            Seen::Value(0) | Seen::Hole => candidate.zeros,
            Seen::Value(op) => candidate.op == op,
        };
        if self.0.is_empty() {
            let is_zeros = matches!(seen, Seen::Value(0) | Seen::Hole);
            return is_zeros.then_some(()).ok_or_else(|| format!("was never written, and holds {seen:?}"));
        }
        // Held at some moment of the read.
        let mut sources = self.0.iter().filter(|candidate| is_seen(candidate) && candidate.gone > invoked);
        let (first, second) = (sources.next().copied(), sources.next());
        let Some(source) = first else {
            return Err(format!("holds {seen:?}, at {now}, asked at {invoked}, of {:?}", self.0));
        };
        // Zeros do not say which discard they come from.
        let is_certain = second.is_none();
        if !self.0.iter().any(|candidate| is_seen(candidate) && candidate.gone == NEVER) {
            // It was overwritten while the read was on its way.
            return Ok(());
        }
        for other in self.0.iter_mut().filter(|other| !is_seen(other) && other.settled <= invoked) {
            other.gone = other.gone.min(now);
        }
        if is_certain {
            self.on_effective(source.op, now);
        }
        Ok(())
    }
}

/// The bytes that write `op` puts into a sector.
pub fn encode(op: OpId, segment: SegmentId, sector: u64, out: &mut [u8]) {
    let words = [op, segment.volume.0 << 32 | u64::from(segment.index), sector];
    let mut mixed = op.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sector;
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        let value = words.get(i).copied().unwrap_or(mixed);
        word.copy_from_slice(&value.to_le_bytes());
        mixed = mixed.rotate_left(7).wrapping_add(0x1234_5678_9abc_def1);
    }
}

/// Which write put `bytes` into a sector; zero for zeros.
fn decode(segment: SegmentId, sector: u64, bytes: &[u8]) -> Result<OpId, String> {
    let op = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    if op == 0 && bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let mut expected = [0; SECTOR as usize];
    encode(op, segment, sector, &mut expected);
    match expected == bytes {
        true => Ok(op),
        false => Err(format!("bytes that nobody wrote there: {:02x?}", &bytes[..32])),
    }
}
