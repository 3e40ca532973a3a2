//! Seeded bugs: one deliberate mistake for each safety rule, so that the simulation can prove that it would notice.
//!
//! A checker that never saw a violation proves little. So each rule of docs/SAFETY.md that the code can break is
//! broken once, on purpose, at the place that keeps it: `if seeded::is_on("name") { ... }`. `lab::bugs` switches one
//! of them on and counts the seeds until a simulated run notices.
//!
//! Without the feature `seeded-bugs` [`is_on`] is `false` at compile time, and a binary contains nothing of this. With
//! it, the one bug that is on is chosen at run time, for each thread by itself: a build for each bug would take an
//! hour, and a run of a simulated world is one thread.

/// A rule that is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeededBug {
    /// What the sources and the command line call it.
    pub name: &'static str,
    /// The rule, by its number in docs/SAFETY.md.
    pub rule: u8,
    /// What goes wrong.
    pub what: &'static str,
    /// What must happen before it shows: nothing, one accident, or two of different kinds.
    pub needs: &'static [&'static str],
    /// Whether it shows so seldom that hunting for it takes minutes.
    pub is_rare: bool,
}

const fn bug(rule: u8, name: &'static str, what: &'static str, needs: &'static [&'static str]) -> SeededBug {
    SeededBug { name, rule, what, needs, is_rare: false }
}

const fn rare(rule: u8, name: &'static str, what: &'static str, needs: &'static [&'static str]) -> SeededBug {
    SeededBug { is_rare: true, ..bug(rule, name, what, needs) }
}

