//! Where the time of a request went, stage by stage: a few integers that travel with it.
//!
//! Each part that a request passes adds how long it held it up, from clock readings that it takes anyway, and whoever
//! knows how long the request was there in all gives what is left to one stage. So the stages of a request add up to its
//! time. What made it slow, if it was, is decided in `policies::slow_requests`.

/// What a request can wait for, in the order in which it meets it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// A slot of its connection, or memory for its payload: too much is in flight.
    Intake,
    /// The rest of its payload, which the client had not sent yet.
    Payload,
    /// An earlier write that it overlaps.
    Order,
    /// The way to the loop that has its segment, and back.
    Crossing,
    /// Tokens of admission.
    Tokens,
    /// A slot of the engine.
    Slot,
    /// Memory: dumps are behind.
    Memory,
    /// Space: garbage collection is behind.
    Space,
    /// Room in the index or the log, or a new data file, for a large write.
    Room,
    /// A journal file: dumps are behind, or a disk is slow to give one.
    JournalFile,
    /// Appends in flight before its own could go out, and the end of the turn.
    Gather,
    /// Something failed, and was tried again.
    Retry,
    /// The disk, with the append.
    Append,
    /// An append before its own, which landed later.
    JournalOrder,
    /// An earlier write of its segment.
    Apply,
    /// Pages of the index.
    Index,
    /// The disk, with the read.
    Disk,
    /// Another copy, because one was wrong.
    Repair,
    /// Tasks of other requests on its loop, each of them short, and its own processor time.
    Turn,
    /// The client, until it took its reply.
    Reply,
    /// A loop that did something else, for long, without looking at disk and network.
    Busy,
}

/// How many there are.
const STAGES: usize = Stage::Busy as usize + 1;

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; STAGES] = [
        Stage::Intake,
        Stage::Payload,
        Stage::Order,
        Stage::Crossing,
        Stage::Tokens,
        Stage::Slot,
        Stage::Memory,
        Stage::Space,
        Stage::Room,
        Stage::JournalFile,
        Stage::Gather,
        Stage::Retry,
        Stage::Append,
        Stage::JournalOrder,
        Stage::Apply,
        Stage::Index,
        Stage::Disk,
        Stage::Repair,
        Stage::Turn,
        Stage::Reply,
        Stage::Busy,
    ];

    /// Its name in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Intake => "intake",
            Stage::Payload => "payload",
            Stage::Order => "overlap",
            Stage::Crossing => "other_loop",
            Stage::Tokens => "tokens",
            Stage::Slot => "engine_slot",
            Stage::Memory => "memory",
            Stage::Space => "space",
            Stage::Room => "room",
            Stage::JournalFile => "journal_file",
            Stage::Gather => "gather",
            Stage::Retry => "retry",
            Stage::Append => "append",
            Stage::JournalOrder => "journal_order",
            Stage::Apply => "segment_order",
            Stage::Index => "index",
            Stage::Disk => "disk_read",
            Stage::Repair => "read_repair",
            Stage::Turn => "turn",
            Stage::Reply => "reply",
            Stage::Busy => "busy_loop",
        }
    }
}

/// How long each stage held a request up, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passage {
    ns: [u64; STAGES],
    /// What was missing when it waited for tokens: the name of a reason of admission; empty if it did not.
    pub tokens: &'static str,
    /// The task that ran longest while its loop was busy; empty if it was not.
    pub task: &'static str,
    /// It went to another loop and back.
    pub crossed: bool,
}

impl Passage {
    /// How long `stage` held it up.
    #[inline]
    pub fn of(&self, stage: Stage) -> u64 {
        self.ns[stage as usize]
    }

    /// It waited for `stage`.
    #[inline]
    pub fn add(&mut self, stage: Stage, ns: u64) {
        self.ns[stage as usize] += ns;
    }

    /// All stages together.
    pub fn total_ns(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// It was `total_ns` on its way so far: what no stage has accounted for is `stage`.
    #[inline]
    pub fn fill(&mut self, stage: Stage, total_ns: u64) {
        self.add(stage, total_ns.saturating_sub(self.total_ns()));
    }

    /// Adds what another part found of the same request.
    #[inline]
    pub fn absorb(&mut self, other: &Passage) {
        self.ns.iter_mut().zip(other.ns).for_each(|(mine, theirs)| *mine += theirs);
        if !other.tokens.is_empty() {
            self.tokens = other.tokens;
        }
        if !other.task.is_empty() {
            self.task = other.task;
        }
        self.crossed |= other.crossed;
    }

    /// Its loop was busy for `ns` of that time, most of all with `task`. The longest of the `stages` that wait for a
    /// loop gives that part of its time away: while the loop did not look, nobody can say when disk or client were
    /// done.
    pub fn carve_busy(&mut self, stages: impl Iterator<Item = Stage>, ns: u64, task: &'static str) {
        let Some(longest) = stages.max_by_key(|stage| self.of(*stage)) else { return };
        let part = ns.min(self.of(longest));
        self.ns[longest as usize] -= part;
        self.add(Stage::Busy, part);
        if part > 0 {
            self.task = task;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stages_are_listed_in_order_with_names_of_their_own() {
        assert!(Stage::ALL.iter().enumerate().all(|(index, stage)| *stage as usize == index));
        let names: std::collections::BTreeSet<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert_eq!(names.len(), STAGES);
    }

    #[test]
    fn stages_add_up_to_the_time_of_the_request() {
        let mut passage = Passage::default();
        passage.add(Stage::Append, 700);
        passage.fill(Stage::Turn, 1_000);
        passage.carve_busy([Stage::Append, Stage::Turn].into_iter(), 500, "merge");
        assert_eq!((passage.of(Stage::Append), passage.of(Stage::Turn), passage.of(Stage::Busy)), (200, 300, 500));
        assert_eq!((passage.total_ns(), passage.task), (1_000, "merge"));
        // More than there was is not given away, and a total that was overtaken takes nothing back.
        passage.carve_busy([Stage::Reply].into_iter(), 500, "dump");
        passage.fill(Stage::Turn, 10);
        assert_eq!((passage.total_ns(), passage.task), (1_000, "merge"));
        let mut whole = Passage::default();
        whole.add(Stage::Order, 5);
        whole.absorb(&passage);
        assert_eq!((whole.total_ns(), whole.task), (1_005, "merge"));
    }
}
