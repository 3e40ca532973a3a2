//! Breadth-first search through every state of a model.
//!
//! Intuition: a protocol of a few parts and a few failures has thousands of orders in which things may happen, and a
//! random run sees a handful of them. If each state is a value, and a state says which steps are possible and what
//! each leads to, all of them can be visited; a state that was reached before, by whatever way, is not looked at again.
//! Because the search goes level by level, the first state that breaks an invariant is one with the fewest steps.
//!
//! Names: a *step* is what happens between two states; a *trace* is the steps from a start to a state; a search is
//! *complete* when no state was left out, which only the bound on their number can cause. Of a state that was visited
//! its *fingerprint* is kept, 128 bits that depend on all of it: that two of 10^8 states have the same one has a
//! probability of 10^-23.

use std::fmt::{self, Display, Formatter};
use std::hash::{DefaultHasher, Hash, Hasher};

use base::Set;

/// A protocol as states and steps. Both the model and its bounds are values of one type.
pub trait Model {
    /// Everything that is, disks and processes and messages, and what the checks have to remember.
    type State: Clone + Eq + Hash;
    /// What happens, in words.
    type Step: Display;

    /// Where it may begin.
    fn starts(&self) -> Vec<Self::State>;

    /// Calls `lead` for each step that is possible in `state`, with the state that it leads to.
    fn steps(&self, state: &Self::State, lead: &mut dyn FnMut(Self::Step, Self::State));

    /// The one of all states that differ from `state` in names only, and lead to the same, that stands for them.
    fn canonical(&self, state: Self::State) -> Self::State {
        state
    }

    /// What of that which must never be is the case in `state`.
    fn broken(&self, state: &Self::State) -> Option<Broken>;

    /// What must not be the case in `state`, in which no step is possible.
    fn stuck(&self, _state: &Self::State) -> Option<Broken> {
        None
    }
}

/// An invariant that does not hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Broken {
    /// Its name.
    pub invariant: &'static str,
    /// What was found instead.
    pub why: String,
}

impl Broken {
    /// `invariant` does not hold, because `why`.
    pub fn new(invariant: &'static str, why: impl Into<String>) -> Broken {
        Broken { invariant, why: why.into() }
    }
}

/// A search that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Most steps that a state is away from a start.
    pub depth: usize,
    /// Whether every state was visited.
    pub complete: bool,
}

impl Display for Explored {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Explored { states, steps, depth, complete } = self;
        let how = if *complete { "all" } else { "not all" };
        write!(f, "{states} states ({how}), {steps} steps between them, {depth} deep")
    }
}

/// The shortest way to a state that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counterexample {
    /// What is broken there.
    pub broken: Broken,
    /// The steps that lead to it, in order.
    pub trace: Vec<String>,
    /// States that were visited.
    pub states: usize,
}

impl Display for Counterexample {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "'{}' is broken after {} steps: {}", self.broken.invariant, self.trace.len(), self.broken.why)?;
        self.trace.iter().enumerate().try_for_each(|(index, step)| writeln!(f, "{:4}. {step}", index + 1))
    }
}

/// Visits the states of `model` level by level, at most `states_max` of them.
///
/// # Errors
/// The first state that breaks an invariant.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Result<Explored, Box<Counterexample>> {
    let mut search = Search { model, states_max, visited: Set::default(), ways: Vec::new(), complete: true, steps: 0 };
    let mut level = Vec::new();
    for state in model.starts() {
        search.visit(None, state, &mut level)?;
    }
    let mut depth = 0;
    loop {
        let mut next = Vec::new();
        for (number, state) in level {
            let (mut found, before) = (Ok(()), search.steps);
            model.steps(&state, &mut |step, state| {
                search.steps += 1;
                if found.is_ok() {
                    found = search.visit(Some((number, step)), state, &mut next);
                }
            });
            found?;
            if let Some(broken) = (search.steps == before).then(|| model.stuck(&state)).flatten() {
                return Err(search.counterexample(broken, number));
            }
        }
        if next.is_empty() {
            let Search { ways, steps, complete, .. } = search;
            return Ok(Explored { states: ways.len(), steps, depth, complete });
        }
        level = next;
        depth += 1;
    }
}

