//! Three candidates and a store of leases on nodes of their own, and what can go wrong with them.

use std::collections::BTreeSet;

use base::Prng;
use link::stream::{self, FarEnd, NearEnd, Services};
use policies::ownership::Change;
use runtime::Address;
use runtime::sim::{NodeId, NodeOptions, World};

use super::*;
use crate::lease::{self, Leases};
use crate::owners::testing::{Log, LogOf};

const MS: Duration = Duration::from_millis(1);
const CANDIDATES: usize = 3;
/// How far clocks run wrong at most.
const DRIFT_PPM: u64 = DRIFT_PERCENT * 10_000;
/// After so long somebody is in charge, when nothing is wrong any more: a connection that is silent, a store that is quiet
/// at first, a lease that nobody keeps alive.
const SETTLED: Duration = Duration::from_secs(4);

struct Fixture {
    world: World,
    prng: Prng,
    store: NodeId,
    nodes: [NodeId; CANDIDATES],
    handles: Vec<Handle>,
    /// Those whose process runs.
    candidates: Vec<Option<Rc<Candidate>>>,
    log: Rc<RefCell<Log>>,
    /// The far end of the store of leases.
    served: Option<Rc<FarEnd>>,
    /// Terms under which somebody was in charge.
    terms: BTreeSet<Term>,
    cuts: Vec<(NodeId, NodeId)>,
}

const PORT: u16 = 7_000;

impl Fixture {
    fn new(seed: u64) -> Fixture {
        let world = World::new(seed);
        let mut prng = Prng::new(seed);
        let mut node = || {
            let clock_drift_ppm = prng.below(2 * DRIFT_PPM) as i64 - DRIFT_PPM as i64;
            world.add_node(NodeOptions { clock_drift_ppm, ..NodeOptions::default() })
        };
        let (store, nodes) = (node(), [node(), node(), node()]);
        let handles = nodes.iter().map(|node| world.start_loop(*node)).collect();
        let candidates = vec![None; CANDIDATES];
        let (log, terms) = (Rc::default(), BTreeSet::new());
        let mut fixture =
            Fixture { world, prng, store, nodes, handles, candidates, log, served: None, terms, cuts: vec![] };
        let handle = fixture.world.start_loop(store);
        fixture.serve(handle);
        (0..CANDIDATES).for_each(|index| fixture.stand(index));
        fixture
    }

    fn address(&self) -> Address {
        Address::Tcp((self.world.address(self.store), PORT).into())
    }

    fn serve(&mut self, handle: Handle) {
        let store: Rc<dyn LeaseStore> = Leases::new(&handle, lease::Options::default());
        let services = Services { lease: Some(store), ..Services::default() };
        let options = stream::Options { silence: SILENCE, ..stream::Options::new("leases") };
        let end = FarEnd::new(&handle, services, options);
        let (inside, address) = (handle.clone(), self.address());
        end.serve(self.world.block_on(&handle, async move { inside.listen(&address).await.unwrap() }));
        self.served = Some(end);
    }

    /// A candidate, which begins whatever it is in charge of and decides something now and then.
    fn stand(&mut self, index: usize) {
        let handle = self.handles[index].clone();
        let options = stream::Options { silence: SILENCE, ..stream::Options::new("a manager") };
        let near = NearEnd::dial(&handle, self.address(), Services::default(), options);
        let log = Rc::new(LogOf::new(&handle, &self.log));
        let options = Options { name: format!("manager {index}"), partition: 0 };
        let candidate = Rc::new(Candidate::stand(&handle, Rc::new(near), log.clone(), options));
        self.candidates[index] = Some(candidate.clone());
        let inside = handle.clone();
        let managing = async move {
            loop {
                let (term, _) = candidate.begin().await;
                let first = log.append(term, vec![Change::Term(term).into()]).await;
                while first.is_ok() && candidate.in_charge() == Some(term) {
                    // What it decides is a drain of a server that changes its mind.
                    let is_drained = !log.log.borrow().tables.owners.is_drained("s");
                    let _ = log.append(term, vec![Change::Drain { server: "s".into(), is_drained }.into()]).await;
                    inside.sleep(20 * MS).await;
                }
                candidate.end(term).await;
            }
        };
        handle.spawn(Class::Io, "a manager", managing).detach();
    }