/// Every seeded bug, by rule.
pub const ALL: &[SeededBug] = &[
    bug(1, "volume-id-reused", "A volume gets the id of one that was deleted.", &[]),
    bug(1, "segment-sequence-reused", "After a recovery, writes get sequences that journaled ones have.", &["kill"]),
    bug(
        3,
        "recycled-journal-replayed",
        "An append of a journal file's earlier life passes as one of this life.",
        &["kill"],
    ),
    bug(3, "torn-append-accepted", "A replay does not compare data with its checksums.", &["power loss", "torn write"]),
    rare(
        4,
        "block-not-verified",
        "Blocks that are read together are not compared with the checksums in the index.",
        &["rot"],
    ),
    bug(6, "acked-before-durable", "A journaled write is acknowledged when its append is submitted.", &["kill"]),
    bug(
        6,
        "acked-out-of-order",
        "A journaled write is acknowledged when its append is durable, though an earlier one is not.",
        &["kill"],
    ),
    rare(6, "acked-in-one-copy", "An append is confirmed when its first copy is durable.", &["kill", "slow disk"]),
    bug(
        6,
        "large-acked-by-record",
        "A large write is acknowledged when its record is durable, though its data is not.",
        &["kill"],
    ),
    bug(6, "append-not-dsync", "Prepared files are opened without O_DSYNC.", &["power loss"]),
    rare(6, "table-acked-early", "A change of the volume table is acknowledged before it is durable.", &["kill"]),
    bug(7, "block-written-again", "An append begins in the last block of the one before.", &[]),
    rare(
        8,
        "acked-before-applied",
        "A journaled write is acknowledged while it waits for an earlier one of its segment.",
        &[],
    ),
    bug(8, "large-write-hidden", "A large write leaves older data of its range in the caches.", &[]),
    bug(9, "dumping-cache-hidden", "A cache that is being dumped is not read any more.", &[]),
    bug(10, "base-not-merged", "A block that was written in part is dumped over zeros.", &[]),
    bug(
        10,
        "lone-block-not-verified",
        "A block that is read by itself, like the base of a partial write, is not compared with its checksum.",
        &["rot"],
    ),
    rare(
        11,
        "full-part-acked",
        "A write of which one part found no space is acknowledged for the others.",
        &["full disk"],
    ),
    rare(
        12,
        "append-goes-on-after-error",
        "After a failed append the journal goes on in the same file.",
        &["write error", "kill"],
    ),
    bug(13, "name-not-synced", "A new file is used before its name is durable.", &["power loss"]),
    bug(13, "dump-before-data", "A dump record goes out before the blocks that it names are durable.", &["kill"]),
    rare(
        14,
        "locks-not-taken",
        "A start does not wait for the locks of what an earlier life was writing to.",
        &["kill", "slow disk"],
    ),
    bug(15, "durable-through-ahead", "An append says that the appends in flight before it are durable.", &["kill"]),
    rare(
        15,
        "rotten-journal-cut",
        "A damaged append is cut off with what follows, though later ones say that it was durable.",
        &["rot", "kill"],
    ),
    rare(
        15,
        "rotten-log-cut",
        "A damaged transaction record is cut off with what follows, though it was durable.",
        &["rot", "restart"],
    ),
    rare(
        16,
        "log-not-sealed",
        "A clean stop leaves the transaction log and the volume table without a seal.",
        &["restart", "rot"],
    ),
    rare(
        17,
        "large-write-not-spread",
        "A large write that a recovery found in one copy is not brought to the others.",
        &["kill"],
    ),
    rare(
        17,
        "journal-not-spread",
        "An append that a recovery found in one copy is not brought to the others.",
        &["kill", "lost copy"],
    ),
    bug(18, "dump-counted-early", "Writes count as dumped from the begin of their dump on.", &["kill"]),
    bug(18, "journal-trimmed-early", "A journal file is deleted when it is full, dumped or not.", &["kill"]),
    bug(
        18,
        "replay-starts-late",
        "A dump record lets the replay begin at the journal's end, whatever other segments have not dumped.",
        &["kill"],
    ),
    bug(18, "checkpoint-over-in-flight", "A checkpoint stands for records that are still in flight.", &["kill"]),
    bug(
        18,
        "large-write-not-proven",
        "A large write counts after a crash by its record alone.",
        &["kill", "torn write"],
    ),
    bug(
        18,
        "dropped-volume-forgotten",
        "A deleted volume is forgotten while its writes still stand in a journal.",
        &["kill"],
    ),
    bug(
        19,
        "deleted-file-returns",
        "A directory that comes back keeps files that were deleted meanwhile.",
        &["lost disk", "restart"],
    ),
    rare(
        21,
        "stale-directory-accepted",
        "A directory that was put back to an older state counts as a member.",
        &["stale disk", "restart"],
    ),
    rare(23, "seen-not-synced", "A start does not sync the unsealed files that it reads.", &["kill", "power loss"]),
    rare(
        24,
        "only-copy-given-up",
        "A directory that fails is given up although it has the only copy of a file.",
        &["write error"],
    ),
    bug(25, "older-write-replayed", "A replay puts journaled writes over newer large ones.", &["kill"]),
    bug(25, "join-by-arrival", "Of two index entries for a block the one that comes later wins.", &[]),
    bug(
        26,
        "move-hides-newer-write",
        "A block that garbage collection moved counts as newer than writes that came meanwhile.",
        &[],
    ),
    bug(27, "discard-not-replayed", "A replay leaves discards out.", &["kill"]),
    bug(27, "tombstone-dropped-early", "A merge drops tombstones although older tables are left.", &[]),
    rare(28, "file-removed-under-reader", "A data file is deleted while a read that knows it is under way.", &[]),
    bug(28, "reference-not-counted", "A block that is written where zeros were does not count as live.", &[]),
    bug(
        30,
        "write-order-of-each-loop",
        "A write does not wait for one that it overlaps, if that came in by another loop.",
        &[],
    ),
    rare(
        32,
        "doubtful-volume-served",
        "Clients keep a volume of which a deletion failed that the next start may find.",
        &["write error", "kill"],
    ),
    rare(33, "labels-not-read", "A start does not look for large writes that the log has not got.", &["kill"]),
    rare(
        33,
        "large-acked-behind-hole",
        "A large write is acknowledged by its label, though an earlier append of its file is not durable.",
        &["write error", "kill"],
    ),
    rare(
        33,
        "data-file-not-announced",
        "A large write is acknowledged before the log says durably whose file it is in.",
        &["kill"],
    ),
    rare(
        33,
        "label-of-earlier-life",
        "A label that a recycled file held before counts as one of this life.",
        &["kill"],
    ),
    rare(
        33,
        "labelled-not-logged",
        "A start serves large writes that it found by their labels, and does not log them.",
        &["kill"],
    ),
    rare(
        33,
        "labelled-order-forgotten",
        "A start forgets which place in their segment's order large writes had that it found by their labels.",
        &["kill"],
    ),
    bug(
        34,
        "read-ahead-believed",
        "What was read ahead is the answer, wherever the index says that the block is now.",
        &[],
    ),
    bug(35, "fence-misses-files", "Whoever is fenced goes on in its files, and in new ones.", &["pause or cut"]),
    bug(36, "fence-fences-nothing", "A fence is confirmed, and nobody is fenced.", &["kill"]),
    bug(37, "lost-answer-is-done", "An append without an answer counts as confirmed.", &["reset or kill"]),
    rare(38, "adopt-answered-early", "An engine serves a segment before Adopt is durable.", &["kill"]),
    bug(39, "source-deleted-early", "The logs of a dead engine go when their end is known.", &["kill"]),
    bug(40, "silent-assignee-replaced", "An assignee that does not answer loses the segment.", &[]),
    rare(40, "orders-before-durable", "A manager gives orders before what they follow from is durable.", &["kill"]),
    bug(41, "estate-not-sealed", "A recoverer says what it found, and seals nothing.", &["kill"]),
    bug(42, "release-forgotten-at-once", "Whoever releases a segment is told to forget that at once.", &[]),
    rare(42, "release-not-in-checkpoint", "A checkpoint leaves out what was released.", &["kill"]),
    bug(43, "named-files-are-strays", "An adopter removes older files that its own log names.", &[]),
    bug(44, "grant-kept-by-the-dead", "A fence leaves the dead what they were granted.", &["kill"]),
    rare(45, "old-manager-obeyed", "An engine follows a manager though it knows a newer one.", &["pause or cut"]),
    rare(45, "old-manager-writes", "Whoever begins a term does not fence who wrote before.", &["pause or cut"]),
    bug(46, "epoch-of-another-segment", "A router compares replies with the epochs of other segments.", &[]),
    bug(47, "old-attachment-served", "A server opens sessions for attachments that are over.", &[]),
    bug(48, "lost-write-not-retried", "A write of which the answer was lost counts as done.", &["reset or kill"]),
    bug(49, "dropped-beside", "A volume is gone without those of its segments that are on their way.", &[]),
    bug(50, "manager-never-doubts", "A manager that misses many servers asks nobody.", &["cut"]),
    bug(51, "guest-answered-early", "A write of a virtual machine is answered when it begins.", &[]),
    bug(51, "guest-not-marked", "A request of a virtual machine is not marked as in flight.", &["kill"]),
    bug(51, "guest-stays-marked", "An answered request of a virtual machine stays marked as in flight.", &["kill"]),
    bug(
        52,
        "log-trimmed-before-watermark",
        "Entries are forgotten before the book says that they are merged.",
        &["kill"],
    ),
    bug(53, "written-over-logged", "A write goes to the owner, over what is in a log.", &[]),
    rare(53, "merged-by-two", "A batch comes home while another one of the same segment still does.", &[]),
    bug(54, "logs-not-traversed", "Whoever attaches a volume does not look into its logs.", &[]),
    rare(54, "logs-of-an-older-attachment", "Logs are given to whoever is attached no more.", &["cut"]),
    bug(
        58,
        "append-unguarded",
        "An append to a part is done whether or not that is there, and open.",
        &["pause or cut"],
    ),
    rare(58, "registered-though-fenced", "A file gets its record though its life is fenced.", &["pause or cut"]),
    rare(61, "fenced-changes-others", "A life that was fenced goes on with files of others.", &["pause or cut"]),
];

