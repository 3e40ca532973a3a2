//! What the loops of an agent know of its tenants together: their volumes with their levels and accounts, what part of its
//! base each loop gives a tenant, and who bursts with whom.
//!
//! It is one table behind a short lock. A loop looks there when connections come and go, and some times a second while it has
//! something to do ([`crate::tenants`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::levels::{Levels, Rate};
use base::{Instant, Map, VolumeId};
use policies::admission::ClientId;
use policies::levels::{Account, Allowance, DEPTH, Enforcer, INTERVAL, LevelsSettings};
use policies::tenants::{Cost, Shares, TenantStatus, TenantsSettings, Together};
use policies::waits::Waits;
use runtime::{Handle, Lock};
use wire::VolumeDescriptor;

/// Accounts that are kept of volumes and tenants without connections.
const REMEMBERED: usize = 1024;

/// A tenant, as loops and statistics call it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantKey(pub u64);

impl TenantKey {
    /// Whose a volume is.
    pub fn of(volume: &VolumeDescriptor) -> TenantKey {
        match volume.owner.is_empty() {
            true => TenantKey(volume.id.0 | 1 << 63),
            false => TenantKey(ClientId::of(&volume.owner).0 & !(1 << 63)),
        }
    }
}

/// What a tenant did on an agent, on all its loops, while it had connections there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TenantStatistics {
    /// The owner, or the volume that has none.
    pub name: String,
    /// Its volumes, by name.
    pub volumes: Vec<String>,
    /// What they were promised, together.
    pub base: Rate,
    /// The most that it gets, all its volumes together; none: no bound.
    pub burst: Rate,
    /// Requests that were started.
    pub started: u64,
    /// Requests that were started within the base levels of their volumes, and beyond; of volumes that have levels.
    pub marked_base: u64,
    /// See `marked_base`.
    pub marked_burst: u64,
    /// What requests waited for that a level held back, of their volume or tenant.
    pub waits: Waits,
    /// Requests that had to wait because nothing was left for them.
    pub throttled: u64,
    /// Requests that were paid for by what others had beyond their base.
    pub reclaimed: u64,
    /// Requests that were paid for from the reserve.
    pub from_reserve: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// How long requests waited, in nanoseconds: all together.
    pub waited_ns: u64,
    /// And the longest.
    pub waited_max_ns: u64,
    /// Windows in which it used more than its base, on any loop.
    pub burst_windows: u64,
    /// With whom it bursts at the same time, by name, and in which part of the time in which it does: most of all first.
    pub bursts_with: Vec<(String, f64)>,
    /// The part of what it was promised that it has: below 1 where promises exceed what there is.
    pub scaled: f64,
}

impl TenantStatistics {
    /// Adds what one loop says.
    pub(crate) fn add(&mut self, on_loop: &TenantOnLoop) {
        let TenantOnLoop { share: status, marked, waits, .. } = on_loop;
        self.marked_base += marked[0];
        self.marked_burst += marked[1];
        self.waits.add(waits);
        self.started += status.started;
        self.throttled += status.throttled;
        self.reclaimed += status.reclaimed;
        self.from_reserve += status.from_reserve;
        self.waiting += status.waiting as u64;
        self.waited_ns += status.waited_ns;
        self.waited_max_ns = self.waited_max_ns.max(status.waited_max_ns);
        self.burst_windows += status.burst_windows;
        self.scaled = if self.scaled == 0.0 { status.scaled } else { self.scaled.min(status.scaled) };
    }
}

/// How a tenant stands on one loop.
pub(crate) struct TenantOnLoop {
    pub(crate) key: TenantKey,
    pub(crate) share: TenantStatus,
    /// Requests within base levels, and beyond.
    pub(crate) marked: [u64; 2],
    pub(crate) waits: Waits,
}

/// What the loops of an agent know of its tenants together. Clones are the same.
#[derive(Clone)]
pub(crate) struct Roster {
    books: Lock<Books>,
    /// Counts changes of what was promised.
    revision: Arc<AtomicU64>,
    loops: usize,
    levels: LevelsSettings,
}

/// What holds a volume: its account, and that of its tenant if it has one. Clones are the same.
#[derive(Clone)]
pub(crate) struct Bounds {
    account: Lock<Account>,
    tenant: Option<Lock<Allowance>>,
}

