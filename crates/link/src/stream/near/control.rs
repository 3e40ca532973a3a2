//! The near end as a directory, an owner and a user of volumes.
//!
//! Some methods of these traits return at once, and say something: what the levels of a volume are, and how much all of
//! them may come to hold. That goes out one after the other, the newest for each volume only. What could not be said
//! because the connection was lost is said by the manager when it connects anew, as it says everything then.

use std::rc::Rc;

use base::limits::VOLUMES_MAX;
use base::{Generation, Result, VolumeId};
use runtime::Class;
use wire::frame::{Request, Value};
use wire::{LocalBoxFuture, VolumeDescriptor, VolumeDirectory, VolumeOwner, VolumeUser};

use super::{Inner, NearEnd, State, Users, other};

impl Inner {
    async fn volume(self: Rc<Self>, request: Request) -> Result<VolumeDescriptor> {
        match self.ask_any(request).await? {
            Value::Volume(volume) => Ok(*volume),
            value => other(&value),
        }
    }

    pub(super) async fn done(self: Rc<Self>, request: Request) -> Result<()> {
        match self.ask_any(request).await? {
            Value::Done => Ok(()),
            value => other(&value),
        }
    }

    /// Says something in time, of a volume or of all; what is newer replaces what was not said yet.
    fn tell(self: &Rc<Self>, of: Option<VolumeId>, request: Request) {
        self.untold.borrow_mut().insert(of, request);
        if self.is_telling.replace(true) {
            return;
        }
        let inner = self.clone();
        let telling = async move {
            while let Some((_, request)) = { inner.untold.borrow_mut().pop_first() } {
                let kind = request.kind().name();
                if let Err(error) = inner.clone().done(request).await {
                    tracing::warn!(kind, %error, "an owner or user of volumes was not told something, until it is connected anew");
                }
            }
            inner.is_telling.set(false);
        };
        self.handle.spawn(Class::Io, "tell an owner", telling).detach();
    }

    /// Asks how many use a volume, for whoever wants to know it next.
    async fn ask_users(self: Rc<Self>, volume: VolumeId) {
        let count = match self.ask_any(Request::Users { volume }).await {
            Ok(Value::Count(count)) => usize::try_from(count).unwrap_or(usize::MAX),
            Ok(value) => other(&value),
            // Whoever cannot be reached uses nothing.
            Err(_) => 0,
        };
        if let Some(users) = self.users.borrow_mut().get_mut(&volume) {
            *users = Users { count, is_asked: false };
        }
    }
}

impl VolumeDirectory for NearEnd {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        Box::pin(self.0.clone().volume(Request::Resolve { name: name.to_owned() }))
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.0.clone().volume(Request::Describe { volume }))
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            match self.0.ask_any(Request::List).await? {
                Value::Names(names) => Ok(names),
                value => other(&value),
            }
        })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.0.clone().volume(Request::Take { volume }))
    }

    fn detach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.0.clone().done(Request::GiveBack { volume, generation }))
    }

    fn take_logs(
        &self,
        volume: VolumeId,
        generation: Generation,
        make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(self.0.clone().volume(Request::TakeLogs { volume, generation, make }))
    }
}

impl VolumeOwner for NearEnd {
    fn drop_volume(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.0.clone().done(Request::DropVolume { volume }))
    }

    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.0.clone().done(Request::BeginScrub))
    }

    fn set_levels(&self, volume: &VolumeDescriptor) {
        self.0.tell(Some(volume.id), Request::SetLevels(Box::new(volume.clone())));
    }

    fn set_provisioned(&self, bytes: u64) {
        self.0.tell(None, Request::SetProvisioned { bytes });
    }
}

impl NearEnd {
    /// How many clients of the other process use a volume, asked now ([`VolumeUser::users`] does not wait).
    ///
    /// # Errors
    /// `Io`: it cannot be asked.
    pub async fn count_users(&self, volume: VolumeId) -> Result<usize> {
        match self.0.clone().ask_any(Request::Users { volume }).await? {
            Value::Count(count) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
            value => other(&value),
        }
    }
}

impl VolumeUser for NearEnd {
    /// Returns when the user has released the volume, or cannot be reached: then its sessions end without it.
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.0.clone().done(Request::Release { volume }).await {
                tracing::warn!(%volume, %error, "who uses a volume could not be asked to release it");
            }
            self.0.users.borrow_mut().remove(&volume);
        })
    }

    /// Nothing happens where the other process uses no volumes.
    fn learn_levels(&self, volume: &VolumeDescriptor) {
        if let State::Live(live) = &*self.0.state.borrow()
            && !live.offered().user
        {
            return;
        }
        self.0.tell(Some(volume.id), Request::LearnLevels(Box::new(volume.clone())));
    }

    /// As many as there were when this was last asked: the other process is asked anew, and nobody waits for it.
    fn users(&self, volume: VolumeId) -> usize {
        let mut known = self.0.users.borrow_mut();
        if known.len() >= VOLUMES_MAX && !known.contains_key(&volume) {
            return 0;
        }
        let users = known.entry(volume).or_default();
        if !std::mem::replace(&mut users.is_asked, true) {
            self.0.handle.spawn(Class::Background, "users of a volume", self.0.clone().ask_users(volume)).detach();
        }
        users.count
    }
}