impl SeededBug {
    /// Whether the rule is about segments that change hands, which they do where there are several servers.
    pub fn is_of_several(&self) -> bool {
        (35..=50).contains(&self.rule) || self.is_of_forwarding() || self.is_of_pools()
    }

    /// Whether the rule is about bursts in logs.
    pub fn is_of_forwarding(&self) -> bool {
        (52..=57).contains(&self.rule)
    }

    /// Whether the rule is about files in a pool.
    pub fn is_of_pools(&self) -> bool {
        (58..=61).contains(&self.rule)
    }
}

/// The bug of that name.
pub fn find(name: &str) -> Option<&'static SeededBug> {
    ALL.iter().find(|bug| bug.name == name)
}

/// Whether this bug is on: never, in a build without the feature.
#[cfg(not(feature = "seeded-bugs"))]
#[inline(always)]
pub const fn is_on(_name: &str) -> bool {
    false
}

#[cfg(feature = "seeded-bugs")]
mod switch {
    use std::cell::Cell;

    use super::{SeededBug, find};

    thread_local! {
        static CHOSEN: Cell<Option<&'static SeededBug>> = const { Cell::new(None) };
        static REACHED: Cell<u64> = const { Cell::new(0) };
    }

    /// Whether this bug is on in this thread.
    pub fn is_on(name: &str) -> bool {
        let on = CHOSEN.get().is_some_and(|chosen| chosen.name == name);
        if on {
            REACHED.set(REACHED.get() + 1);
        }
        on
    }

    /// Switches this bug on in this thread, and every other one off; `None`: all off.
    ///
    /// # Panics
    /// If there is no bug of that name.
    pub fn choose(name: Option<&str>) {
        let chosen = name.map(|name| find(name).unwrap_or_else(|| panic!("there is no seeded bug {name:?}")));
        CHOSEN.set(chosen);
        REACHED.set(0);
    }

    /// How often the code came by the bug that is on, since it was switched on: a bug that nothing reaches cannot show.
    pub fn reached() -> u64 {
        REACHED.get()
    }
}

#[cfg(feature = "seeded-bugs")]
pub use switch::{choose, is_on, reached};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_needs_are_bounded() {
        for (index, bug) in ALL.iter().enumerate() {
            assert!(ALL[..index].iter().all(|other| other.name != bug.name), "{} twice", bug.name);
            assert!(bug.needs.len() <= 2 && (1..=61).contains(&bug.rule), "{}", bug.name);
        }
    }

    #[cfg(feature = "seeded-bugs")]
    #[test]
    fn one_is_on_at_a_time() {
        assert!(!is_on(ALL[0].name));
        choose(Some(ALL[0].name));
        assert!(is_on(ALL[0].name) && !is_on(ALL[1].name) && reached() == 1);
        choose(None);
        assert!(!is_on(ALL[0].name) && reached() == 0);
    }
}
