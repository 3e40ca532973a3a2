//! What is asked of a pool of objects: changes under conditions, and reads.
//!
//! An **object** has bytes, *attributes* (a few, small) and *entries* (keys in order, each with a value). A [`Change`] is done
//! as a whole or not at all, and only if all of its conditions hold; changes of one object that were submitted one after the
//! other are done in that order, and when the answer says that one is done, it is durable in every copy. Nothing holds
//! between objects: no order, no common change.

use base::{AlignedBuf, Error, Gathered};

use crate::LocalBoxFuture;

/// What must hold for a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// There is no such object.
    Absent,
    /// There is.
    Present,
    /// An attribute has this value.
    Attribute(&'static str, Vec<u8>),
    /// An entry has this value.
    Entry(String, Vec<u8>),
    /// The object is there, and has no such entry, or one without a value.
    NoEntry(String),
}

/// One part of a change. What is written to an object that is not there makes it.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Bytes.
    Write {
        /// Where they go.
        offset: u64,
        /// Which.
        data: Gathered,
    },
    /// An attribute has this value.
    SetAttribute(&'static str, Vec<u8>),
    /// An entry has this value.
    SetEntry(String, Vec<u8>),
    /// There is no such entry any more.
    RemoveEntry(String),
    /// There is no such object any more.
    Remove,
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Change {
    pub(super) conditions: Vec<Condition>,
    pub(super) effects: Vec<Effect>,
    /// A pool that is full refuses it. Others it takes for as long as it can: without what they write nothing could be removed.
    pub(super) is_for_use: bool,
}

impl Change {
    /// One of an object, if that is there.
    pub fn of_present() -> Change {
        Change::default().only_if(Condition::Present)
    }

    /// The beginning of an object, if it is not there.
    pub fn of_absent() -> Change {
        Change::default().only_if(Condition::Absent)
    }

    /// The same under one more condition.
    pub fn only_if(mut self, condition: Condition) -> Change {
        self.conditions.push(condition);
        self
    }

    /// The same, if it is to be refused where the pool is full.
    pub fn for_use(self, is_for_use: bool) -> Change {
        Change { is_for_use, ..self }
    }

    /// The same with one more effect.
    pub fn and(mut self, effect: Effect) -> Change {
        self.effects.push(effect);
        self
    }
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The object is there, and should not be. Nothing was done.
    Exists,
    /// The object is not there. Nothing was done.
    Absent,
    /// An attribute or entry is not what it should be. Nothing was done.
    Changed,
    /// Anything else. With `Io` nobody knows whether it was done, or still will be; else it was not.
    Other(Error),
}

/// Attributes and entries of an object at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Look {
    /// All attributes, in no order.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Entries, in the order of keys.
    pub entries: Vec<(String, Vec<u8>)>,
    /// Whether there are more entries behind these.
    pub has_more: bool,
}

impl Look {
    /// The value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }
}

/// Most entries that one [`Objects::look`] gives.
pub const LOOK_MAX: usize = 1024;

/// Who is asked to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// Whoever answers for the object: it has every change that was answered.
    First,
    /// Any of those that have a copy. It may be behind, where the pool has just changed who has one.
    Any,
}

/// A pool.
pub trait Objects {
    /// What it is called in messages.
    fn name(&self) -> String;
    /// Does a change. It is submitted at the call, and done whoever waits for it.
    fn change(&self, object: &str, change: Change) -> LocalBoxFuture<'static, Result<(), Failure>>;
    /// Bytes: fewer where the object ends before.
    fn read(
        &self,
        object: &str,
        offset: u64,
        len: usize,
        copy: Copy,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf, Failure>>;
    /// The names of those that have a copy of an object, or would, first who answers for it.
    fn holders(&self, object: &str) -> LocalBoxFuture<'static, Result<Vec<String>, Failure>>;
    /// Attributes, and up to `max` entries behind `after`.
    fn look(&self, object: &str, after: &str, max: usize) -> LocalBoxFuture<'static, Result<Look, Failure>>;
    /// Whether whoever has a part of an object has all of it, so that [`Copy::Any`] says something: with erasure coding that is
    /// not so.
    fn has_copies(&self) -> bool;
    /// How many bytes all objects of the pool may have, about, one copy counted.
    fn capacity(&self) -> LocalBoxFuture<'static, Result<u64, Failure>>;
}
