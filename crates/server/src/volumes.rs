//! What a server knows of volumes: it asks, or it was told.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Error, Generation, Map, Result, VolumeId};
use wire::{VolumeDescriptor, VolumeDirectory};

/// See the module.
pub(crate) enum Volumes {
    /// It asks the directory each time.
    Asked(Rc<dyn VolumeDirectory>),
    /// It was told, with the newest attachment that is recorded here: no manager is needed to open a session again.
    Told(RefCell<Map<VolumeId, VolumeDescriptor>>),
}

impl Volumes {
    pub(crate) fn asked(directory: Rc<dyn VolumeDirectory>) -> Volumes {
        Volumes::Asked(directory)
    }

    pub(crate) fn told() -> Volumes {
        Volumes::Told(RefCell::default())
    }

    /// The volume, if `generation` is the newest that is recorded for it.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`.
    pub(crate) async fn current(&self, volume: VolumeId, generation: Generation) -> Result<VolumeDescriptor> {
        let descriptor = match self {
            Volumes::Asked(directory) => directory.describe(volume).await?,
            Volumes::Told(told) => {
                let told = told.borrow().get(&volume).cloned();
                let told = told.ok_or_else(|| Error::moved(format!("nothing of {volume} is here")))?;
                if told.generation < generation {
                    // Whoever has a segment of it was told of that attachment before it returned.
                    return Err(Error::moved(format!("nothing of {volume} is here any more")));
                }
                told
            }
        };
        match descriptor.generation == generation || base::seeded::is_on("old-attachment-served") {
            true => Ok(descriptor),
            false => {
                let recorded = descriptor.generation;
                Err(Error::fenced(format!("{volume} is attached under {recorded}, not {generation}")))
            }
        }
    }

    /// Learns of a volume. Whether its attachment is newer than what was known.
    ///
    /// # Errors
    /// The newer one that is known.
    pub(crate) fn tell(&self, descriptor: &VolumeDescriptor) -> Result<bool, Generation> {
        let Volumes::Told(told) = self else { return Ok(false) };
        let mut told = told.borrow_mut();
        let known = told.get(&descriptor.id).map(|known| known.generation);
        if let Some(known) = known.filter(|known| *known > descriptor.generation) {
            return Err(known);
        }
        told.insert(descriptor.id, descriptor.clone());
        Ok(known.is_none_or(|known| known < descriptor.generation))
    }

    /// The volume is gone.
    pub(crate) fn forget(&self, volume: VolumeId) {
        if let Volumes::Told(told) = self {
            told.borrow_mut().remove(&volume);
        }
    }
}
