//! Sets of pending operations: one bit per slot.

/// More operations than this that are pending at one moment end the check with `TooConcurrent`.
pub const PENDING_MAX: usize = WORDS * 64;

const WORDS: usize = 4;

/// The place of a pending operation in a [`Mask`]; free again when the operation has ended.
pub(super) type Slot = u8;

const _: () = assert!(PENDING_MAX - 1 <= Slot::MAX as usize, "a slot is a number of a bit");

/// A set of slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Mask([u64; WORDS]);

impl Mask {
    pub fn has(&self, slot: Slot) -> bool {
        self.0[usize::from(slot) / 64] & bit(slot) != 0
    }

    pub fn insert(&mut self, slot: Slot) {
        self.0[usize::from(slot) / 64] |= bit(slot);
    }

    pub fn remove(&mut self, slot: Slot) {
        self.0[usize::from(slot) / 64] &= !bit(slot);
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Everything that is in one of both.
    pub fn union(mut self, other: Mask) -> Mask {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
        self
    }

    /// The lowest slot that is not in the set.
    pub fn first_free(&self) -> Option<Slot> {
        let word = self.0.iter().position(|&word| word != u64::MAX)?;
        Slot::try_from(word * 64 + self.0[word].trailing_ones() as usize).ok()
    }
}

fn bit(slot: Slot) -> u64 {
    1 << (slot % 64)
}
