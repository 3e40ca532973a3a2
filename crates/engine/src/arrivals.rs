//! Which assignments of segments may still come true here: each epoch once, and only the newest.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Epoch, Error, Result, SegmentId};

/// Who may still come, and who is on the way. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Arrivals(Rc<Inner>);

#[derive(Default)]
struct Inner {
    on_the_way: RefCell<BTreeSet<SegmentId>>,
    /// The newest epoch of each segment that was begun or refused. An assignment that comes late, or twice, is told by
    /// that. It need not be in a log: with its life the engine ends, too, and takes nothing any more.
    newest: RefCell<BTreeMap<SegmentId, Epoch>>,
}

/// A segment on its way here, until it is dropped.
pub(crate) struct Arrival {
    arrivals: Arrivals,
    id: SegmentId,
    epoch: Epoch,
}

impl Arrivals {
    /// Nobody else lets the segment arrive until the guard is dropped.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn begin(&self, id: SegmentId, epoch: Epoch) -> Result<Arrival> {
        let newest = self.0.newest.borrow().get(&id).copied();
        if let Some(newest) = newest.filter(|newest| epoch <= *newest) {
            return Err(Error::conflict(format!("{id} was here, or was refused, under {newest}: {epoch} is over")));
        }
        match self.0.on_the_way.borrow_mut().insert(id) {
            true => Ok(Arrival { arrivals: self.clone(), id, epoch }),
            false => Err(Error::conflict(format!("{id} is on its way here already"))),
        }
    }

    /// Under no epoch up to `epoch` the segment arrives any more.
    ///
    /// # Errors
    /// `Conflict`: it is on its way.
    pub(crate) fn refuse(&self, id: SegmentId, epoch: Epoch) -> Result<()> {
        if self.0.on_the_way.borrow().contains(&id) {
            return Err(Error::conflict(format!("{id} is about to be here")));
        }
        self.see(id, epoch);
        Ok(())
    }

    /// The newest epoch of a segment that was begun or refused here.
    pub(crate) fn newest(&self, id: SegmentId) -> Option<Epoch> {
        self.0.newest.borrow().get(&id).copied()
    }

    fn see(&self, id: SegmentId, epoch: Epoch) {
        let mut newest = self.0.newest.borrow_mut();
        let newest = newest.entry(id).or_insert(epoch);
        *newest = epoch.max(*newest);
    }
}

impl Arrival {
    /// It is here.
    pub(crate) fn complete(self) {
        self.arrivals.see(self.id, self.epoch);
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.arrivals.0.on_the_way.borrow_mut().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use base::{ErrorKind, VolumeId};

    use super::*;

    const ID: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

    #[test]
    fn each_epoch_comes_once_and_no_older_one_after_it() {
        let arrivals = Arrivals::default();
        let begin = |epoch| arrivals.begin(ID, Epoch(epoch));
        let first = begin(3).unwrap();
        assert_eq!(begin(4).map(drop).unwrap_err().kind, ErrorKind::Conflict, "one at a time");
        assert_eq!(arrivals.refuse(ID, Epoch(5)).unwrap_err().kind, ErrorKind::Conflict, "too late to refuse");
        drop(first);
        // It did not come: the same assignment may come again.
        begin(3).unwrap().complete();
        assert!(begin(3).is_err() && begin(2).is_err());
        arrivals.refuse(ID, Epoch(6)).unwrap();
        arrivals.refuse(ID, Epoch(4)).unwrap();
        assert!(begin(6).is_err(), "what was refused is not taken, however late it comes");
        begin(7).unwrap().complete();
    }
}
