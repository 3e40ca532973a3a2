//! Three keepers over one log and one store of leases; engines that obey, and die; messages and appends that fail.

use std::collections::{BTreeMap, BTreeSet};

use base::{ErrorKind, Generation, Prng, VolumeId};

use super::*;
use crate::charge::{self, Candidate};
use crate::lease::{self, Leases};
use crate::owners::testing::{Log, LogOf};

const MS: Duration = Duration::from_millis(1);
const KEEPERS: usize = 3;

/// Engines that do what they are asked after a while, if they live and the order is not lost.
struct Engines {
    handle: Handle,
    log: Rc<RefCell<Log>>,
    prng: RefCell<Prng>,
    dead: RefCell<BTreeSet<Incarnation>>,
    /// The highest term that they have heard of.
    term: Cell<Term>,
    is_lossy: Cell<bool>,
    keepers: RefCell<Vec<Option<Rc<Keeper>>>>,
    /// What was said, by kind.
    said: RefCell<BTreeMap<&'static str, u64>>,
}

impl Engines {
    /// What was said is durable.
    fn check(&self, order: &Order) -> &'static str {
        let log = self.log.borrow();
        let table = &log.tables.owners;
        let assigned = |segment| table.segment(segment).and_then(|row| row.assignment).map(|next| next.epoch);
        match order {
            Order::Create { segment, epoch, .. } | Order::Adopt { segment, epoch, .. } => {
                // Unless it is long done, or the volume is gone.
                let row = table.segment(*segment);
                let is_over = row.is_none_or(|row| row.is_dropped || row.epoch >= *epoch);
                assert!(is_over || assigned(*segment) >= Some(*epoch), "{order:?}");
                "assign"
            }
            Order::Release { .. } => "release",
            Order::Forget { segment, epoch, .. } => {
                assert!(table.segment(*segment).is_none_or(|row| row.is_dropped || row.epoch > *epoch), "{order:?}");
                "forget"
            }
            Order::Fence { dead } | Order::Recover { dead, .. } | Order::Delete { dead } => {
                assert!(!table.lives(*dead), "{order:?}");
                "dead"
            }
            Order::Attached { volume, generation } => {
                assert!(table.volume(*volume).is_none_or(|row| row.attached >= *generation), "{order:?}");
                "attached"
            }
            Order::Gone { volume } => {
                assert_eq!(table.volume(*volume), None);
                "gone"
            }
            _ => "other",
        }
    }

    fn answer(&self, order: &Order) -> Option<Report> {
        let lives = |engine: &Incarnation| !self.dead.borrow().contains(engine);
        Some(match *order {
            Order::Create { engine, segment, epoch, generation }
            | Order::Adopt { engine, segment, epoch, generation, .. } => {
                lives(&engine).then_some(Report::Adopted { engine, segment, epoch, generation })?
            }
            Order::Release { engine, segment, epoch, .. } => {
                lives(&engine).then_some(Report::Released { engine, segment, epoch })?
            }
            Order::Reattach { engine, segment, epoch, generation } => {
                lives(&engine).then_some(Report::Recorded { engine, segment, epoch, generation })?
            }
            Order::Drop { engine, segment, epoch } => {
                lives(&engine).then_some(Report::Dropped { engine, segment, epoch })?
            }
            Order::Fence { dead } => Report::Fenced { dead },
            // The dead answered at once when they lived: what they have is what was reported.
            Order::Recover { dead, recoverer } => {
                lives(&recoverer).then_some(Report::Recovered { dead, recoverer, has: vec![] })?
            }
            Order::Delete { dead } => Report::Deleted { dead },
            _ => return None,
        })
    }
}

struct OutletOf(Rc<Engines>);

impl Outlet for OutletOf {
    fn send(&self, message: Message) {
        let engines = self.0.clone();
        *engines.said.borrow_mut().entry(engines.check(&message.order)).or_default() += 1;
        let (is_lost, delay) = {
            let mut prng = engines.prng.borrow_mut();
            (engines.is_lossy.get() && prng.one_in(4), prng.below(30) as u32 * MS)
        };
        if is_lost || message.term < engines.term.get() {
            return;
        }
        engines.term.set(message.term);
        let handle = engines.handle.clone();
        let answering = async move {
            engines.handle.sleep(delay).await;
            let Some(report) = engines.answer(&message.order) else { return };
            let keepers: Vec<_> = engines.keepers.borrow().iter().flatten().cloned().collect();
            keepers.iter().for_each(|keeper| keeper.report(&report));
        };
        handle.spawn(Class::Io, "an engine", answering).detach();
    }

