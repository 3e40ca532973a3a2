//! Waiting for several things at once, and going no faster than agreed.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use base::Instant;
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
    bytes_per_sec: u64,
    next: Instant,
}

impl Pace {
    /// A pace of so many bytes in a second, which starts now.
    pub(crate) fn new(handle: &Handle, bytes_per_sec: u64) -> Self {
        Pace { handle: handle.clone(), bytes_per_sec: bytes_per_sec.max(1), next: handle.now() }
    }

    /// Waits until `bytes` more are in order. Time in which nothing was asked for is not made up for.
    pub(crate) async fn spend(&mut self, bytes: u64) {
        self.handle.yield_now().await;
        self.handle.sleep_until(self.next).await;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_sec);
        self.next = self.next.max(self.handle.now()) + Duration::from_nanos(nanos as u64);
    }
}
