//! Names after a loss of power, against all outcomes that POSIX allows.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;

/// What paths mean: each file by a number of its own.
type Names = BTreeMap<String, u64>;

/// One change in the model: what each path that it touches means afterwards.
type Edits = Vec<(String, Option<u64>)>;

struct Model {
    disk: Namespace,
    now: Names,
    durable: Names,
    waiting: Vec<Edits>,
    files: BTreeMap<InodeId, u64>,
}

impl Model {
    fn new() -> Self {
        let mut disk = Namespace::new();
        for directory in ["a", "b"] {
            disk.create_directory(Path::new(directory)).unwrap();
        }
        let made = disk.changes_made();
        disk.sync_directory(Path::new(""), made).unwrap();
        Model { disk, now: Names::new(), durable: Names::new(), waiting: Vec::new(), files: BTreeMap::new() }
    }

    fn change(&mut self, edits: Edits) {
        apply(&mut self.now, &edits);
        self.waiting.push(edits);
    }

    fn step(&mut self, prng: &mut Prng) {
        let path = |prng: &mut Prng| format!("{}/{}", prng.pick(&["a", "b"]), prng.pick(&["x", "y", "z"]));
        let (from, to) = (path(prng), path(prng));
        match prng.below(8) {
            0..4 if !self.now.contains_key(&from) => {
                let id = self.disk.open(Path::new(&from), true, true).unwrap();
                let number = self.files.len() as u64;
                self.files.insert(id, number);
                self.change(vec![(from, Some(number))]);
            }
            0..6 => match self.now.get(&from).copied() {
                Some(file) if from != to => {
                    self.disk.rename(Path::new(&from), Path::new(&to)).unwrap();
                    self.change(vec![(from, None), (to, Some(file))]);
                }
                Some(_) => assert_eq!(self.disk.rename(Path::new(&from), Path::new(&to)).unwrap(), 0),
                None => assert!(self.disk.rename(Path::new(&from), Path::new(&to)).is_err()),
            },
            6 if self.now.contains_key(&from) => {
                self.disk.remove(Path::new(&from)).unwrap();
                self.change(vec![(from, None)]);
            }
            6 => assert!(self.disk.remove(Path::new(&from)).is_err()),
            _ => self.sync(prng),
        }
    }

    /// A sync that was submitted a few changes ago.
    fn sync(&mut self, prng: &mut Prng) {
        let directory = *prng.pick(&["a", "b"]);
        // Only as far back as nothing else was synced: the newest ones all wait then.
        let newest = self.disk.changes.iter().rev().zip(1..);
        let all_wait = newest.take_while(|(change, back)| change.number == self.disk.changes_made() - back).count();
        let late = prng.below(3).min(all_wait as u64);
        self.disk.sync_directory(Path::new(directory), self.disk.changes_made() - late).unwrap();
        let covered = self.waiting.len() - late as usize;
        let touches = |edits: &Edits| edits.iter().any(|(path, _)| path.starts_with(directory));
        let chosen: Vec<bool> =
            self.waiting.iter().enumerate().map(|(index, edits)| index < covered && touches(edits)).collect();
        let chosen = close(&self.waiting, chosen);
        let waiting = std::mem::take(&mut self.waiting);
        for (edits, chosen) in waiting.into_iter().zip(chosen) {
            match chosen {
                true => apply(&mut self.durable, &edits),
                false => self.waiting.push(edits),
            }
        }
    }

    /// Everything that a loss of power may leave.
    fn outcomes(&self) -> BTreeSet<Vec<(String, u64)>> {
        (0..1u32 << self.waiting.len())
            .map(|mask| (0..self.waiting.len()).map(|index| mask & (1 << index) != 0).collect::<Vec<_>>())
            .filter(|chosen| close(&self.waiting, chosen.clone()) == *chosen)
            .map(|chosen| {
                let mut names = self.durable.clone();
                let chosen = self.waiting.iter().zip(chosen).filter(|(_, chosen)| *chosen);
                chosen.for_each(|(edits, _)| apply(&mut names, edits));
                names.into_iter().collect()
            })
            .collect()
    }

    fn listed(&self) -> Vec<(String, u64)> {
        self.disk.files().into_iter().map(|(path, id)| (path, self.files[&id])).collect()
    }
}

fn apply(names: &mut Names, edits: &Edits) {
    for (path, meaning) in edits {
        match meaning {
            Some(file) => drop(names.insert(path.clone(), *file)),
            None => drop(names.remove(path)),
        }
    }
}

/// Adds the earlier changes of the same names.
fn close(waiting: &[Edits], mut chosen: Vec<bool>) -> Vec<bool> {
    for later in (0..waiting.len()).rev().filter(|&index| chosen[index]).collect::<Vec<_>>() {
        let mut reach = vec![later];
        while let Some(index) = reach.pop() {
            for earlier in 0..index {
                let shares = waiting[earlier].iter().any(|(a, _)| waiting[index].iter().any(|(b, _)| a == b));
                if shares && !chosen[earlier] {
                    chosen[earlier] = true;
                    reach.push(earlier);
                }
            }
        }
    }
    chosen
}

#[test]
fn a_loss_of_power_leaves_one_of_the_allowed_outcomes_and_each_of_them_at_times() {
    let mut seen: BTreeMap<u64, BTreeSet<Vec<(String, u64)>>> = BTreeMap::new();
    for seed in 0..600 {
        // Ten runs share their steps, to see that the outcome differs.
        let (mut steps, mut fate) = (Prng::new(seed / 10), Prng::new(seed));
        let mut model = Model::new();
        while model.waiting.len() < 7 {
            model.step(&mut steps);
            assert_eq!(model.disk.changes.len(), model.waiting.len(), "seed {seed}");
            assert_eq!(model.listed(), model.now.clone().into_iter().collect::<Vec<_>>(), "seed {seed}");
        }
        model.disk.lose_power(&mut fate);
        let left = model.listed();
        assert!(model.outcomes().contains(&left), "seed {seed}: {left:?} is not among {:?}", model.outcomes());
        seen.entry(seed / 10).or_default().insert(left);
    }
    let different: usize = seen.values().map(BTreeSet::len).sum();
    assert!(different > 200, "{different} outcomes of 600 runs");
}

#[test]
fn a_file_without_a_name_is_kept_only_as_long_as_it_could_come_back() {
    let mut disk = Namespace::new();
    let path = PathBuf::from("file");
    let id = disk.open(&path, true, false).unwrap();
    let made = disk.changes_made();
    disk.sync_directory(Path::new(""), made).unwrap();
    disk.remove(&path).unwrap();
    assert!(disk.contains(id), "a loss of power may bring it back");
    assert_eq!(disk.occupants().count(), 0);
    let made = disk.changes_made();
    // As if there were many.
    disk.orphans_max = 0;
    disk.sync_directory(Path::new(""), made).unwrap();
    assert!(!disk.contains(id));
    // Even if nobody ever syncs, what waits is bounded.
    for _ in 0..3 * CHANGES_MAX {
        disk.open(&path, true, false).unwrap();
        disk.remove(&path).unwrap();
    }
    assert!(disk.changes.len() <= CHANGES_MAX && disk.inodes.len() <= CHANGES_MAX);
}
