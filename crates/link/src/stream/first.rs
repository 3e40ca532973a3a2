//! Waiting for one of two things.

pub(super) use runtime::sync::first;
