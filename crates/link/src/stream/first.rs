//! Waiting for one of two things.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What came first; `Err` if that was `other`. What is not done is dropped.
pub(super) async fn first<A, B>(wanted: impl Future<Output = A>, other: impl Future<Output = B>) -> Result<A, B> {
    let (mut wanted, mut other) = (pin!(wanted), pin!(other));
    poll_fn(|cx| match wanted.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}
