//! One step of one configuration: which pending writes take effect, in which combinations.
//!
//! The order of the writes before the last one does not matter, so a step is a set of them and the value of the last.
//! The result goes to `next`; without one the configuration ends here. The numbers of the rules are those of the
//! parent.

use super::{Configuration, Mask, Pending, Search, Slot, ValueIndex};

impl Search {
    /// Steps until a read of `value` has taken effect.
    pub(super) fn step_to_value(&mut self, from: &Configuration, value: ValueIndex) {
        let writes = self.undone_writes_of(from, value);
        let choices = self.choices_for_last(&writes, self.is_wanted(from, value));
        self.step(from, value, &choices);
    }

    /// Steps until the must in `slot`, which writes `value`, has taken effect.
    pub(super) fn step_to_write(&mut self, from: &Configuration, value: ValueIndex, slot: Slot) {
        if self.history.values[value as usize].writes == 1 {
            return self.step(from, value, &[single(slot)]);
        }
        // It ends now, so that no other pending write of the value has an earlier deadline: it is the first choice.
        let writes = self.undone_writes_of(from, value);
        let mut choices = self.choices_for_last(&writes, self.is_wanted(from, value));
        choices.retain(|choice| choice.has(slot));
        self.step(from, value, &choices);
    }

    /// Steps until the optional write in `slot` has taken effect, if anybody may care.
    pub(super) fn step_to_optional(&mut self, from: &Configuration, value: ValueIndex, slot: Slot) {
        if self.is_wanted(from, value) || !self.undone_reads_of(from, value).is_empty() {
            self.step(from, value, &[single(slot)]);
        }
    }

    /// Each of `choices` of writes of `value`, with each combination of other writes that go before.
    fn step(&mut self, from: &Configuration, value: ValueIndex, choices: &[Mask]) {
        let reads = self.undone_reads_of(from, value);
        let (before, branching) = self.writes_before(from, value);
        let base = Configuration { value, done: from.done.union(before).union(reads), ..*from };
        let first = self.next.len();
        self.next.extend(choices.iter().map(|&choice| Configuration { done: base.done.union(choice), ..base }));
        for of_value in branching.chunk_by(|a, b| a.value == b.value) {
            self.branch(from, of_value, first);
        }
    }

    /// The writes of other values that go along without a choice, with the reads that see them; and the undone writes
    /// of values that several operations write, by value and deadline.
    fn writes_before(&self, from: &Configuration, last: ValueIndex) -> (Mask, Vec<Pending>) {
        let mut before = Mask::default();
        let mut branching = Vec::new();
        for write in self.writes.iter().filter(|write| write.value != last && !from.done.has(write.slot)) {
            if self.history.values[write.value as usize].writes > 1 {
                branching.push(*write);
            } else if !self.is_wanted(from, write.value) {
                let reads = self.undone_reads_of(from, write.value);
                if write.must || !reads.is_empty() {
                    before.insert(write.slot);
                    before = before.union(reads);
                }
            }
        }
        branching.sort_unstable_by_key(|write| (write.value, write.deadline));
        (before, branching)
    }

    /// Multiplies the configurations of `next` from `first` on by the choices of `writes` of one value.
    fn branch(&mut self, from: &Configuration, writes: &[Pending], first: usize) {
        let value = writes[0].value;
        let reads = self.undone_reads_of(from, value);
        let end = self.next.len();
        let choices = self.choices_before(writes, self.is_wanted(from, value), !reads.is_empty());
        for choice in choices.iter().filter(|choice| !choice.is_empty()) {
            let more = choice.union(reads);
            for number in first..end {
                let configuration = self.next[number];
                self.next.push(Configuration { done: configuration.done.union(more), ..configuration });
            }
        }
        if !choices.contains(&Mask::default()) {
            self.next.drain(first..end);
        }
    }

    /// Sets of `writes` of one value, of which the last is the last of a step.
    fn choices_for_last(&self, writes: &[Pending], wanted: bool) -> Vec<Mask> {
        let (mut choices, spare) = prefixes(writes);
        choices.remove(0);
        if !wanted && choices.len() > 1 {
            choices.drain(..choices.len() - 1);
        }
        if wanted || choices.is_empty() {
            choices.extend(spare);
        }
        choices
    }

    /// Sets of `writes` of one value that may be overwritten in a step; the empty set is one of them.
    fn choices_before(&self, writes: &[Pending], wanted: bool, reads: bool) -> Vec<Mask> {
        let (mut choices, spare) = prefixes(writes);
        if wanted {
            choices.extend(spare.filter(|_| reads));
            return choices;
        }
        let all = choices.pop().unwrap_or_default();
        match spare {
            Some(spare) if all.is_empty() && reads => vec![spare],
            _ => vec![all],
        }
    }

    /// Whether the value may be needed after the operations that are pending now.
    fn is_wanted(&self, from: &Configuration, value: ValueIndex) -> bool {
        let facts = &self.history.values[value as usize];
        self.reads_to_come[value as usize] > 0 || from.wish == Some(value) || (facts.last_candidate && facts.writes > 1)
    }

    fn undone_writes_of(&self, from: &Configuration, value: ValueIndex) -> Vec<Pending> {
        let mut writes: Vec<Pending> = undone_of(&self.writes, from, value).copied().collect();
        writes.sort_unstable_by_key(|write| write.deadline);
        writes
    }

    fn undone_reads_of(&self, from: &Configuration, value: ValueIndex) -> Mask {
        undone_of(&self.reads, from, value).fold(Mask::default(), |reads, read| reads.union(single(read.slot)))
    }
}

fn undone_of<'a>(
    pending: &'a [Pending],
    from: &'a Configuration,
    value: ValueIndex,
) -> impl Iterator<Item = &'a Pending> {
    pending.iter().filter(move |pending| pending.value == value && !from.done.has(pending.slot))
}

/// Rule 4: the first musts of `writes`, from none to all; and the first optional write, if it ends before them.
fn prefixes(writes: &[Pending]) -> (Vec<Mask>, Option<Mask>) {
    let mut musts = vec![Mask::default()];
    let mut spare = None;
    for write in writes {
        let before = musts[musts.len() - 1];
        if write.must {
            musts.push(before.union(single(write.slot)));
        } else if musts.len() == 1 && spare.is_none() {
            spare = Some(single(write.slot));
        }
    }
    (musts, spare)
}

fn single(slot: Slot) -> Mask {
    let mut mask = Mask::default();
    mask.insert(slot);
    mask
}
