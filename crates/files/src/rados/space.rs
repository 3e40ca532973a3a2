//! What a life may set aside for files, and how it gets more: see `Claim`, and rule 44 of docs/SAFETY.md.

use std::rc::Rc;

use base::units::format_size;
use base::{Error, ErrorKind, Incarnation, Result};
use runtime::Class;

use super::failed;
use super::head::Room;
use super::life::Life;
use super::records::LifeRecord;
use crate::Claim;

impl Life {
    /// What may still be set aside without asking.
    pub(super) fn free(&self) -> u64 {
        self.space.granted().saturating_sub(self.known.used())
    }

    /// Sets `bytes` aside for a file.
    ///
    /// # Errors
    /// `Full`, `Fenced`, `Io`.
    pub(super) async fn claim(&self, bytes: u64, claim: Claim) -> Result<()> {
        if claim == Claim::Adoption && self.claim_for_adoption(bytes).await? {
            return Ok(());
        }
        let full = match self.claim_granted(bytes).await {
            Err(full) if full.kind == ErrorKind::Full => full,
            claimed => return claimed,
        };
        // Files of the dead may have gone since somebody counted them.
        if self.count_the_dead().await? {
            match self.claim_granted(bytes).await {
                Err(error) if error.kind == ErrorKind::Full => {}
                claimed => return claimed,
            }
        }
        match claim == Claim::Log && self.overdraw(bytes).await? {
            true => Ok(()),
            false => Err(full),
        }
    }

    /// Of what this life was granted, or is granted now.
    async fn claim_granted(&self, bytes: u64) -> Result<()> {
        let _alone = self.space.asking.take(1).await;
        if bytes > self.free() {
            let missing = (self.known.used() + bytes).saturating_sub(self.space.granted());
            self.ask_for(missing, self.options.grant_bytes).await?;
        }
        if bytes > self.free() {
            return Err(Error::full(format!(
                "no room for a file of {}: {} are left of what incarnation {} was granted, and the store has no more; \
                 delete or discard something",
                format_size(bytes),
                format_size(self.free()),
                self.incarnation
            )));
        }
        self.known.claim(bytes);
        Ok(())
    }

    /// Grants itself what it copies from a dead one, so that it has as much for use as before. False: there is no such room.
    async fn claim_for_adoption(&self, bytes: u64) -> Result<bool> {
        let _alone = self.space.asking.take(1).await;
        let used = self.known.used();
        let wanted = self.space.granted() + bytes;
        let decide = |record: LifeRecord, room: Room| match wanted.max(used + bytes) <= room.in_all {
            true => LifeRecord { granted: wanted, used: used + bytes, ..record },
            false => record,
        };
        let is_granted = self.ask(decide).await?.granted >= wanted;
        if is_granted {
            self.known.claim(bytes);
        }
        Ok(is_granted)
    }

    /// Claims more than was granted.
    async fn overdraw(&self, bytes: u64) -> Result<bool> {
        let _alone = self.space.asking.take(1).await;
        let wanted = self.known.used() + bytes;
        let decide = |record: LifeRecord, room: Room| match wanted.max(record.granted) <= room.in_all {
            true => LifeRecord { used: wanted, ..record },
            false => record,
        };
        let is_claimed = self.ask(decide).await?.used >= wanted;
        if is_claimed {
            self.known.claim(bytes);
        }
        Ok(is_claimed)
    }

    /// `missing` bytes more, or nothing; and as many as `usual` if there is room for them.
    async fn ask_for(&self, missing: u64, usual: u64) -> Result<()> {
        let (granted, used) = (self.space.granted(), self.known.used());
        let decide = |record: LifeRecord, room: Room| {
            let more = room.for_use.saturating_sub(granted).min(missing.max(usual));
            LifeRecord { granted: granted + if more < missing { 0 } else { more }, used, ..record }
        };
        self.ask(decide).await.map(drop)
    }

    async fn ask(&self, decide: impl Fn(LifeRecord, Room) -> LifeRecord) -> Result<LifeRecord> {
        let capacity = self
            .pools
            .largest()
            .capacity()
            .await
            .map_err(|failure| failed(failure, || "the size of the pool".into()))?;
        let record = self.heads.grant(self.incarnation, capacity, decide).await?;
        self.space.granted.set(record.granted);
        Ok(record)
    }

    /// What a life begins with.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn ask_for_first(&self) -> Result<()> {
        let _alone = self.space.asking.take(1).await;
        self.ask_for(0, self.options.grant_bytes).await
    }

    /// Asks for more before it is needed, so that `bytes` are free.
    pub(super) fn grow_ahead(self: &Rc<Self>, bytes: u64) {
        if self.free() >= bytes || self.space.is_growing.replace(true) {
            return;
        }
        let life = self.clone();
        let growing = async move {
            let _alone = life.space.asking.take(1).await;
            let missing = bytes.saturating_sub(life.free());
            if let Err(error) = life.ask_for(missing, life.options.grant_bytes).await {
                tracing::warn!(incarnation = %life.incarnation, "no more space was granted: {error}");
            }
            life.space.is_growing.set(false);
        };
        self.handle.spawn(Class::Background, "grant", growing).detach();
    }

    /// Counts what lives that are over have left, and ends what they had begun to remove. Whether that is less than before.
    ///
    /// # Errors
    /// `Io`.
    async fn count_the_dead(&self) -> Result<bool> {
        let mut is_less = false;
        let seen = self.heads.seen().await?;
        for (life, record) in seen.lives.iter().filter(|(_, record)| record.is_fenced) {
            is_less |= self.settle(*life).await? < record.used;
        }
        Ok(is_less)
    }

    /// Ends what a life that is over had begun to remove, and writes down what it left: gives that.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn settle(&self, life: Incarnation) -> Result<u64> {
        let listed = self.directories.list(life).await?;
        let files = listed.map(|listed| listed.files).unwrap_or_default();
        let mut left = 0;
        for record in &files {
            match record.is_going {
                true => self.remove(record).await?,
                false => left += record.info.capacity,
            }
        }
        match files.iter().all(|record| record.is_going) {
            true => {
                self.heads.end_life(life, None).await?;
                self.directories.forget(life).await?;
            }
            false => self.heads.end_life(life, Some(left)).await?,
        }
        Ok(left)
    }
}
