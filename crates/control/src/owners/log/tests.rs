//! Managers that take the log from each other, at any moment, over a store that fails now and then.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{Incarnation, Prng};
use files::memory::{AppendFault, Memory, MemoryOptions};
use files::remote::{self, RemoteOptions};
use files::served::Served;
use files::shared::{Shared, SharedOptions};
use link::stream::{self, FarEnd, NearEnd, Services};
use policies::ownership::Change;
use runtime::{Address, Class, Handle};

use super::*;

const OPTIONS: Options = Options { copies: 2, file_bytes: 16 << 10 };

struct Bed {
    handle: Handle,
    memory: Memory,
    shared: Shared,
    /// Where the store is, if it is not at hand.
    address: Option<Address>,
}

impl Bed {
    async fn new(handle: &Handle, seed: u64) -> Bed {
        Bed::over(handle, seed, false).await
    }

    async fn over(handle: &Handle, seed: u64, is_far: bool) -> Bed {
        let options = MemoryOptions { directories: 2, capacity: 256 * MIB, ..MemoryOptions::default() };
        let memory = Memory::new(seed, options);
        let options = SharedOptions { grant_bytes: MIB, ..SharedOptions::default() };
        let shared = Shared::open(handle, memory.open(handle), options).await.unwrap();
        let address = is_far.then(|| Address::Unix("/store".into()));
        if let Some(address) = &address {
            let services = Services { files: Some(Served::new(shared.clone())), ..Services::default() };
            let end = FarEnd::new(handle, services, stream::Options::new("the store"));
            end.serve(handle.listen(address).await.unwrap());
        }
        Bed { handle: handle.clone(), memory, shared, address }
    }

    async fn join(&self) -> (Store, Rc<FileLog>) {
        let store = match &self.address {
            None => self.shared.join().await.unwrap(),
            Some(address) => {
                let options = stream::Options::new("a manager");
                let near = NearEnd::dial(&self.handle, address.clone(), Services::default(), options);
                remote::join(&self.handle, Rc::new(near), RemoteOptions::new("the store")).await.unwrap()
            }
        };
        let log = Rc::new(FileLog::new(&store, OPTIONS));
        (store, log)
    }
}

fn engine(number: u64) -> Entry {
    let server = format!("server {number} with a name that fills the log soon");
    Change::Engine { engine: Incarnation(number), server }.into()
}

fn begins(term: Term) -> Entry {
    Change::Term(term).into()
}

fn engines(tables: &Tables) -> Vec<u64> {
    tables.owners.living().map(|(engine, _)| engine.0).collect()
}

#[test]
fn what_was_appended_is_there_for_the_next_term_and_files_follow_each_other() {
    runtime::sim::run(1, |handle| async move {
        let bed = Bed::new(&handle, 1).await;
        let (_, log) = bed.join().await;
        assert_eq!(log.term().await.unwrap(), Term(0));
        assert_eq!(log.append(Term(1), vec![engine(1)]).await.unwrap_err().kind, ErrorKind::Fenced);
        log.begin(Term(1)).await.unwrap();
        assert_eq!(log.begin(Term(1)).await.unwrap_err().kind, ErrorKind::Fenced);
        log.append(Term(1), vec![begins(Term(1))]).await.unwrap();
        for number in 1..=40 {
            log.append(Term(1), vec![engine(number)]).await.unwrap();
        }
        let (store, next) = bed.join().await;
        assert_eq!(next.term().await.unwrap(), Term(1));
        let table = next.begin(Term(3)).await.unwrap();
        assert_eq!((table.owners.term(), engines(&table)), (Term(1), (1..=40).collect()));
        // The one before writes no more, whatever it believes.
        assert_eq!(log.append(Term(1), vec![engine(41)]).await.unwrap_err().kind, ErrorKind::Fenced);
        assert_eq!(log.begin(Term(4)).await.unwrap_err().kind, ErrorKind::Fenced, "its life is over, too");
        next.append(Term(3), vec![begins(Term(3)), engine(50)]).await.unwrap();
        // One claim and one file: nothing is left of what came before.
        let mut files = 0;
        for life in store.lives().await.unwrap() {
            files += store.files_of(life).await.unwrap().iter().filter(|info| info.kind == FileKind::Log).count();
        }
        // The last claim was of a life that was over, and came to nothing.
        assert_eq!(files, 2);
    });
}

