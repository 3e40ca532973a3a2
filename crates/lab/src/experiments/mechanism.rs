//! What can be taken away from an experiment, to see whether its result needs it.
//!
//! A figure that is still met without the mechanism that it is about shows nothing of that mechanism. So every printed
//! number names what it depends on, each of those is turned off in turn, and the number must then be missed. Numbers of
//! a baseline have a cause in place of a mechanism: a burst, a cap, background tasks.

use serde::Serialize;

/// Something that a printed number depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// The second bucket (NSDI 2026, §4.2): without it steady segments have the main one only.
    ChequeBucket,
    /// Segments that ask for too much are told from others (§4.2): without it all are steady.
    HotMarking,
    /// What is left of the store is read from latency by what was fitted to this store (§4.2, equation 2): without it by an
    /// ideal queue.
    Estimate,
    /// I/O-related tasks first (§4.3): without it all tasks are in one queue, in the order of their arrival.
    Priority,
    /// A volume's segments are on different servers (§2.2): without it all of them are on one.
    Spreading,
    /// Clients that ask for more than the limit: without it there is a constant load below it.
    Burst,
    /// Tasks of the server that are no I/O: without it the loop has nothing else to do.
    BackgroundTasks,
    /// A limit for each client: without it there is none.
    Cap,
    /// Who may spend what in each window (OSDI 2024, §5.2): without it there is one budget for all, and they take turns.
    TenantScheduler,
    /// Who comes back takes his own from those who have more than theirs, and from the reserve (§5.2).
    Recovery,
    /// What nobody is allocated (§5.2): without it who comes back has what others have left.
    Reserve,
    /// Cost follows delay (§5.3): without it it is what the profile says.
    CostAdjustment,
    /// A request costs in each dimension what it takes there (§5.3): without it, the most of all in each.
    VectorCost,
    /// All loops serve each queue of a virtual machine (§5.1): without it each queue belongs to one.
    SharedQueues,
    /// What messages between loops cost: without it they cost nothing.
    Messages,
    /// Bursts of a volume are told from its steady writes (SIGMETRICS 2023, §3.2): without it all are steady.
    BurstDetection,
    /// A burst goes to all servers in turn (§3.3): without it, to one for each volume.
    RoundRobin,
    /// Replicas of an address map agree on each change before a write is acknowledged (§2.4): without it one of them is enough.
    Synchronization,
    /// Of replicas the one that is least busy is asked (§2.4): without it always the same one.
    ReplicaChoice,
    /// What is in logs comes home (§3.4): without it it stays there.
    Merging,
    /// Merging waits for moments in which nobody wants the server (§3.4): without it it waits for nobody.
    Coordination,
    /// Agents find out what is a burst, and whether spreading gains (§4, and [`policies::forwarding::Gain`]): without it nothing is spread.
    FindingOut,
}

impl Mechanism {
    /// As tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::ChequeBucket => "cheque bucket",
            Mechanism::HotMarking => "hot marking",
            Mechanism::Estimate => "fitted estimate",
            Mechanism::Priority => "priority",
            Mechanism::Spreading => "spreading",
            Mechanism::Burst => "burst",
            Mechanism::BackgroundTasks => "background tasks",
            Mechanism::Cap => "cap",
            Mechanism::TenantScheduler => "scheduler",
            Mechanism::Recovery => "recovery",
            Mechanism::Reserve => "reserve",
            Mechanism::CostAdjustment => "cost adjustment",
            Mechanism::VectorCost => "vector cost",
            Mechanism::SharedQueues => "shared queues",
            Mechanism::Messages => "cost of messages",
            Mechanism::BurstDetection => "burst detection",
            Mechanism::RoundRobin => "round robin",
            Mechanism::Synchronization => "synchronization",
            Mechanism::ReplicaChoice => "choice of replicas",
            Mechanism::Merging => "merging",
            Mechanism::Coordination => "prioritized coordination",
            Mechanism::FindingOut => "what agents find out",
        }
    }
}
