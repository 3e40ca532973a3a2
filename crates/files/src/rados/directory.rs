//! The objects of lives, which have a record of each of their files, and those of segments, which have the files that name
//! them.
//!
//! A record is written before the file has its first byte, under the condition that the life is not fenced; so whoever has
//! fenced a life finds all of its files. An entry of a segment is a hint: it is there before the record is, and goes after
//! it, and one without a record means nothing.

use std::rc::Rc;

use base::{Error, FileId, Incarnation, Result, SegmentId};
use runtime::sync::join_all;

use super::failed;
use super::objects::{Change, Condition, Effect, Failure, LOOK_MAX, Objects};
use super::records::{FENCED, FileRecord, OPEN, STATE, creator, key, life_object, number, segment_object};

/// Operations on objects that one call has under way.
pub(super) const AT_ONCE: usize = 16;
/// Tries of one change, if others change the same record.
const TRIES: u32 = 16;

/// See the module.
pub(super) struct Directories {
    pub(super) objects: Rc<dyn Objects>,
}

/// The files of a life.
pub(super) struct Listed {
    pub(super) is_fenced: bool,
    /// In the order of ids, also those that are being removed.
    pub(super) files: Vec<FileRecord>,
}

/// A record, and whether its life is fenced.
pub(super) struct Found {
    pub(super) is_fenced: bool,
    pub(super) record: Option<FileRecord>,
}