    fn ask_others(&self, missing: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        Box::pin(async move {
            self.0.handle.sleep(MS).await;
            let dead = self.0.dead.borrow();
            Ok(missing.into_iter().filter(|engine| dead.contains(engine)).collect())
        })
    }
}

struct Fixture {
    handle: Handle,
    leases: Rc<Leases>,
    log: Rc<RefCell<Log>>,
    engines: Rc<Engines>,
}

impl Fixture {
    fn new(handle: &Handle, seed: u64) -> Fixture {
        let log: Rc<RefCell<Log>> = Rc::default();
        let engines = Rc::new(Engines {
            handle: handle.clone(),
            log: log.clone(),
            prng: RefCell::new(Prng::new(seed)),
            dead: RefCell::default(),
            term: Cell::default(),
            is_lossy: Cell::new(true),
            keepers: RefCell::new(vec![None; KEEPERS]),
            said: RefCell::default(),
        });
        let leases = Leases::new(handle, lease::Options::default());
        let fixture = Fixture { handle: handle.clone(), leases, log, engines };
        (0..KEEPERS).for_each(|index| fixture.start(index));
        fixture
    }

    fn start(&self, index: usize) {
        let log = Rc::new(LogOf::new(&self.handle, &self.log));
        let options = charge::Options { name: format!("manager {index}"), partition: 0 };
        let candidate = Candidate::stand(&self.handle, self.leases.clone(), log.clone(), options);
        let outlet = Rc::new(OutletOf(self.engines.clone()));
        let keeper = Keeper::start(&self.handle, candidate, log, outlet, Settings::default());
        self.engines.keepers.borrow_mut()[index] = Some(Rc::new(keeper));
    }

    fn stop(&self, index: usize) {
        self.engines.keepers.borrow_mut()[index] = None;
    }

    fn in_charge(&self) -> Option<(usize, Rc<Keeper>)> {
        let keepers = self.engines.keepers.borrow();
        let mut in_charge = keepers.iter().enumerate().filter_map(|(index, keeper)| {
            let keeper = keeper.clone()?;
            keeper.term().map(|_| (index, keeper))
        });
        let one = in_charge.next();
        assert!(in_charge.next().is_none(), "two are in charge");
        one
    }

    /// Decides with whoever is in charge, until somebody has.
    async fn decide<T>(&self, decide: impl Fn(&mut Manager, Instant, u64) -> Result<T>) -> Result<T> {
        for _ in 0..400 {
            if let Some((_, keeper)) = self.in_charge() {
                match keeper.decide(&decide).await {
                    Ok(value) => return value,
                    Err(error) => assert!(matches!(error.kind, ErrorKind::Retry | ErrorKind::Io), "{error}"),
                }
            }
            self.handle.sleep(25 * MS).await;
        }
        panic!("nobody is in charge");
    }

    /// What was decided and answered is in the log.
    fn durable<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.log.borrow().tables.owners)
    }
}

/// An engine says that it is there to whoever is in charge.
async fn register(fixture: &Fixture, engine: u64) {
    let server = format!("s{}", engine % 6);
    let _ =
        fixture.decide(|manager, now, random| manager.on_registered(now, random, Incarnation(engine), &server)).await;
}

