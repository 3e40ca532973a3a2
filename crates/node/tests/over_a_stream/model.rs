//! What a client may read: each sector of its region as it was written last, or as by a later write whose outcome nobody
//! knows. Once it was read, it is that.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{KIB, Prng, SECTOR};
use runtime::{Address, Handle};

use crate::nbd::Nbd;

/// Sectors of a region: it begins within a stripe and goes over several.
const SECTORS: u64 = 1024;
/// Most sectors of a request: some writes are large.
const LARGEST: u64 = 300;

/// A client with a region of its own.
pub struct Model {
    client: u64,
    prng: RefCell<Prng>,
    /// The values that each sector may have.
    sectors: RefCell<Vec<Vec<u64>>>,
    last_value: Cell<u64>,
    stopping: Cell<bool>,
    /// Requests that were answered, and that have no outcome.
    pub answered: Cell<u64>,
    pub broken: Cell<u64>,
}

impl Model {
    pub fn new(client: u64, seed: u64) -> Model {
        Model {
            client,
            prng: RefCell::new(Prng::new(seed)),
            sectors: RefCell::new(vec![vec![0]; SECTORS as usize]),
            last_value: Cell::new(client << 32),
            stopping: Cell::new(false),
            answered: Cell::new(0),
            broken: Cell::new(0),
        }
    }

    pub fn stop(&self) {
        self.stopping.set(true);
    }

    fn offset(&self, sector: u64) -> u64 {
        self.client * 7 * 128 * KIB + 60 * KIB + sector * SECTOR
    }

    fn range(&self) -> (u64, u64) {
        let mut prng = self.prng.borrow_mut();
        let most = if prng.one_in(8) { LARGEST } else { 16 };
        let len = prng.between(1, most);
        (prng.below(SECTORS - len), len)
    }

    /// Writes and reads until it is stopped, over as many connections as it takes.
    pub async fn live(self: Rc<Self>, handle: Handle, address: Address) {
        while !self.stopping.get() {
            let Some(client) = Nbd::attach(&handle, &address).await else {
                handle.sleep(Duration::from_millis(20)).await;
                continue;
            };
            while !self.stopping.get() {
                let is_write = self.prng.borrow_mut().one_in(2);
                let (at, len) = self.range();
                let outcome =
                    if is_write { self.write(&client, at, len).await } else { self.read(&client, at, len).await };
                if outcome.is_none() {
                    self.broken.set(self.broken.get() + 1);
                    break;
                }
                self.answered.set(self.answered.get() + 1);
            }
        }
    }

    /// Reads everything.
    pub async fn check_all(&self, handle: &Handle, address: &Address) {
        for _ in 0..100 {
            if let Some(client) = Nbd::attach(handle, address).await
                && self.read(&client, 0, SECTORS).await.is_some()
            {
                return;
            }
            handle.sleep(Duration::from_millis(100)).await;
        }
        panic!("client {}: the volume cannot be read though nothing is wrong", self.client);
    }

    async fn write(&self, client: &Nbd, at: u64, len: u64) -> Option<()> {
        let value = self.last_value.get() + 1;
        self.last_value.set(value);
        let outcome = client.write(self.offset(at), &value.to_le_bytes().repeat((len * SECTOR / 8) as usize)).await;
        let mut sectors = self.sectors.borrow_mut();
        for may_be in &mut sectors[at as usize..(at + len) as usize] {
            match outcome {
                Some(()) => *may_be = vec![value],
                None => may_be.push(value),
            }
        }
        outcome
    }

    async fn read(&self, client: &Nbd, at: u64, len: u64) -> Option<()> {
        let bytes = client.read(self.offset(at), len * SECTOR).await?;
        let mut sectors = self.sectors.borrow_mut();
        for (index, sector) in (at as usize..).zip(bytes.chunks(SECTOR as usize)) {
            let value = u64::from_le_bytes(*sector.first_chunk().unwrap());
            assert!(sector.chunks(8).all(|part| part == value.to_le_bytes()), "a sector of two writes");
            let may_be = &mut sectors[index];
            assert!(may_be.contains(&value), "client {}: sector {index} is {value}, not of {may_be:?}", self.client);
            *may_be = vec![value];
        }
        Some(())
    }
}