    /// Those in charge at this moment, each by its own clock.
    fn in_charge(&self) -> Vec<(usize, Term)> {
        let candidates = self.candidates.iter().enumerate();
        candidates.filter_map(|(index, candidate)| Some((index, candidate.as_ref()?.in_charge()?))).collect()
    }

    /// Runs until `done`, or for `span`; at each step at most one is in charge. How long it took, by the clock of the world.
    fn run(&mut self, span: Duration, mut done: impl FnMut(&[(usize, Term)]) -> bool) -> Option<Duration> {
        let begun = self.world.now();
        while self.world.now().since(begun) < span {
            let in_charge = self.in_charge();
            assert!(in_charge.len() <= 1, "seed {}: {in_charge:?} at {:?}", self.world.seed(), self.world.now());
            self.terms.extend(in_charge.iter().map(|(_, term)| *term));
            if done(&in_charge) {
                return Some(self.world.now().since(begun));
            }
            if !self.world.step() {
                self.world.run_for(MS);
            }
        }
        None
    }

    fn settle(&mut self) -> (usize, Term) {
        let seed = self.world.seed();
        self.run(SETTLED, |in_charge| !in_charge.is_empty())
            .unwrap_or_else(|| panic!("seed {seed}: nobody is in charge"));
        self.in_charge()[0]
    }

    fn kill(&mut self, index: usize) {
        self.candidates[index] = None;
        self.world.kill(self.nodes[index]);
    }

    fn restart(&mut self, index: usize) {
        self.candidates[index] = None;
        self.handles[index] = self.world.restart(self.nodes[index]);
        self.stand(index);
    }

    fn cut(&mut self, from: NodeId, to: NodeId) {
        self.world.cut_link(from, to);
        self.cuts.push((from, to));
    }

    fn mend(&mut self) {
        for (from, to) in std::mem::take(&mut self.cuts) {
            self.world.mend_link(from, to);
        }
        for node in self.nodes {
            self.world.set_extra_delay(node, self.store, Duration::ZERO);
            self.world.set_extra_delay(self.store, node, Duration::ZERO);
        }
    }

    /// One thing goes wrong.
    fn harm(&mut self) {
        let index = self.prng.below(CANDIDATES as u64) as usize;
        // Rather the one that matters.
        let index = self.in_charge().first().filter(|_| self.prng.one_in(2)).map_or(index, |(index, _)| *index);
        let (node, store) = (self.nodes[index], self.store);
        match self.prng.below(10) {
            0 => self.kill(index),
            1 | 2 => self.restart(index),
            3 => self.cut(node, store),
            4 => self.cut(store, node),
            5 => {
                self.cut(node, store);
                self.cut(store, node);
            }
            6 => {
                // A pause of the process.
                let (handle, span) = (self.handles[index].clone(), self.prng.below(1_500) as u32 * MS);
                if self.candidates[index].is_some() {
                    let inside = handle.clone();
                    handle.spawn(Class::Io, "pause", async move { inside.charge(span) }).detach();
                }
            }
            8 => {
                let (from, to) = if self.prng.one_in(2) { (node, store) } else { (store, node) };
                self.world.set_extra_delay(from, to, self.prng.below(250) as u32 * MS);
            }
            7 => self.world.jump_clock(node, self.prng.below(1_500) as u32 * MS),
            _ => {
                self.served = None;
                let handle = self.world.restart(store);
                self.serve(handle);
            }
        }
    }
}

