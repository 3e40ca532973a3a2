//! What an engine may answer: the register of every sector, and the set of values that it may hold.
//!
//! Every write has a number, and puts a value into each sector that no other write puts anywhere. A sector's
//! *candidates* are the writes whose value it may hold now. A write becomes a candidate when it is invoked. When it is
//! acknowledged, every write that was settled before it was invoked is overwritten for good. When a read returns a
//! value, every other write that was settled before the read was invoked is overwritten for good, too: so a value
//! that was seen stays, and one that was seen to be gone never comes back. A write whose outcome is unknown is
//! settled, one way or the other, when the next recovery is done. This is linearizability of each register, exact
//! but for zeros, which do not tell which discard they come from.

use std::collections::BTreeMap;

use base::{SECTOR, SegmentId};

/// The number of a write or discard. Zero is the state before the first one.
pub type OpId = u64;

#[derive(Clone, Copy, Debug)]
struct Candidate {
    op: OpId,
    zeros: bool,
    invoked: u64,
    /// Since when it is certain that it has taken effect, if it ever does. `u64::MAX`: it may still do so.
    settled: u64,
}

/// What one sector may hold.
pub struct Register {
    candidates: Vec<Candidate>,
    /// Every write there ever was, for reads that began before it.
    all: Vec<Candidate>,
}

/// All registers, and a clock of events.
#[derive(Default)]
pub struct Sectors {
    clock: u64,
    next_op: OpId,
    registers: BTreeMap<(SegmentId, u64), Register>,
    in_flight: BTreeMap<OpId, Op>,
}

/// A write or discard in flight, or of unknown outcome.
#[derive(Clone, Debug)]
struct Op {
    segment: SegmentId,
    sectors: std::ops::Range<u64>,
}

/// What a reader knew when it asked.
pub struct ReadToken {
    segment: SegmentId,
    first: u64,
    invoked: u64,
    allowed: Vec<Vec<(OpId, bool)>>,
}

/// Whether `ENGINE_MODEL_SECTOR` asks for the history of this one.
fn is_watched(sector: u64) -> bool {
    std::env::var("ENGINE_MODEL_SECTOR").is_ok_and(|watched| watched == sector.to_string())
}