impl Directories {
    /// The files of a life; none: there is no such life, or nothing is left of it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) async fn list(&self, life: Incarnation) -> Result<Option<Listed>> {
        let (mut listed, mut after) = (Listed { is_fenced: false, files: vec![] }, String::new());
        loop {
            let look = match self.objects.look(&life_object(life), &after, LOOK_MAX).await {
                Ok(look) => look,
                Err(Failure::Absent) => return Ok(None),
                Err(failure) => return Err(failed(failure, || format!("the files of incarnation {life}"))),
            };
            listed.is_fenced = is_fenced(life, look.attribute(STATE))?;
            for (key, value) in &look.entries {
                listed.files.push(FileRecord::decode(FileId(number(key)?), value)?);
            }
            match look.entries.last() {
                Some((last, _)) if look.has_more => after.clone_from(last),
                _ => return Ok(Some(listed)),
            }
        }
    }

    /// Whether nothing is left of a life's files.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn is_empty(&self, life: Incarnation) -> Result<bool> {
        match self.objects.look(&life_object(life), "", 1).await {
            Ok(look) => Ok(look.entries.is_empty()),
            Err(Failure::Absent) => Ok(true),
            Err(failure) => Err(failed(failure, || format!("the files of incarnation {life}"))),
        }
    }

    /// What the life that created a file says of it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) async fn find(&self, file: FileId) -> Result<Found> {
        let (life, gone) = (creator(file), Found { is_fenced: true, record: None });
        // The first entry behind the one before.
        let Some(before) = file.0.checked_sub(1) else { return Ok(gone) };
        let look = match self.objects.look(&life_object(life), &key(before), 1).await {
            Ok(look) => look,
            Err(Failure::Absent) => return Ok(gone),
            Err(failure) => return Err(failed(failure, || format!("what is known of file {file}"))),
        };
        let record = match look.entries.first() {
            Some((name, value)) if *name == key(file.0) => Some(FileRecord::decode(file, value)?),
            _ => None,
        };
        Ok(Found { is_fenced: is_fenced(life, look.attribute(STATE))?, record })
    }

    /// Writes down that a life has one more file.
    ///
    /// # Errors
    /// `Fenced`, `Full`; `Io`: nobody knows whether it has.
    pub(super) async fn register(&self, record: &FileRecord) -> Result<()> {
        let (file, life) = (record.info.id, record.info.incarnation);
        if let Some(segment) = record.info.segment {
            let hint = Change::default().and(Effect::SetEntry(key(file.0), Vec::new()));
            let hinted = self.objects.change(&segment_object(segment), hint).await;
            hinted.map_err(|failure| failed(failure, || format!("a file of segment {segment} could not be made")))?;
        }
        let mut change = Change::of_present();
        if !base::seeded::is_on("registered-though-fenced") {
            change = change.only_if(Condition::Attribute(STATE, OPEN.to_vec()));
        }
        // It may be done when the file was given up already.
        let change = change.only_if(Condition::NoEntry(key(file.0)));
        let change = change.and(Effect::SetEntry(key(file.0), record.encode()));
        self.objects.change(&life_object(life), change).await.map_err(|failure| match failure {
            Failure::Absent | Failure::Changed => fenced(life),
            failure => failed(failure, || format!("file {file} could not be made")),
        })
    }

    /// Marks a file that could not be made as going, whether or not its record is there; one that comes later is refused. Of a
    /// life that is over no record comes, and one that is there belongs to whoever goes on from it. Whether it is nobody's.
    ///
    /// # Errors
    /// `Io`: nobody knows.
    pub(super) async fn give_up(&self, record: &FileRecord) -> Result<bool> {
        let (file, life) = (record.info.id, record.info.incarnation);
        let change = Change::of_present()
            .only_if(Condition::Attribute(STATE, OPEN.to_vec()))
            .and(Effect::SetEntry(key(file.0), record.going().encode()));
        match self.objects.change(&life_object(life), change).await {
            Ok(()) => Ok(true),
            Err(Failure::Absent | Failure::Changed) => Ok(self.find(file).await?.record.is_none()),
            Err(failure) => Err(failed(failure, || format!("file {file} could not be given up"))),
        }
    }

    /// Changes a record: `decide` says what it is to be, of what it is and whether its life is fenced; nothing: it is right as
    /// it is. Gives the record as it is then, or none if there is none.
    ///
    /// # Errors
    /// What `decide` says; `Io`: nobody knows whether it was done.
    pub(super) async fn alter(
        &self,
        file: FileId,
        decide: impl Fn(&FileRecord, bool) -> Result<Option<FileRecord>>,
    ) -> Result<Option<FileRecord>> {
        for _ in 0..TRIES {
            let found = self.find(file).await?;
            let Some(record) = found.record else { return Ok(None) };
            let Some(next) = decide(&record, found.is_fenced)? else { return Ok(Some(record)) };
            let state = if found.is_fenced { FENCED } else { OPEN };
            let change = Change::of_present()
                .only_if(Condition::Attribute(STATE, state.to_vec()))
                .only_if(Condition::Entry(key(file.0), record.encode()))
                .and(Effect::SetEntry(key(file.0), next.encode()));
            match self.objects.change(&life_object(creator(file)), change).await {
                Ok(()) => return Ok(Some(next)),
                Err(Failure::Changed | Failure::Absent) => {}
                Err(failure) => return Err(failed(failure, || format!("the record of file {file}"))),
            }
        }
        Err(Error::retry(format!("others change the record of file {file} all the time: try again")))
    }

    /// The record of a file that has no bytes any more goes, and then what its segment says of it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn remove(&self, record: &FileRecord) -> Result<()> {
        let file = record.info.id;
        let change = || Change::of_present().and(Effect::RemoveEntry(key(file.0)));
        let life = self.objects.change(&life_object(record.info.incarnation), change()).await;
        there_or_not(life).map_err(|failure| failed(failure, || format!("file {file} could not be removed")))?;
        if let Some(segment) = record.info.segment {
            let hint = self.objects.change(&segment_object(segment), change()).await;
            there_or_not(hint).map_err(|failure| failed(failure, || format!("file {file} could not be removed")))?;
        }
        Ok(())
    }

    /// The files that name a segment, by id.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) async fn of_segment(&self, segment: SegmentId) -> Result<Vec<FileRecord>> {
        let (mut files, mut after) = (Vec::new(), String::new());
        loop {
            let look = match self.objects.look(&segment_object(segment), &after, LOOK_MAX).await {
                Ok(look) => look,
                Err(Failure::Absent) => return Ok(files),
                Err(failure) => return Err(failed(failure, || format!("the files of segment {segment}"))),
            };
            let ids = look.entries.iter().map(|(key, _)| number(key).map(FileId)).collect::<Result<Vec<_>>>()?;
            for some in ids.chunks(AT_ONCE) {
                for found in join_all(some.iter().map(|file| self.find(*file))).await {
                    files.extend(found?.record.filter(|record| record.info.segment == Some(segment)));
                }
            }
            match look.entries.last() {
                Some((last, _)) if look.has_more => after.clone_from(last),
                _ => return Ok(files),
            }
        }
    }

    /// Fences a life: from now on it registers nothing and changes no record. `may_be_new`: it may have no object yet, and
    /// gets one, so that it can never begin. False: nothing is left of it.
    ///
    /// # Errors
    /// `Io`: nobody knows whether it is fenced.
    pub(super) async fn fence(&self, life: Incarnation, may_be_new: bool) -> Result<bool> {
        let change = if may_be_new { Change::default() } else { Change::of_present() };
        let change = change.and(Effect::SetAttribute(STATE, FENCED.to_vec()));
        match self.objects.change(&life_object(life), change).await {
            Ok(()) => Ok(true),
            Err(Failure::Absent) => Ok(false),
            Err(failure) => Err(failed(failure, || format!("incarnation {life} could not be fenced"))),
        }
    }

    /// Whether a life may still change what it has.
    ///
    /// # Errors
    /// `Fenced`, `Io`.
    pub(super) async fn check(&self, life: Incarnation) -> Result<()> {
        match self.objects.look(&life_object(life), "", 0).await {
            Ok(look) if !is_fenced(life, look.attribute(STATE))? => Ok(()),
            Ok(_) | Err(Failure::Absent) => Err(fenced(life)),
            Err(failure) => Err(failed(failure, || format!("whether incarnation {life} goes on"))),
        }
    }

    /// The object of a life of which nothing is left goes.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn forget(&self, life: Incarnation) -> Result<()> {
        let change = Change::of_present().and(Effect::Remove);
        let forgotten = self.objects.change(&life_object(life), change).await;
        there_or_not(forgotten).map_err(|failure| failed(failure, || format!("the object of incarnation {life}")))
    }
}

/// What is said to a life that is over.
pub(super) fn fenced(life: Incarnation) -> Error {
    Error::fenced(format!("incarnation {life} was fenced"))
}

/// What was to go may have been gone.
pub(super) fn there_or_not(done: Result<(), Failure>) -> Result<(), Failure> {
    match done {
        Err(Failure::Absent) => Ok(()),
        done => done,
    }
}

fn is_fenced(life: Incarnation, state: Option<&[u8]>) -> Result<bool> {
    match state {
        Some(OPEN) => Ok(false),
        Some(FENCED) => Ok(true),
        _ => Err(Error::corrupt(format!("the object {} does not say whether its life goes on", life_object(life)))),
    }
}