/// A state's number: its place in the order of discovery.
type Number = u32;

struct Search<'a, M: Model> {
    model: &'a M,
    states_max: usize,
    visited: Set<u128>,
    /// By number: the state that it was reached from and the step; nothing for a start.
    ways: Vec<Option<(Number, M::Step)>>,
    complete: bool,
    steps: u64,
}

impl<M: Model> Search<'_, M> {
    fn visit(
        &mut self,
        way: Option<(Number, M::Step)>,
        state: M::State,
        level: &mut Vec<(Number, M::State)>,
    ) -> Result<(), Box<Counterexample>> {
        let state = self.model.canonical(state);
        if self.ways.len() == self.states_max {
            self.complete &= self.visited.contains(&fingerprint(&state));
            return Ok(());
        }
        if !self.visited.insert(fingerprint(&state)) {
            return Ok(());
        }
        let number = self.ways.len() as Number;
        self.ways.push(way);
        if let Some(broken) = self.model.broken(&state) {
            return Err(self.counterexample(broken, number));
        }
        level.push((number, state));
        Ok(())
    }

    fn counterexample(&self, broken: Broken, number: Number) -> Box<Counterexample> {
        Box::new(Counterexample { broken, trace: self.trace(number), states: self.ways.len() })
    }

    fn trace(&self, number: Number) -> Vec<String> {
        let mut trace = Vec::new();
        let mut at = number;
        while let Some((before, step)) = &self.ways[at as usize] {
            trace.push(step.to_string());
            at = *before;
        }
        trace.reverse();
        trace
    }
}

/// See the module.
fn fingerprint(state: &impl Hash) -> u128 {
    let mut bytes = Bytes(Vec::with_capacity(1024));
    state.hash(&mut bytes);
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(salt);
        hasher.write(&bytes.0);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// What a state is made of, field by field.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn write_u8(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// A variant's number, or a length: below 2^32.
    fn write_isize(&mut self, number: isize) {
        self.0.extend_from_slice(&(number as u32).to_le_bytes());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_isize(number as isize);
    }

    fn finish(&self) -> u64 {
        unreachable!("nobody asks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two glasses of 3 and 5 and a tap: one of them must never hold 4.
    struct Glasses {
        forbidden: u8,
    }

    impl Model for Glasses {
        type State = [u8; 2];
        type Step = &'static str;

        fn starts(&self) -> Vec<[u8; 2]> {
            vec![[0, 0]]
        }

        fn steps(&self, state: &[u8; 2], lead: &mut dyn FnMut(&'static str, [u8; 2])) {
            let [a, b] = *state;
            lead("fill a", [3, b]);
            lead("fill b", [a, 5]);
            lead("empty a", [0, b]);
            lead("empty b", [a, 0]);
            let poured = a.min(5 - b);
            lead("a into b", [a - poured, b + poured]);
            let poured = b.min(3 - a);
            lead("b into a", [a + poured, b - poured]);
        }

        fn broken(&self, state: &[u8; 2]) -> Option<Broken> {
            state.contains(&self.forbidden).then(|| Broken::new("amounts", format!("{state:?}")))
        }
    }

    #[test]
    fn the_shortest_way_is_found() {
        let found = explore(&Glasses { forbidden: 4 }, 1000).unwrap_err();
        let way = ["fill b", "b into a", "empty a", "b into a", "fill b", "b into a"];
        assert_eq!(found.trace, way);
        assert!(found.to_string().contains("'amounts' is broken after 6 steps: [3, 4]\n   1. fill b\n"), "{found}");
    }

    #[test]
    fn every_state_is_visited_once() {
        let explored = explore(&Glasses { forbidden: 9 }, 1000).unwrap();
        assert_eq!(explored, Explored { states: 16, steps: 96, depth: 7, complete: true });
        let explored = explore(&Glasses { forbidden: 9 }, 10).unwrap();
        assert!(explored.states == 10 && !explored.complete, "{explored}");
    }
}
