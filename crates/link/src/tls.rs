//! TLS 1.3 for streams between processes, and for clients of disks.
//!
//! **Intuition.** Whoever can send bytes to a server could read every disk of it. With TLS each process shows a certificate of
//! the cluster's own authority, both ways, and the certificate says what its holder *is*: an agent that was broken into
//! can ask what agents ask, and nothing more.
//!
//! **Names.** The *credentials* of a process are three files of one directory: [`AUTHORITY`], whom it believes; [`CERTIFICATE`],
//! what it shows; [`KEY`]. A [`Role`] is what a certificate makes of its holder: it has the role's name ([`Role::dns_name`])
//! among its DNS names. A [`Channel`] is a byte stream, in the open or under TLS, for whoever does not care which.
//!
//! **Invariants** (SAFETY.md, rule 62). Both sides show certificates, always. No early data, no resumption: who was let in yesterday
//! shows today's certificate. Nothing that came before the upgrade is believed after it. A peer hears no byte of this side's
//! before both are sure of each other, but for an alert and for one sentence that says what it is missing.
//!
//! **Flow.** [`Credentials::accept`] or [`Credentials::connect`] on a [`Stream`] -> the files are looked at again, if that was a
//! moment ago -> the handshake -> a [`Channel`], and who is at its other end. Files that were replaced hold for the
//! next connection; those that are wrong then are said to be, and the former ones stay.

mod channel;
mod credentials;
mod reasons;
mod role;
mod secure;

pub use channel::Channel;
pub use credentials::{AUTHORITY, Accepted, CERTIFICATE, Credentials, KEY, Refused};
pub use role::Role;

#[cfg(test)]
mod tests;