#[test]
fn rot_is_not_taken_for_the_end() {
    runtime::sim::run(2, |handle| async move {
        let bed = Bed::new(&handle, 2).await;
        let (store, log) = bed.join().await;
        log.begin(Term(1)).await.unwrap();
        log.append(Term(1), vec![begins(Term(1))]).await.unwrap();
        for number in 1..=2 {
            log.append(Term(1), vec![engine(number)]).await.unwrap();
        }
        let file = log.files().await.unwrap()[0].id;
        // One copy may rot, and then the other one.
        bed.memory.corrupt(file, 0, 2 * BLOCK..3 * BLOCK);
        let (_, next) = bed.join().await;
        assert_eq!(engines(&next.begin(Term(2)).await.unwrap()), [1, 2]);
        next.append(Term(2), vec![begins(Term(2))]).await.unwrap();
        next.append(Term(2), vec![engine(3)]).await.unwrap();
        let file = next.files().await.unwrap()[0].id;
        assert!(store.find(file).await.unwrap().is_some());
        for copy in 0..2 {
            bed.memory.corrupt(file, copy, BLOCK..2 * BLOCK);
        }
        let (_, last) = bed.join().await;
        assert_eq!(last.begin(Term(3)).await.unwrap_err().kind, ErrorKind::Corrupt);
    });
}

/// What is confirmed is there whoever comes next; nobody confirms anything after a later one has begun.
async fn compete(handle: Handle, seed: u64, is_far: bool) -> (u64, u64) {
    let bed = Rc::new(Bed::over(&handle, seed, is_far).await);
    let (newest, confirmed) = (Rc::new(Cell::new(Term(0))), Rc::new(RefCell::new(Vec::<u64>::new())));
    let (begun, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let mut managers = Vec::new();
    for number in 0..3_u64 {
        let (bed, newest, confirmed) = (bed.clone(), newest.clone(), confirmed.clone());
        let (begun, refused) = (begun.clone(), refused.clone());
        let manager = async move {
            let mut prng = Prng::new(seed * 10 + number);
            for round in 0..12_u64 {
                let (_, log) = bed.join().await;
                if prng.one_in(4) {
                    bed.memory.fail_appends(
                        Some(FileKind::Log),
                        1,
                        *prng.pick(&[AppendFault::Landed, AppendFault::Torn]),
                    );
                }
                let Ok(last) = log.term().await else { continue };
                let term = Term(last.0 + prng.between(1, 3) as u32);
                let seen = confirmed.borrow().len();
                let Ok(table) = log.begin(term).await else {
                    refused.set(refused.get() + 1);
                    bed.handle.sleep(Duration::from_micros(prng.below(3_000))).await;
                    continue;
                };
                begun.set(begun.get() + 1);
                assert!(term > newest.get(), "seed {seed}: {term} begins after {:?}", newest.get());
                newest.set(term);
                let engines = engines(&table);
                let lost = confirmed.borrow()[..seen].iter().find(|number| !engines.contains(number)).copied();
                assert_eq!(lost, None, "seed {seed}: was confirmed before {term} began");
                let first = engines.iter().max().map_or(1, |last| last + 1) + number * 1_000 + round;
                let mut changes = vec![begins(term)];
                for next in first..first + prng.below(20) {
                    changes.push(engine(next));
                    if log.append(term, std::mem::take(&mut changes)).await.is_err() {
                        break;
                    }
                    assert_eq!(newest.get(), term, "seed {seed}: {term} confirms after a later one has begun");
                    confirmed.borrow_mut().push(next);
                    bed.handle.sleep(Duration::from_micros(prng.below(500))).await;
                }
            }
        };
        managers.push(handle.spawn(Class::Io, "manager", manager));
    }
    for manager in managers {
        manager.await;
    }
    bed.memory.clear_faults();
    let (_, log) = bed.join().await;
    let term = Term(log.term().await.unwrap().0 + 1);
    let table = log.begin(term).await.unwrap();
    let engines = engines(&table);
    assert!(confirmed.borrow().iter().all(|number| engines.contains(number)), "seed {seed}: in the end");
    (begun.get(), refused.get())
}

#[test]
fn whoever_competes_what_is_confirmed_stays() {
    let (mut begun, mut refused) = (0, 0);
    // In the last one a log went on in another file between being seen and being fenced.
    for seed in (0..300).chain([5089]) {
        // Far from the store something happens between any two looks at it.
        let (one, other) = runtime::sim::run(seed, move |handle| compete(handle, seed, seed % 2 == 1));
        (begun, refused) = (begun + one, refused + other);
    }
    println!("{begun} begun, {refused} refused");
    assert!(begun > 500 && refused > 100, "{begun} begun, {refused} refused");
}
