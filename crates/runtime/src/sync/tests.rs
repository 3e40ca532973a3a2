use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls futures by hand and counts how often they were woken.
struct Poller {
    count: Arc<Count>,
    waker: Waker,
}

impl Poller {
    fn new() -> Self {
        let count = Arc::new(Count::default());
        Poller { waker: count.clone().into(), count }
    }

    fn poll<F: Future>(&self, future: &mut Pin<Box<F>>) -> Option<F::Output> {
        match future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn wakes(&self) -> usize {
        self.count.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_oneshot_gives_its_value_or_says_that_there_is_none() {
    let poller = Poller::new();
    let (sender, receiver) = oneshot();
    let mut receiver = Box::pin(receiver);
    assert_eq!(poller.poll(&mut receiver), None);
    assert!(!sender.is_abandoned());
    sender.send(7);
    assert_eq!((poller.wakes(), poller.poll(&mut receiver)), (1, Some(Some(7))));

    let (sender, receiver) = oneshot::<u8>();
    let mut receiver = Box::pin(receiver);
    assert_eq!(poller.poll(&mut receiver), None);
    drop(sender);
    assert_eq!((poller.wakes(), poller.poll(&mut receiver)), (2, Some(None)));

    let (sender, receiver) = oneshot();
    drop(receiver);
    assert!(sender.is_abandoned());
    sender.send(7);
}

#[test]
fn an_event_counts_from_the_call() {
    let poller = Poller::new();
    let event = Event::new();
    event.notify();
    let mut early = Box::pin(event.wait());
    let mut late = Box::pin(event.wait());
    assert_eq!(poller.poll(&mut late), None);
    event.notify();
    assert_eq!(poller.wakes(), 1);
    assert_eq!((poller.poll(&mut early), poller.poll(&mut late)), (Some(()), Some(())));
    assert_eq!(poller.poll(&mut Box::pin(event.wait())), None);
}

#[test]
fn a_dropped_wait_leaves_nothing_behind() {
    let poller = Poller::new();
    let event = Event::new();
    for _ in 0..100 {
        let mut wait = Box::pin(event.wait());
        assert_eq!(poller.poll(&mut wait), None);
        assert_eq!(poller.poll(&mut wait), None);
    }
    assert!(event.0.waiters.borrow().is_empty());
    event.notify();
    assert_eq!(poller.wakes(), 0);
}

#[test]
fn a_budget_serves_in_arrival_order() {
    let poller = Poller::new();
    let budget = Budget::new(10);
    let mut first = poller.poll(&mut Box::pin(budget.take(8))).expect("free");
    let mut large = Box::pin(budget.take(9));
    let mut small = Box::pin(budget.take(1));
    assert!(poller.poll(&mut large).is_none() && poller.poll(&mut small).is_none());
    assert!(budget.try_take(1).is_none(), "nobody jumps the line");
    first.release(7);
    assert_eq!((budget.available(), first.units(), budget.waiting()), (0, 1, 1));
    let large = poller.poll(&mut large).expect("granted");
    assert!(poller.poll(&mut small).is_none());
    drop(large);
    drop(poller.poll(&mut small).expect("granted"));
    drop(first);
    assert_eq!((budget.available(), budget.total(), poller.wakes()), (10, 10, 2));
}

#[test]
fn waiters_may_vanish_at_any_point() {
    let poller = Poller::new();
    let budget = Budget::new(4);
    let held = budget.try_take(4).expect("free");
    let mut head = Box::pin(budget.take(4));
    let mut next = Box::pin(budget.take(2));
    let mut last = Box::pin(budget.take(2));
    assert!(poller.poll(&mut head).is_none() && poller.poll(&mut next).is_none());
    drop(held);
    drop(head); // granted, but never polled again: its units go on
    let next = poller.poll(&mut next).expect("granted");
    assert!(poller.poll(&mut last).is_some());
    drop((next, last));
    assert_eq!(budget.available(), 4);

    let held = budget.try_take(3).expect("free");
    let head = budget.take(4);
    let mut next = Box::pin(budget.take(1));
    assert!(poller.poll(&mut next).is_none());
    drop(head); // the head leaves the line: the next one fits
    assert!(poller.poll(&mut next).is_some());
    drop((held, next));
    drop(budget.take(4)); // granted at once, never polled
    assert_eq!(budget.available(), 4);
}

#[test]
fn a_permit_splits() {
    let budget = Budget::new(5);
    let mut permit = budget.try_take(5).expect("free");
    let part = permit.split(2);
    drop(permit);
    assert_eq!((budget.available(), part.units()), (3, 2));
}

#[test]
#[should_panic(expected = "do not fit")]
fn more_than_the_total_never_comes() {
    drop(Budget::new(1).take(2));
}
