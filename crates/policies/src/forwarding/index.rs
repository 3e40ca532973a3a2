//! What of one segment is in logs: the agent's index (DiffForward, §3.5).
//!
//! The paper has a tree by address and a list by serial through its nodes. Here the tree is an interval map, whose pieces are what
//! can be read of each entry, and the list is a row of entries, since serials have no gaps.

use std::collections::VecDeque;
use std::ops::Range;

use base::{IntervalMap, Split};

/// An entry's place among the entries of its segment. The first one is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Serial(pub u64);

/// Which log of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogNumber(pub u8);

/// What an entry makes of its range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Content {
    /// Bytes, from an address of its log on.
    Data(u64),
    /// Nothing: it was discarded. That is noted at this address of its log.
    Zeros(u64),
}

/// Where a piece of a segment is to be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The entry that it is of.
    pub serial: Serial,
    /// The entry's log.
    pub log: LogNumber,
    /// What is there.
    pub content: Content,
    /// How many writes were put into a log before, one after the other, only because each overlapped the one before.
    pub reschedules: u8,
}

impl Split for Place {
    fn split_off(&mut self, at: u64) -> Place {
        let content = match self.content {
            Content::Data(address) => Content::Data(address + at),
            Content::Zeros(address) => Content::Zeros(address),
        };
        Place { content, ..*self }
    }
}

/// A range of the segment, and where it is: in a log, or with the owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Bytes of the segment.
    pub range: Range<u64>,
    /// None: its owner has it.
    pub place: Option<Place>,
}

/// What becomes of a piece of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// Its owner may have it.
    Owner(Range<u64>),
    /// It has to go to a log, since it covers an entry; so many were rescheduled in a row, with this one.
    Log(Range<u64>, u8),
    /// It covers an entry, and waits until all are merged through this one: too many were rescheduled in a row.
    Wait(Range<u64>, Serial),
}

/// Bounds of an index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IndexSettings {
    /// Entries and pieces that there may be of a segment: who finds so many goes to the owner, or waits.
    pub entries_max: usize,
    /// Bytes that may wait in logs to be merged.
    pub bytes_max: u64,
    /// How many writes in a row may be rescheduled, unless more than [`WAITED_FOR`] would have to be merged first.
    pub reschedules_max: u8,
}

/// More bytes than these nobody waits for because too many were rescheduled in a row: in the middle of a burst, or behind it, that
/// would be longer than the burst takes. One more of them is a write more, and no worse than those before it.
const WAITED_FOR: u64 = 4 << 20;

impl Default for IndexSettings {
    fn default() -> Self {
        IndexSettings { entries_max: 16_384, bytes_max: 256 << 20, reschedules_max: 8 }
    }
}