impl Bounds {
    pub(crate) fn with<R>(&self, handle: &Handle, act: impl FnOnce(&mut Account, Option<&mut Allowance>) -> R) -> R {
        self.account.with(handle, |account| match &self.tenant {
            Some(tenant) => tenant.with(handle, |tenant| act(account, Some(tenant))),
            None => act(account, None),
        })
    }
}

struct Books {
    tenants: Map<TenantKey, Entry>,
    shares: Shares,
    together: Together,
    /// Accounts of volumes and tenants without connections, those that left last at the end: who comes back finds his debts
    /// and his credits.
    left: VecDeque<(TenantKey, Option<VolumeId>, Bound)>,
}

/// What was left behind.
enum Bound {
    Volume(Lock<Account>),
    Tenant(Lock<Allowance>),
}

impl Books {
    fn remember(&mut self, key: TenantKey, volume: Option<VolumeId>, bound: Bound) {
        if self.left.len() >= REMEMBERED {
            self.left.pop_front();
        }
        self.left.push_back((key, volume, bound));
    }

    fn recall(&mut self, key: TenantKey, volume: Option<VolumeId>) -> Option<Bound> {
        let at = self.left.iter().position(|(tenant, other, _)| (*tenant, *other) == (key, volume))?;
        self.left.remove(at).map(|(.., bound)| bound)
    }
}

#[derive(Default)]
struct Entry {
    name: String,
    /// What all its volumes together may start.
    bound: Option<Lock<Allowance>>,
    volumes: BTreeMap<VolumeId, Used>,
}

/// A volume with connections.
struct Used {
    name: String,
    levels: Levels,
    connections: usize,
    account: Lock<Account>,
}

impl Used {
    /// Whether the agent counts what it starts: it has levels, or its tenant has.
    fn is_bound(&self, settings: &LevelsSettings) -> bool {
        let has_levels = !self.levels.base.is_none() || !self.levels.burst.is_none();
        settings.enforcer == Enforcer::Agent && (has_levels || !settings.tenant_burst.is_none())
    }
}

impl Entry {
    /// The sum of the bases of its volumes; none where none has one.
    fn base(&self, settings: &TenantsSettings) -> Option<Cost> {
        let bases = self.volumes.values().map(|used| used.levels.base).filter(|base| !base.is_none());
        bases.map(|base| settings.profile.of_rate(base.iops, base.bytes_per_sec)).reduce(|sum, base| sum + base)
    }
}

impl Roster {
    pub(crate) fn new(loops: usize, levels: LevelsSettings) -> Roster {
        let books = Books {
            tenants: Map::default(),
            shares: Shares::new(loops),
            together: Together::default(),
            left: VecDeque::new(),
        };
        Roster { books: Lock::new(books), revision: Arc::default(), loops: loops.max(1), levels }
    }

    /// What an account is to hold a volume to: nothing, where the servers do.
    fn held_to(&self, volume: &VolumeDescriptor) -> Levels {
        match self.levels.enforcer {
            Enforcer::Agent => volume.levels,
            Enforcer::Server => Levels::default(),
        }
    }

