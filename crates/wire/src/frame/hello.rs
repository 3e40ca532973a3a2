//! The first frame of either side, and what both agree on.

use std::ops::RangeInclusive;

use base::limits::REQUEST_SIZE_MAX;
use base::{Error, Result};
use bytes::BufMut;

use super::fields::{Fields, put_text};
use super::kind::Kind;

/// Shortest silence that an end may ask for, in milliseconds: the other says a few keep-alives in it.
const SILENCE_MIN_MS: u32 = 100;

/// What one end does for the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Services {
    /// [`crate::BlockService`].
    pub block: bool,
    /// [`crate::VolumeDirectory`].
    pub directory: bool,
    /// [`crate::VolumeOwner`].
    pub owner: bool,
    /// [`crate::VolumeUser`].
    pub user: bool,
    /// [`crate::FileService`].
    pub files: bool,
    /// [`crate::LeaseStore`].
    pub lease: bool,
    /// [`crate::SegmentDirectory`].
    pub places: bool,
    /// [`crate::EngineRegistry`].
    pub registry: bool,
    /// [`crate::SegmentOwner`].
    pub segments: bool,
    /// [`crate::Observer`].
    pub observer: bool,
}

impl Services {
    fn bits(self) -> u16 {
        let Services { block, directory, owner, user, files, lease, places, registry, segments, observer } = self;
        [block, directory, owner, user, files, lease, places, registry, segments, observer]
            .iter()
            .enumerate()
            .fold(0, |bits, (index, &is_there)| bits | u16::from(is_there) << index)
    }

    /// Whether requests of this kind are for one of them.
    pub fn have(self, kind: Kind) -> bool {
        match kind as u8 {
            ..16 => self.block,
            16..32 => self.directory,
            32..48 => self.owner,
            48..64 => self.user,
            64..80 => self.files,
            80..84 => self.lease,
            84..88 => self.places,
            88..92 => self.registry,
            92..96 => self.observer,
            96.. => self.segments,
        }
    }

    /// Bits that a later version knows are passed over: they are services that nobody here asks for.
    fn from_bits(bits: u16) -> Services {
        let has = |index: u8| bits >> index & 1 == 1;
        let (block, directory, owner, user) = (has(0), has(1), has(2), has(3));
        let (files, lease, places, registry) = (has(4), has(5), has(6), has(7));
        let (segments, observer) = (has(8), has(9));
        Services { block, directory, owner, user, files, lease, places, registry, segments, observer }
    }
}

/// An agent knows that a volume may have logs: one that did not would read what they hold from owners, who have not got it yet.
const LOGS: u64 = 1;
/// A request may be marked as one that merges, and its depth is what waits behind it. Whoever did not know would take its mark for
/// a broken frame.
const MERGES: u64 = 2;
/// What this version knows, and what the other side must know.
pub const FEATURES: u64 = LOGS | MERGES;

/// What one side says of itself before anything else. Its form is the same in every version; a later one may say more
/// behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Versions that it speaks.
    pub versions: RangeInclusive<u8>,
    /// Features that it knows, a bit each.
    pub features: u64,
    /// Those of them that the other one must know.
    pub required: u64,
    /// What it does for the other.
    pub services: Services,
    /// Requests that the other may have in flight here.
    pub requests_max: u32,
    /// Bytes of payload that these may have together, of writes and of reads.
    pub bytes_max: u64,
    /// It gives the other up after so many milliseconds without a byte.
    pub silence_ms: u32,
    /// What it is, for people.
    pub name: String,
}

/// What two hellos come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The highest version that both speak.
    pub version: u8,
    /// Features that both know.
    pub features: u64,
}

impl Hello {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u8(*self.versions.start());
        out.put_u8(*self.versions.end());
        out.put_u16_le(self.services.bits());
        out.put_u32_le(self.requests_max);
        out.put_u64_le(self.features);
        out.put_u64_le(self.required);
        out.put_u64_le(self.bytes_max);
        out.put_u32_le(self.silence_ms);
        put_text(out, &self.name);
    }

    /// Reads one. What a later version says behind it is passed over.
    pub(super) fn get(fields: &mut Fields<'_>) -> Option<Hello> {
        let versions = fields.u8()?..=fields.u8()?;
        let services = Services::from_bits(fields.u16()?);
        let requests_max = fields.u32()?;
        let (features, required) = (fields.u64()?, fields.u64()?);
        let (bytes_max, silence_ms) = (fields.u64()?, fields.u32()?);
        let name = fields.text()?;
        Some(Hello { versions, features, required, services, requests_max, bytes_max, silence_ms, name })
    }

    /// What this side and `theirs` agree on.
    ///
    /// # Errors
    /// `Invalid`: they have no version in common, one needs what the other does not know, or `theirs` grants too little
    /// to send one request, or has too little patience.
    pub fn agree(&self, theirs: &Hello) -> Result<Agreement> {
        let version = (*self.versions.end()).min(*theirs.versions.end());
        if version < (*self.versions.start()).max(*theirs.versions.start()) || version == 0 {
            let (a, b) = (&self.versions, &theirs.versions);
            return Err(Error::invalid(format!(
                "'{}' speaks versions {} to {} of the protocol, and this side {} to {}: upgrade the older one",
                theirs.name,
                b.start(),
                b.end(),
                a.start(),
                a.end()
            )));
        }
        let missing = (theirs.required & !self.features) | (self.required & !theirs.features);
        if missing != 0 {
            return Err(Error::invalid(format!(
                "one side needs the features {missing:#x}, which '{}' or this side does not know: upgrade the older one",
                theirs.name
            )));
        }
        let grants =
            theirs.requests_max > 0 && theirs.bytes_max >= REQUEST_SIZE_MAX && theirs.silence_ms >= SILENCE_MIN_MS;
        if !grants {
            return Err(Error::invalid(format!(
                "'{}' grants {} requests with {} bytes, and waits for {} ms: one request of {REQUEST_SIZE_MAX} bytes, and \
                 {SILENCE_MIN_MS} ms, are the least",
                theirs.name, theirs.requests_max, theirs.bytes_max, theirs.silence_ms
            )));
        }
        Ok(Agreement { version, features: self.features & theirs.features })
    }
}
