//! The pools of a store: one that has all of it, or that and another one for data files.
//!
//! **Why two.** Records of lives and segments are entries of objects, which a pool with erasure coding does not keep, and
//! journals wait for the slowest copy. Data files are most of what a store has, and are written in large pieces: a pool for
//! them may have erasure coding, which takes half the space that three copies take, or slower disks.
//!
//! **Which one has a file** is said by its id, so that nobody has to ask; nothing else is different there: parts are made,
//! fenced and removed alike. A pool for data files says of which store they are ([`DataHead`](super::records::DataHead)), and
//! the store which pool it is, before the first file is made there. So whoever names another pool, or none, is refused.

use std::rc::Rc;

use base::{Error, FileId, Result};
use runtime::Handle;
use runtime::sync::first;

use super::contents::Contents;
use super::objects::Objects;
use super::records::is_apart;
use crate::LocalBoxFuture;

/// The pools of a store, as they are reached.
#[derive(Clone)]
pub struct StorePools {
    /// What has everything that is not elsewhere.
    pub main: Rc<dyn Objects>,
    /// Where data files are made, if not there. It needs to keep no entries.
    pub data: Option<Rc<dyn Objects>>,
}

impl From<Rc<dyn Objects>> for StorePools {
    fn from(main: Rc<dyn Objects>) -> StorePools {
        StorePools { main, data: None }
    }
}

impl StorePools {
    /// The one that takes what volumes hold: its size is that of the store.
    pub(super) fn largest(&self) -> &Rc<dyn Objects> {
        self.data.as_ref().unwrap_or(&self.main)
    }

    /// What both are called in messages.
    pub(super) fn name(&self) -> String {
        match &self.data {
            Some(data) => format!("{}, data files in {}", self.main.name(), data.name()),
            None => self.main.name(),
        }
    }
}

/// What is in the files of each of the pools.
pub(super) struct Places {
    main: Contents,
    data: Option<Contents>,
}

impl Places {
    pub(super) fn new(handle: &Handle, pools: &StorePools) -> Places {
        let contents = |objects: &Rc<dyn Objects>| Contents::new(handle, objects.clone());
        Places { main: contents(&pools.main), data: pools.data.as_ref().map(contents) }
    }

    /// Where a file is.
    ///
    /// # Errors
    /// `Invalid`: in the pool for data files, of which this process was not told.
    pub(super) fn of(&self, file: FileId) -> Result<&Contents> {
        match (&self.data, is_apart(file)) {
            (_, false) => Ok(&self.main),
            (Some(data), true) => Ok(data),
            (None, true) => Err(Error::invalid(format!(
                "file {file} is in a pool for data files, which this process was started without: start it again with \
                 rados:POOL?data=POOL"
            ))),
        }
    }

    /// See [`crate::Store::renewal`].
    pub(super) fn renewal(&self) -> LocalBoxFuture<'static, ()> {
        let main = self.main.pace().renewal();
        match &self.data {
            Some(data) => {
                let data = data.pace().renewal();
                Box::pin(async move { first(main, data).await.unwrap_or_default() })
            }
            None => Box::pin(main),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Contents> {
        std::iter::once(&self.main).chain(&self.data)
    }
}