#[test]
fn whatever_happens_one_is_in_charge_at_a_time_and_somebody_is_in_the_end() {
    let (mut terms, mut refused) = (0, 0);
    for seed in 0..300 {
        let mut fixture = Fixture::new(seed);
        for _ in 0..12 {
            fixture.harm();
            let span = fixture.prng.below(1_500) as u32 * MS;
            fixture.run(span, |_| false);
            if fixture.prng.one_in(3) {
                fixture.mend();
            }
        }
        fixture.mend();
        (0..CANDIDATES)
            .filter(|index| fixture.candidates[*index].is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|index| fixture.restart(index));
        // One who is in charge now may be about to lose it.
        fixture.run(SETTLED, |_| false);
        let [(index, term)] = fixture.in_charge()[..] else { panic!("seed {seed}: nobody is in charge") };
        let left = fixture.run(Duration::from_secs(3), |in_charge| in_charge != [(index, term)]);
        assert_eq!(left, None, "seed {seed}: nothing is wrong, and another one is in charge");
        let log = fixture.log.borrow();
        assert!(log.begun.is_sorted_by(|a, b| a < b), "seed {seed}: {:?}", log.begun);
        assert!(log.begun.ends_with(&[term]), "seed {seed}: {:?}", log.begun);
        terms += fixture.terms.len();
        refused += log.refused;
    }
    println!("{terms} terms, {refused} decisions of those before were refused");
    assert!(terms > 900, "{terms} times in charge in all: nothing was tested");
}

/// From the moment that one dies, or nobody hears it any more, to the moment that another one is in charge.
#[test]
fn another_one_is_in_charge_within_a_second() {
    let (mut longest, mut least) = (Duration::ZERO, Duration::MAX);
    for seed in 0..200 {
        let mut fixture = Fixture::new(seed);
        let (index, _) = fixture.settle();
        let span = Duration::from_millis(1_000 + fixture.prng.below(600));
        fixture.run(span, |_| false);
        assert_eq!(fixture.in_charge()[0].0, index, "seed {seed}");
        match seed % 4 {
            0 | 1 => fixture.kill(index),
            2 => fixture.cut(fixture.nodes[index], fixture.store),
            _ => fixture.cut(fixture.store, fixture.nodes[index]),
        }
        let is_another = |in_charge: &[(usize, Term)]| in_charge.iter().any(|(other, _)| *other != index);
        let took = fixture.run(Duration::from_secs(2), is_another);
        let took = took.unwrap_or_else(|| panic!("seed {seed}: nobody takes over"));
        (longest, least) = (longest.max(took), least.min(took));
        assert!(took < Duration::from_secs(1), "seed {seed}: it took {took:?}");
    }
    println!("another one was in charge after {least:?} to {longest:?}");
}

/// The store of leases forgets what terms there were; the log does not.
#[test]
fn a_store_that_forgets_terms_does_not_give_one_out_again() {
    for seed in 0..20 {
        let mut fixture = Fixture::new(seed);
        fixture.log.borrow_mut().term = Term(1_000);
        let (_, first) = fixture.settle();
        assert_eq!(first, Term(1_001));
        for _ in 0..3 {
            fixture.served = None;
            let handle = fixture.world.restart(fixture.store);
            fixture.serve(handle);
            fixture.run(SETTLED, |_| false);
        }
        let (_, last) = fixture.settle();
        assert!(last.0 >= first.0 + 3, "seed {seed}: {first} to {last}");
    }
}

#[test]
fn a_lease_ends_here_before_it_ends_there() {
    let ttl = 600 * MS;
    for (here, there) in [(1.0 - 0.02, 1.0 + 0.02), (1.0, 1.0 + 0.02), (1.0 - 0.02, 1.0)] {
        assert!(span(ttl).as_secs_f64() / here <= ttl.as_secs_f64() / there);
    }
    assert!(span(ttl) > ttl * 9 / 10, "not much is given away");
    assert_eq!(span(Duration::ZERO), Duration::ZERO);
}