async fn live(handle: Handle, seed: u64) -> BTreeMap<&'static str, u64> {
    let mut prng = Prng::new(seed);
    let fixture = Fixture::new(&handle, seed);
    for engine in 1..=6 {
        register(&fixture, engine).await;
        assert!(fixture.durable(|table| table.lives(Incarnation(engine))));
    }
    fixture.log.borrow_mut().fails = 40;
    let (mut last_engine, mut last_volume) = (6, 0);
    for step in 1..40 {
        match prng.below(8) {
            0 => {
                last_volume += 1;
                let volume = VolumeId(last_volume);
                // Done before, where nobody knew.
                let done = fixture.decide(|manager, now, random| manager.create(now, random, volume, 4)).await;
                assert!(done.is_ok() || done.unwrap_err().kind == ErrorKind::Conflict);
                assert!(fixture.durable(|table| table.volume(volume).is_some()));
            }
            1 | 2 => {
                let volume = VolumeId(prng.between(1, last_volume + 1));
                let generation = Generation(step);
                let _ = fixture.decide(|manager, now, random| manager.attach(now, random, volume, generation)).await;
            }
            3 if prng.one_in(3) => {
                let volume = VolumeId(prng.between(1, last_volume + 1));
                let _ = fixture.decide(|manager, now, random| manager.drop_volume(now, random, volume)).await;
            }
            4 => {
                let index = prng.below(KEEPERS as u64) as usize;
                let index = fixture.in_charge().filter(|_| prng.one_in(2)).map_or(index, |(index, _)| index);
                fixture.stop(index);
                handle.sleep(prng.below(400) as u32 * MS).await;
                fixture.start(index);
            }
            5 => {
                let living: Vec<_> = fixture.durable(|table| table.living().map(|(engine, _)| engine).collect());
                if living.len() > 2 {
                    let engine = *prng.pick(&living);
                    fixture.engines.dead.borrow_mut().insert(engine);
                    let _ = fixture
                        .decide(|manager, now, random| {
                            manager.on_gone(now, random, engine);
                            Ok(())
                        })
                        .await;
                }
            }
            6 => {
                last_engine += 1;
                register(&fixture, last_engine).await;
            }
            _ => {}
        }
        handle.sleep(prng.below(200) as u32 * MS).await;
    }
    fixture.engines.is_lossy.set(false);
    fixture.log.borrow_mut().fails = 0;
    settle(&fixture, seed).await;
    let said = fixture.engines.said.borrow().clone();
    // Everything ends with it, though engines and keepers know each other.
    fixture.engines.keepers.borrow_mut().clear();
    said
}

/// In the end every segment has an owner that lives.
async fn settle(fixture: &Fixture, seed: u64) {
    let mut left = None;
    for _ in 0..60 {
        fixture.handle.sleep(250 * MS).await;
        let dead: Vec<_> = fixture.engines.dead.borrow().iter().copied().collect();
        let gone = |manager: &mut Manager, now, random| {
            dead.iter().for_each(|engine| manager.on_gone(now, random, *engine));
            Ok(())
        };
        let _ = fixture.decide(gone).await;
        let dead = &fixture.engines.dead.borrow();
        left = fixture.durable(|table| {
            let is_owned = |row: &policies::ownership::Segment| {
                row.assignment.is_none()
                    && row.holder.is_some_and(|holder| table.lives(holder) && !dead.contains(&holder))
            };
            let segment = table.segments().find(|(_, row)| !is_owned(row)).map(|found| format!("{found:?}"));
            segment.or_else(|| table.deaths().next().map(|found| format!("{found:?}")))
        });
        if left.is_none() {
            return;
        }
    }
    panic!("seed {seed}: in the end {left:?}");
}

#[test]
fn what_is_decided_is_durable_before_it_is_said_whoever_is_in_charge() {
    let mut said: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..600 {
        for (kind, count) in runtime::sim::run(seed, move |handle| live(handle, seed)) {
            *said.entry(kind).or_default() += count;
        }
    }
    println!("{said:?}");
    assert!(
        ["assign", "forget", "release", "dead", "attached", "gone", "other"].iter().all(|kind| said[kind] > 50),
        "{said:?}"
    );
}

#[test]
fn who_is_not_in_charge_decides_nothing() {
    runtime::sim::run(1, |handle| async move {
        let fixture = Fixture::new(&handle, 1);
        let keepers: Vec<_> = fixture.engines.keepers.borrow().iter().flatten().cloned().collect();
        for keeper in &keepers {
            let refused = keeper.decide(|_, _, _| panic!("nobody is in charge yet")).await;
            assert_eq!(refused.unwrap_err().kind, ErrorKind::Retry);
        }
        register(&fixture, 1).await;
        let (index, _) = fixture.in_charge().unwrap();
        for (other, keeper) in keepers.iter().enumerate() {
            assert_eq!((keeper.term().is_some(), keeper.look(|_, _| ()).is_some()), (other == index, other == index));
        }
        // The log fails: the seat is given up, and somebody has another one.
        fixture.log.borrow_mut().fails = 1;
        let failed = keepers[index].decide(|manager, now, random| manager.drain(now, random, "s", true)).await;
        assert_eq!(failed.unwrap_err().kind, ErrorKind::Io);
        assert_eq!(keepers[index].term(), None);
        fixture.log.borrow_mut().fails = 0;
        register(&fixture, 2).await;
        // It was asleep, and knows it before anything else.
        let (_, keeper) = fixture.in_charge().unwrap();
        handle.charge(Duration::from_secs(2));
        assert_eq!(keeper.term(), None);
        let refused = keeper.decide(|_, _, _| panic!("its lease has ended")).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Retry);
        fixture.engines.keepers.borrow_mut().clear();
    });
}
