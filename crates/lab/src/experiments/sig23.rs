//! The figures of DiffForward (SIGMETRICS 2023), as far as they are about where traffic goes: who is asked for how much, and
//! when. [`workload`] is the traffic, [`schemes`] are the ways to spread it, [`balance`] is what is made of it.
//!
//! Nothing waits here: a write counts at the server that takes it, at the time when it was made. Latency is another matter.

pub mod balance;
pub mod detection;
pub mod schemes;
pub mod workload;
