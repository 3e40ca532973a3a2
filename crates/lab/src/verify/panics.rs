//! Where the code under test gave up: a panic is a violation, and its place belongs into the report.

use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on panics are not printed but remembered, each by its thread. For programs that do nothing but verify.
pub fn remember() {
    std::panic::set_hook(Box::new(|panic| LAST.with(|last| *last.borrow_mut() = Some(panic.to_string()))));
}

/// The last panic of this thread, if they are remembered. Forgets it.
pub fn last() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}