    pub(crate) fn changed(&self) {
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// A connection uses a volume, whose levels are what was just found.
    pub(crate) fn enter(&self, handle: &Handle, key: TenantKey, volume: &VolumeDescriptor) -> Bounds {
        let (now, levels, settings) = (handle.now(), self.held_to(volume), self.levels);
        let bounds = self.books.with(handle, |books| {
            let (account, bound) = (books.recall(key, Some(volume.id)), books.recall(key, None));
            let entry = books.tenants.entry(key).or_default();
            if let Some(Bound::Tenant(bound)) = bound {
                entry.bound = Some(bound);
            }
            let name = if volume.owner.is_empty() { &volume.name } else { &volume.owner };
            entry.name.clone_from(name);
            if settings.enforcer == Enforcer::Agent && !settings.tenant_burst.is_none() {
                let levels = Levels { burst: settings.tenant_burst, ..Levels::default() };
                entry.bound.get_or_insert_with(|| Lock::new(Allowance::new(levels, INTERVAL, DEPTH, now)));
            }
            let used = entry.volumes.entry(volume.id).or_insert_with(|| Used {
                name: String::new(),
                levels: volume.levels,
                connections: 0,
                account: match account {
                    Some(Bound::Volume(account)) => account,
                    _ => Lock::new(Account::new(levels, self.loops, now)),
                },
            });
            used.name.clone_from(&volume.name);
            (used.levels, used.connections) = (volume.levels, used.connections + 1);
            used.account.with(handle, |account| account.change(levels, now));
            Bounds { account: used.account.clone(), tenant: entry.bound.clone() }
        });
        self.changed();
        bounds
    }

    pub(crate) fn leave(&self, handle: &Handle, key: TenantKey, volume: VolumeId) {
        self.books.with(handle, |books| {
            let Some(entry) = books.tenants.get_mut(&key) else { return };
            let Some(used) = entry.volumes.get_mut(&volume) else { return };
            used.connections -= 1;
            if used.connections > 0 {
                return;
            }
            let used = entry.volumes.remove(&volume);
            let bound = if entry.volumes.is_empty() { entry.bound.take() } else { None };
            if entry.volumes.is_empty() {
                books.tenants.remove(&key);
                books.shares.forget(key.0);
                books.together.forget(key.0);
            }
            if let Some(used) = used {
                books.remember(key, Some(volume), Bound::Volume(used.account));
            }
            if let Some(bound) = bound {
                books.remember(key, None, Bound::Tenant(bound));
            }
        });
        self.changed();
    }

    /// How many loops there are.
    pub(crate) fn loops(&self) -> usize {
        self.loops
    }

    /// Another one when what was promised has changed.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Tells what a tenant wanted on a loop: its base, and what part of that it has there. `on_volume` hears of its volumes
    /// whether the agent counts what they start.
    pub(crate) fn exchange(
        &self,
        handle: &Handle,
        key: TenantKey,
        (index, demand): (usize, f64),
        settings: &TenantsSettings,
        mut on_volume: impl FnMut(VolumeId, bool),
    ) -> (Option<Cost>, f64) {
        self.books.with(handle, |books| {
            let entry = books.tenants.get(&key);
            for (id, used) in entry.iter().flat_map(|entry| &entry.volumes) {
                on_volume(*id, used.is_bound(&self.levels));
            }
            let base = entry.and_then(|entry| entry.base(settings));
            (base, books.shares.exchange(key.0, index, demand))
        })
    }

    /// These had more than their base on a loop.
    pub(crate) fn note_bursting(&self, handle: &Handle, keys: &[TenantKey], now: Instant) {
        if !keys.is_empty() {
            self.books.with(handle, |books| keys.iter().for_each(|key| books.together.note(key.0, now.0)));
        }
    }

    /// A volume was promised something else.
    pub(crate) fn set_levels(&self, handle: &Handle, volume: &VolumeDescriptor) {
        let key = TenantKey::of(volume);
        self.books.with(handle, |books| {
            let known = books.tenants.get_mut(&key).and_then(|entry| entry.volumes.get_mut(&volume.id));
            if let Some(used) = known {
                used.levels = volume.levels;
                let (levels, now) = (self.held_to(volume), handle.now());
                used.account.with(handle, |account| account.change(levels, now));
            }
        });
        self.changed();
    }

    /// Every tenant that is there, by key, with what was promised to its volumes.
    pub(crate) fn tenants(&self, handle: &Handle) -> BTreeMap<TenantKey, TenantStatistics> {
        self.books.with(handle, |books| {
            let entries = books.tenants.iter().map(|(key, entry)| {
                let bases = entry.volumes.values().map(|used| used.levels.base);
                let base = bases.fold(Rate::default(), |sum, base| Rate {
                    iops: sum.iops + base.iops,
                    bytes_per_sec: sum.bytes_per_sec + base.bytes_per_sec,
                });
                let volumes = entry.volumes.values().map(|used| used.name.clone()).collect();
                let (name, burst) = (entry.name.clone(), self.levels.tenant_burst);
                let named = |(key, share): (u64, f64)| Some((books.tenants.get(&TenantKey(key))?.name.clone(), share));
                let bursts_with = books.together.of(key.0).into_iter().filter_map(named).collect();
                (*key, TenantStatistics { name, volumes, base, burst, bursts_with, ..TenantStatistics::default() })
            });
            entries.collect()
        })
    }
}
