//! What one end does for others, until its loop ends.
//!
//! Who offers something often needs for it those that it offers it to: an agent asks the managers, who ask it. So each holds
//! the other, and nothing of them goes by itself. A process is gone with its loop, and the system takes back what it had; in
//! a simulated world many processes come and go, and what is held in a circle would be held until there is no memory left.

use std::cell::RefCell;
use std::future::pending;
use std::rc::{Rc, Weak};

use runtime::{Class, Handle, Task};

use super::Services;

/// See the module. All connections of an end share it.
pub(super) struct Offer {
    services: RefCell<Services>,
    /// Ends with the loop, or with this.
    _life: Task<()>,
}

impl Offer {
    /// Offers `services` until the loop of `handle` ends.
    pub(super) fn new(handle: &Handle, services: Services) -> Rc<Offer> {
        Rc::new_cyclic(|offer| {
            let end = End(offer.clone());
            let life = async move {
                let _end = end;
                pending().await
            };
            Offer { services: RefCell::new(services), _life: handle.spawn(Class::Background, "what is offered", life) }
        })
    }

    /// What `of` takes of it.
    pub(super) fn get<T>(&self, of: impl FnOnce(&Services) -> T) -> T {
        of(&self.services.borrow())
    }
}

/// Lets go of what is offered.
struct End(Weak<Offer>);

impl Drop for End {
    fn drop(&mut self) {
        let services = self.0.upgrade().map(|offer| offer.services.take());
        drop(services);
    }
}
