//! The event loop that every byte of Levee runs on, and its two worlds.
//!
//! A **loop** is one thread with tasks of two classes, `Io` and `Background` (priority-based task scheduling, NSDI
//! 2026, §4.3). Tasks are `!Send`, never preempted, and talk to the world through one [`Handle`] that is passed
//! down. Behind the handle sits a [`driver::Driver`]: [`uring`] is the real world, [`sim`] a deterministic one with
//! virtual time, disks that tear and lie, and a network that drops. The same code runs in both.
//!
//! One turn of the loop (the decision how long background work may go on is `policies::loop_schedule`):
//! 1. receive (reap completions) if no I/O task is ready;
//! 2. run the I/O tasks that are ready, and their synchronous successors, up to a cap;
//! 3. run the turn-end hooks: the Fusion Write Engine closes its data block here;
//! 4. **submit** what they queued;
//! 5. run background tasks while `elapsed < DLT = max(alpha * T_io, LT)`;
//! 6. submit again; when nothing is ready, block until a completion, a timer or a wake-up.
//!
//! Names: an *operation* is one request to the driver; its *outcome* comes back once. A *turn* is one round of the
//! loop. *Foreign* is everything outside the loop's thread.
//!
//! Invariants: a buffer belongs to the driver from submission to completion, even when the waiting future was
//! dropped; wakers may be called from any thread; an idle loop sleeps in the kernel.

pub mod doorbell;
pub mod driver;
pub mod executor;
pub mod file;
pub mod guest;
mod handle;
pub mod net;
pub mod offload;
pub mod shared;
pub mod sim;
pub mod statistics;
pub mod sync;
pub mod uring;

pub use doorbell::Doorbell;
pub use driver::{Address, DirectoryEntry, OpenOptions, Space, Work};
pub use file::File;
pub use handle::{Class, Handle, Task};
pub use net::{Listener, Released, Stream};
pub use shared::{Lock, SharedBudget, SharedPermit};
