//! Waiting for several futures of one task at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Drives `futures` together and returns their outputs in the same order.
///
/// For a few dozen: every wake polls all that are not done. The caller bounds the number.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    enum Slot<F: Future> {
        Running(Pin<Box<F>>),
        Done(Option<F::Output>),
    }
    let mut slots: Vec<Slot<F>> = futures.into_iter().map(|future| Slot::Running(Box::pin(future))).collect();
    let mut running = slots.len();
    poll_fn(move |cx| {
        for slot in &mut slots {
            if let Slot::Running(future) = slot
                && let Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *slot = Slot::Done(Some(output));
                running -= 1;
            }
        }
        if running > 0 {
            return Poll::Pending;
        }
        let outputs = slots.iter_mut().filter_map(|slot| match slot {
            Slot::Done(output) => output.take(),
            Slot::Running(_) => None,
        });
        Poll::Ready(outputs.collect())
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::{NodeOptions, World};
    use base::Instant;

    #[test]
    fn all_run_together_and_keep_their_order() {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let inside = handle.clone();
        let (outputs, elapsed) = world.block_on(&handle, async move {
            let start = inside.now();
            let sleepers = [30u64, 10, 20].map(|ms| {
                let handle = inside.clone();
                async move {
                    handle.sleep(Duration::from_millis(ms)).await;
                    ms
                }
            });
            (join_all(sleepers).await, inside.now() - start)
        });
        assert_eq!(outputs, [30, 10, 20]);
        assert!(elapsed < Duration::from_millis(31), "{elapsed:?}");
        assert!(world.now() > Instant::ZERO);
        let none: Vec<std::future::Ready<()>> = Vec::new();
        assert!(world.block_on(&handle, join_all(none)).is_empty());
    }
}
