//! Protocols as states and steps, of which every one is visited: what may go wrong in any order of events, within
//! small bounds. docs/TESTING.md lists what is real code in each model, and what is left out.
//!
//! [`explore`] is the search. [`membership`]: which directories hold what was confirmed. [`recovery`]: what a start finds
//! in journals and logs. [`fencing`]: what stops a former owner, and a former holder. [`ownership`]: how segments change
//! hands. [`forwarding`]: what bursts leave in logs, and how it comes home. Each model can be given a flaw, to see that its
//! invariants notice it.

pub mod explore;
pub mod fencing;
pub mod forwarding;
pub mod membership;
pub mod ownership;
pub mod recovery;
pub mod small_set;
#[cfg(test)]
mod tests;