impl Sectors {
    /// Nothing was written.
    pub fn new() -> Self {
        Self { next_op: 1, ..Self::default() }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write (or a discard) of `sectors` begins.
    pub fn begin_write(&mut self, segment: SegmentId, sectors: std::ops::Range<u64>, zeros: bool) -> OpId {
        let invoked = self.tick();
        let op = self.next_op;
        self.next_op += 1;
        for sector in sectors.clone() {
            let register = self.registers.entry((segment, sector)).or_default();
            let candidate = Candidate { op, zeros, invoked, settled: u64::MAX };
            if is_watched(sector) {
                println!("{segment} {sector}: write {op} (zeros: {zeros}) begins at {invoked}");
            }
            register.candidates.push(candidate);
            register.all.push(candidate);
        }
        self.in_flight.insert(op, Op { segment, sectors });
        op
    }

    /// It was acknowledged.
    pub fn on_acknowledged(&mut self, op: OpId) {
        let now = self.tick();
        let Some(Op { segment, sectors }) = self.in_flight.remove(&op) else { return };
        for sector in sectors {
            let register = self.registers.get_mut(&(segment, sector)).expect("it was begun");
            register.on_effective(op, now);
            if is_watched(sector) {
                println!("{segment} {sector}: write {op} acknowledged at {now}");
            }
        }
    }

    /// A recovery is done: what was in flight, or unknown, has taken effect or never will.
    pub fn on_recovered(&mut self) {
        let now = self.tick();
        for (op, Op { segment, sectors }) in std::mem::take(&mut self.in_flight) {
            for sector in sectors {
                let register = self.registers.get_mut(&(segment, sector)).expect("it was begun");
                let candidate = register.candidates.iter_mut().find(|candidate| candidate.op == op);
                if let Some(candidate) = candidate {
                    candidate.settled = candidate.settled.min(now);
                }
            }
        }
    }

    /// A volume is gone.
    pub fn forget_volume(&mut self, volume: base::VolumeId) {
        self.registers.retain(|(segment, _), _| segment.volume != volume);
        self.in_flight.retain(|_, op| op.segment.volume != volume);
    }

    /// A read begins.
    pub fn begin_read(&mut self, segment: SegmentId, sectors: std::ops::Range<u64>) -> ReadToken {
        let invoked = self.tick();
        let allowed = sectors.clone().map(|sector| self.candidates(segment, sector)).collect();
        ReadToken { segment, first: sectors.start, invoked, allowed }
    }

    fn candidates(&self, segment: SegmentId, sector: u64) -> Vec<(OpId, bool)> {
        match self.registers.get(&(segment, sector)) {
            Some(register) => register.candidates.iter().map(|candidate| (candidate.op, candidate.zeros)).collect(),
            None => vec![(0, true)],
        }
    }

    /// A read ends with `data`; says what is wrong with it.
    pub fn end_read(&mut self, token: &ReadToken, data: &[u8]) -> Result<(), String> {
        self.tick();
        assert_eq!(data.len(), token.allowed.len() * SECTOR as usize, "a read returns what was asked for");
        for (i, (bytes, allowed)) in data.chunks_exact(SECTOR as usize).zip(&token.allowed).enumerate() {
            let sector = token.first + i as u64;
            let value = decode(token.segment, sector, bytes)
                .map_err(|what| format!("sector {sector} of {}: {what}", token.segment))?;
            let now = self.candidates(token.segment, sector);
            if is_watched(sector) {
                println!("{} {sector}: read from {} to {}: {value}", token.segment, token.invoked, self.clock);
            }
            let possible = |candidates: &[(OpId, bool)]| {
                candidates.iter().any(|&(op, zeros)| if value == 0 { zeros } else { op == value })
            };
            // Written, and perhaps overwritten, while the read was on its way.
            let meanwhile = || {
                let register = self.registers.get(&(token.segment, sector));
                let later =
                    |c: &Candidate| c.invoked > token.invoked && if value == 0 { c.zeros } else { c.op == value };
                register.is_some_and(|register| register.all.iter().any(later))
            };
            if !possible(allowed) && !possible(&now) && !meanwhile() {
                return Err(format!(
                    "sector {sector} of {}: holds write {value}, but may hold only {allowed:?} or {now:?}",
                    token.segment
                ));
            }
            if let Some(register) = self.registers.get_mut(&(token.segment, sector)) {
                // Zeros do not say which discard they come from; perhaps from one that is overwritten by now.
                let was_there = |candidate: &Candidate| allowed.iter().any(|&(op, _)| op == candidate.op);
                let zeros = register.all.iter().filter(|c| c.zeros && (was_there(c) || c.invoked > token.invoked));
                let sources = zeros.count() + usize::from(allowed.contains(&(0, true)));
                register.on_seen(value, token.invoked, (value > 0 || sources == 1).then_some(self.clock));
            }
        }
        Ok(())
    }
}

impl Default for Register {
    /// Zeros, as if written by nobody before the beginning.
    fn default() -> Self {
        let initial = Candidate { op: 0, zeros: true, invoked: 0, settled: 0 };
        Register { candidates: vec![initial], all: Vec::new() }
    }
}

impl Register {
    fn on_effective(&mut self, op: OpId, now: u64) {
        let Some(found) = self.candidates.iter_mut().find(|candidate| candidate.op == op) else { return };
        found.settled = found.settled.min(now);
        let invoked = found.invoked;
        self.candidates.retain(|other| other.op == op || other.settled > invoked);
    }

    /// A read that was invoked at `invoked` returned `value`. `now`, if it is certain which write that was.
    fn on_seen(&mut self, value: OpId, invoked: u64, now: Option<u64>) {
        let is_seen = |candidate: &Candidate| if value == 0 { candidate.zeros } else { candidate.op == value };
        let seen: Vec<OpId> = self.candidates.iter().filter(|c| is_seen(c)).map(|c| c.op).collect();
        if seen.is_empty() {
            // It was overwritten while the read was on its way.
            return;
        }
        self.candidates.retain(|other| is_seen(other) || other.settled > invoked);
        if let ([only], Some(now)) = (&seen[..], now) {
            self.on_effective(*only, now);
        }
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
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let op = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let mut expected = [0; SECTOR as usize];
    encode(op, segment, sector, &mut expected);
    match expected == bytes {
        true => Ok(op),
        false => Err(format!("bytes that nobody wrote there: {:02x?}", &bytes[..32])),
    }
}
