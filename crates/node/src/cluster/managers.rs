//! The managers, as those see them who need the one in charge: agents.
//!
//! Whoever answered last is asked first. One that is not in charge, or cannot be reached, is followed by the next; when all
//! of them were asked in vain there is a pause, and then they are asked again, for a bounded time: one is in charge again
//! within a second after another one has died.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Generation, Result, SegmentId, VolumeId};
use link::stream::NearEnd;
use runtime::{Class, Handle};
use wire::{EngineRegistry, LocalBoxFuture, Located, SegmentDirectory, VolumeDescriptor, VolumeDirectory};

/// How long somebody is looked for who is in charge.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(50);
/// How often each is asked something, so that it knows who is in touch with it.
const GREETING: Duration = Duration::from_secs(1);

/// See the module.
pub struct Managers {
    handle: Handle,
    ends: Vec<NearEnd>,
    /// Who answered last.
    last: Cell<usize>,
}

impl Managers {
    /// The managers behind `ends`. They are greeted from time to time, for as long as this lives.
    pub fn new(handle: &Handle, ends: Vec<NearEnd>) -> Rc<Managers> {
        for end in &ends {
            handle.spawn(Class::Background, "greet a manager", greet(handle.clone(), end.clone())).detach();
        }
        Rc::new(Managers { handle: handle.clone(), ends, last: Cell::new(0) })
    }

    /// Asks whoever is in charge.
    async fn ask<T>(&self, question: impl Fn(NearEnd) -> LocalBoxFuture<'static, Result<T>>) -> Result<T> {
        let begun = self.handle.now();
        loop {
            let mut why = Error::io("there are no managers");
            for turn in 0..self.ends.len() {
                let at = (self.last.get() + turn) % self.ends.len();
                match question(self.ends[at].clone()).await {
                    Err(error) if matches!(error.kind, ErrorKind::Moved | ErrorKind::Io) => why = error,
                    answer => {
                        self.last.set(at);
                        return answer;
                    }
                }
            }
            if self.handle.now() - begun >= PATIENCE {
                return Err(Error::io(format!("no manager is in charge: {}", why.message)));
            }
            self.handle.sleep(PAUSE).await;
        }
    }
}

/// A manager knows agents by their connections: one that was lost is made again.
async fn greet(handle: Handle, end: NearEnd) {
    loop {
        if let Err(error) = end.missing(vec![]).await {
            tracing::debug!(%error, "a manager is not in touch");
        }
        handle.sleep(GREETING).await;
    }
}

impl VolumeDirectory for Managers {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        Box::pin(self.ask(move |end| {
            let name = name.to_owned();
            Box::pin(async move { end.resolve(&name).await })
        }))
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.ask(move |end| Box::pin(async move { end.describe(volume).await })))
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(self.ask(|end| Box::pin(async move { end.list().await })))
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        // Asked again it is one more attachment, and the one before is nobody's.
        Box::pin(self.ask(move |end| Box::pin(async move { end.attach(volume).await })))
    }

    fn detach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.ask(move |end| Box::pin(async move { end.detach(volume, generation).await })))
    }

    fn take_logs(
        &self,
        volume: VolumeId,
        generation: Generation,
        make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.ask(move |end| Box::pin(async move { end.take_logs(volume, generation, make).await })))
    }
}

impl SegmentDirectory for Managers {
    fn locate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Located>> {
        Box::pin(self.ask(move |end| Box::pin(async move { end.locate(segment).await })))
    }
}
