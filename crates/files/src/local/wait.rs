//! Waiting for several things at once, and going no faster than agreed.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use base::Instant;
use policies::background::{Spare, rebuild_pace};
use runtime::Handle;

/// The results of all `futures`, in their order. They run together.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(move |cx| {
        for (future, result) in running.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *result = Some(value);
            }
        }
        match results.iter().all(Option::is_some) {
            true => Poll::Ready(results.drain(..).flatten().collect()),
            false => Poll::Pending,
        }
    })
    .await
}

/// The results of both. They run together.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let mut results = (None, None);
    poll_fn(move |cx| {
        if results.0.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(cx)
        {
            results.0 = Some(value);
        }
        if results.1.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(cx)
        {
            results.1 = Some(value);
        }
        match (results.0.take(), results.1.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            unfinished => {
                results = unfinished;
                Poll::Pending
            }
        }
    })
    .await
}

/// The results of `work` on each of `items`, in their order, at most `at_once` together.
pub(crate) async fn bounded<I, F: Future>(
    items: impl IntoIterator<Item = I>,
    at_once: usize,
    mut work: impl FnMut(I) -> F,
) -> Vec<F::Output> {
    let mut items = items.into_iter();
    let mut results = Vec::new();
    loop {
        let batch = items.by_ref().take(at_once).map(&mut work).collect::<Vec<_>>();
        if batch.is_empty() {
            return results;
        }
        results.extend(all(batch).await);
    }
}

/// A rate that background work keeps.
pub(crate) struct Pace {
    handle: Handle,
    most: u64,
    spare: Rc<Cell<Spare>>,
    next: Instant,
    least: u64,
}

impl Pace {
    /// A pace of so many bytes in a second, which starts now.
    pub(crate) fn new(handle: &Handle, bytes_per_sec: u64) -> Self {
        Pace::beside(&Rc::default(), handle, 0, bytes_per_sec)
    }

    /// The pace of what copies `most` bytes in a second, or less where foreground work leaves less, but `least`.
    pub(crate) fn beside(spare: &Rc<Cell<Spare>>, handle: &Handle, least: u64, most: u64) -> Self {
        Pace { handle: handle.clone(), most, spare: spare.clone(), next: handle.now(), least }
    }

    /// Waits until `bytes` more are in order. Time in which nothing was asked for is not made up for.
    pub(crate) async fn spend(&mut self, bytes: u64) {
        self.handle.yield_now().await;
        self.handle.sleep_until(self.next).await;
        let now = self.handle.now();
        let bytes_per_sec = rebuild_pace(self.most, self.least, self.spare.get().at(now)).max(1);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_sec);
        self.next = self.next.max(now) + Duration::from_nanos(nanos as u64);
    }
}

#[cfg(test)]
mod tests {
    use base::MIB;
    use policies::background::Left;
    use runtime::sim::{NodeOptions, World};

    use super::*;

    #[test]
    fn copies_are_made_of_what_foreground_work_leaves() {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let spare: Rc<Cell<Spare>> = Rc::default();
        let (here, told) = (handle.clone(), spare.clone());
        let copied = world.block_on(&handle, async move {
            let mut pace = Pace::beside(&told, &here, 4 * MIB, 64 * MIB);
            let mut copied = Vec::new();
            for left in [Left::All, Left::Unknown, Left::Bytes(32 * MIB), Left::Bytes(0)] {
                let begun = here.now();
                let mut bytes = 0;
                while here.now() < begun + Duration::from_secs(4) {
                    told.set(Spare::new(here.now(), left));
                    pace.spend(MIB).await;
                    bytes += MIB;
                }
                copied.push(bytes / MIB / 4);
            }
            copied
        });
        assert_eq!(copied, [64, 32, 16, 4]);
    }
}