/// Entries that an owner is asked to merge, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// When all of it is written, everything is merged through this entry.
    pub through: Serial,
    /// What is to be written: ranges of the segment, and where their bytes are.
    pub parts: Vec<(Range<u64>, Place)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// It is on its way to its log.
    Open,
    /// It is there.
    Logged,
    /// It counts for nothing, wherever it is.
    Void,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry {
    range: Range<u64>,
    place: Place,
    state: State,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Index {
    settings: IndexSettings,
    /// What can be read in logs.
    pieces: IntervalMap<Place>,
    /// By serial, without a gap; the first one is the one after `merged`.
    entries: VecDeque<Entry>,
    merged: Serial,
    /// Of all entries.
    bytes: u64,
}

impl Index {
    /// Nothing is in a log; entries go on behind this serial.
    pub fn new(settings: IndexSettings, merged: Serial) -> Index {
        Index { settings, pieces: IntervalMap::new(), entries: VecDeque::new(), merged, bytes: 0 }
    }

    /// What a traversal of all logs found of a segment, whose watermark is `merged`: entries with their places, in any order.
    /// Those that were merged count for nothing, nor do those that are `void`, and a serial between others may be in no log. No serial
    /// that was found, or is void, is used again: what is known of it would hold for another entry.
    pub fn found(settings: IndexSettings, merged: Serial, void: &[Serial], entries: Vec<(Range<u64>, Place)>) -> Index {
        let mut entries = entries;
        entries.retain(|(_, place)| place.serial > merged && !void.contains(&place.serial));
        entries.sort_by_key(|(_, place)| place.serial);
        let mut index = Index::new(settings, merged);
        for (range, place) in entries {
            index.leave_out_below(place.serial);
            // The same one twice: a log that was moved while it was read.
            if index.next_serial() == place.serial {
                index.push(range, place);
                index.logged(place.serial);
            }
        }
        if let Some(last) = void.iter().max() {
            index.leave_out_below(Serial(last.0 + 1));
        }
        index
    }

    /// What becomes of a write of this range that is no burst: its pieces, by address.
    pub fn route(&self, range: Range<u64>) -> Vec<Route> {
        self.find(range)
            .into_iter()
            .map(|Part { range, place }| match place {
                None => Route::Owner(range),
                Some(place) if self.is_enough(&place) => Route::Wait(range, place.serial),
                Some(place) if self.is_full() => Route::Wait(range, place.serial),
                Some(place) => Route::Log(range, place.reschedules.saturating_add(1)),
            })
            .collect()
    }

    fn is_enough(&self, place: &Place) -> bool {
        place.reschedules >= self.settings.reschedules_max && self.bytes <= WAITED_FOR
    }

    /// Whether no more entries may begin.
    pub fn is_full(&self) -> bool {
        self.entries.len().max(self.pieces.len()) >= self.settings.entries_max || self.bytes >= self.settings.bytes_max
    }

    /// A write of this range begins to go to a log. Nothing that it overlaps is on its way.
    pub fn begin(&mut self, range: Range<u64>, log: LogNumber, content: Content, reschedules: u8) -> Serial {
        let serial = self.next_serial();
        self.push(range, Place { serial, log, content, reschedules });
        serial
    }

    /// It is durable there: from here on it is what is read.
    pub fn logged(&mut self, serial: Serial) {
        let Some(entry) = self.entry(serial) else { return };
        entry.state = State::Logged;
        let (range, place) = (entry.range.clone(), entry.place);
        self.pieces.insert(range, place);
    }

    /// It is not there, or was refused with an error after which nobody knows, and a durable note says that it is void: only then may
    /// its client be told so, and what overlaps it begin. Without that note a traversal might find it, after newer writes.
    pub fn failed(&mut self, serial: Serial) {
        let Some(entry) = self.entry(serial) else { return };
        entry.state = State::Void;
    }

    /// Where a range is to be read: parts in address order that add up to it.
    pub fn find(&self, range: Range<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for (covered, place) in self.pieces.overlapping(range.clone()) {
            if covered.start > at {
                parts.push(Part { range: at..covered.start, place: None });
            }
            let from = covered.start.max(range.start);
            let mut place = *place;
            if from > covered.start {
                place = place.split_off(from - covered.start);
            }
            at = covered.end.min(range.end);
            parts.push(Part { range: from..at, place: Some(place) });
        }
        if at < range.end {
            parts.push(Part { range: at..range.end, place: None });
        }
        parts
    }

    /// Whether nothing of a range is in a log.
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        self.pieces.is_free(range)
    }

    /// What is to be merged next: entries from the first one on, up to one that is on its way, or to so many bytes and parts, but at
    /// least one that can be read. None: nothing waits.
    pub fn next_batch(&self, bytes_max: u64, parts_max: usize) -> Option<Batch> {
        let mut batch = Batch { through: self.merged, parts: Vec::new() };
        let mut bytes = 0;
        for entry in self.entries.iter().take_while(|entry| entry.state != State::Open) {
            let mut parts: Vec<(Range<u64>, Place)> = self.pieces_of(entry).collect();
            let more: u64 = parts.iter().map(|(range, _)| range.end - range.start).sum();
            let is_too_much = bytes + more > bytes_max || batch.parts.len() + parts.len() > parts_max;
            if is_too_much && !batch.parts.is_empty() {
                break;
            }
            bytes += more;
            batch.parts.append(&mut parts);
            batch.through = entry.place.serial;
        }
        (batch.through > self.merged).then_some(batch)
    }

    /// All is merged through this entry, and a durable watermark says so. Gives the logs and contents of entries that nobody needs
    /// any more.
    pub fn merged(&mut self, through: Serial) -> Vec<(LogNumber, Content)> {
        let mut released = Vec::new();
        while self.merged < through {
            let Some(entry) = self.entries.pop_front() else { break };
            let own: Vec<Range<u64>> = self.pieces_of(&entry).map(|(range, _)| range).collect();
            own.into_iter().for_each(|range| drop(self.pieces.remove(range)));
            self.merged = entry.place.serial;
            self.bytes -= entry.bytes();
            if entry.state != State::Void || !entry.range.is_empty() {
                released.push((entry.place.log, entry.place.content));
            }
        }
        released
    }

    /// All is merged through this one.
    pub fn watermark(&self) -> Serial {
        self.merged
    }

    /// Whether this entry is after the watermark, and counts.
    pub fn has(&self, serial: Serial) -> bool {
        let at = serial.0.checked_sub(self.merged.0 + 1).and_then(|at| self.entries.get(at as usize));
        at.is_some_and(|entry| entry.state != State::Void)
    }

    /// Those after the watermark that count for nothing, wherever they may be found.
    pub fn void(&self) -> impl Iterator<Item = Serial> {
        self.entries.iter().filter(|entry| entry.state == State::Void).map(|entry| entry.place.serial)
    }

    /// Entries that wait to be merged, those on their way included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is in a log, or on its way.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn next_serial(&self) -> Serial {
        Serial(self.merged.0 + self.entries.len() as u64 + 1)
    }

    /// The serials up to this one are in no log.
    fn leave_out_below(&mut self, next: Serial) {
        while self.next_serial() < next {
            let place =
                Place { serial: self.next_serial(), log: LogNumber(0), content: Content::Zeros(0), reschedules: 0 };
            self.entries.push_back(Entry { range: 0..0, place, state: State::Void });
        }
    }

    fn push(&mut self, range: Range<u64>, place: Place) {
        assert!(!range.is_empty(), "an entry has a range");
        let entry = Entry { range, place, state: State::Open };
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    fn entry(&mut self, serial: Serial) -> Option<&mut Entry> {
        let at = serial.0.checked_sub(self.merged.0 + 1)?;
        self.entries.get_mut(usize::try_from(at).ok()?)
    }

    /// What can still be read of an entry.
    fn pieces_of(&self, entry: &Entry) -> impl Iterator<Item = (Range<u64>, Place)> {
        let serial = entry.place.serial;
        let over = self.pieces.overlapping(entry.range.clone());
        over.filter(move |(_, place)| place.serial == serial).map(|(range, place)| (range, *place))
    }

    /// Asserts what always holds.
    pub fn check_invariants(&self) {
        let first = self.merged.0 + 1;
        for (at, entry) in self.entries.iter().enumerate() {
            assert_eq!(entry.place.serial.0, first + at as u64, "serials have no gap");
        }
        for (range, place) in self.pieces.iter() {
            let at = place.serial.0.checked_sub(first).expect("what is merged is in no log");
            let entry = &self.entries[at as usize];
            assert_eq!(entry.state, State::Logged, "what is read is durable");
            assert!(entry.range.start <= range.start && range.end <= entry.range.end, "and of that entry");
        }
        assert_eq!(self.bytes, self.entries.iter().map(Entry::bytes).sum::<u64>());
    }
}

impl Entry {
    /// What it takes in its log.
    fn bytes(&self) -> u64 {
        match self.place.content {
            Content::Data(_) => self.range.end - self.range.start,
            Content::Zeros(_) => 0,
        }
    }
}
