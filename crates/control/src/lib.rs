//! The control plane of a store: which volumes exist, who may use them, and how a person asks.
//!
//! One **manager** ([`service::Manager`]) lives on a loop as a `!Send` state machine and owns the volume [`table`], a
//! log with a checkpoint in the file layer. Agents and block servers know it as `wire::VolumeDirectory`, the world
//! through [`http`], which runs on a thread of its own, only parses, and sends typed [`service::Request`]s through a
//! bounded mailbox. [`metrics`] renders snapshots of the plain counters that every component holds.
//!
//! Invariants: what was answered is durable; I/O needs the manager only to attach; an id of a volume is never used
//! again.

pub mod charge;
pub mod cluster;
pub mod etcd;
pub mod http;
pub mod lease;
pub mod levels;
pub mod metrics;
pub mod observe;
pub mod owners;
pub mod rules;
pub mod service;
pub mod table;

pub use service::{Connection, Manager};
