//! Every decision of Levee as a pure state machine: time and randomness are arguments, nothing here does I/O.
//!
//! A policy has one shape: `new(settings, now)`, `on_<event>(now, event)`, `plan_<decision>(now)`; integers for its
//! state. A paper's baseline is a setting of the same policy, not another one.

pub mod admission;
pub mod background;
pub mod burst;
pub mod dump;
pub mod fail_slow;
pub mod forwarding;
pub mod fusion;
pub mod gc;
pub mod levels;
pub mod loop_schedule;
pub mod merge;
pub mod ownership;
pub mod polling;
pub mod queues;
pub mod read_ahead;
pub mod ready;
pub mod scrub;
pub mod sharding;
pub mod slow_requests;
pub mod spreading;
pub mod tenants;
pub mod waits;
