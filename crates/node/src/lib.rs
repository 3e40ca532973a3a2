//! Puts the roles of a Levee process together: store, engine, block server, manager and agent on one loop, or with
//! engine and block server on several ([`shards`]).
//!
//! Nothing else assembles: every component takes what it needs as an argument, so the same node runs on io_uring and
//! in the simulated world, and several of them in one process of a test. [`settings`] says what it is told,
//! [`observer`] what it tells, [`inspect`] looks at a store that nobody runs, [`calibrate`] measures its disks, [`profile`] is what
//! requests take of its processors. A store of files for servers that share one is [`shared_files`], and the roles of those are in
//! [`cluster`].

mod addresses;
pub mod calibrate;
pub mod cluster;
mod devices;
pub mod inspect;
mod node;
mod observer;
pub mod profile;
pub mod settings;
mod shards;
pub mod shared_files;

pub use control::{http, rules};
pub use link::tls;
pub use node::{Node, Ready, nbd_uri};
pub use settings::Settings;
