//! The block server: who may use a segment, and in which order its users change.
//!
//! A thin layer over the engine. A request passes it on its way down and its reply on the way up:
//!
//! `session -> ownership (epoch) -> range -> admission -> engine`
//!
//! A **session** is one agent's hold on one volume. Attaching a volume opens one under a generation that the volume
//! directory has recorded; every older session of the volume is closed at once and drained before the new one's first
//! request (docs/SAFETY.md, rule 29), so that a write of a former holder never lands behind one of the new
//! holder. **Ownership** is an epoch per segment; until segments move it is 1 everywhere, and it is checked all the
//! same. **Admission** decides which reads and writes start and which wait, and why (`gate`, [`policies::admission`]), and
//! bounds how many requests the engine works on at once.
//!
//! Invariants: at most one session of a volume is open; a closed session admits nothing; an open one was opened when
//! no request of an older one was in flight; every reply carries the owner's epoch, errors included.

mod backend;
mod gate;
mod owner;
mod server;
mod session;
mod statistics;
mod volumes;

pub use backend::Backend;
pub use gate::Buckets;
pub use owner::Owner;
pub use server::{Options, Server};
pub use statistics::{ServerStatistics, StageStatistics};
