//! A volume as the control plane describes it, in a body.

use base::levels::{Credits, Levels, Rate};
use base::{Generation, VolumeId};
use bytes::BufMut;

use super::fields::{Fields, put_text};
use crate::directory::{Forwarding, VolumeDescriptor};
use crate::layout::Layout;

/// Bytes of a volume beside its name and its owner.
pub(super) const VOLUME_LEN: usize = 78;

pub(super) fn put_volume(out: &mut Vec<u8>, volume: &VolumeDescriptor) {
    out.put_u64_le(volume.id.0);
    out.put_u64_le(volume.size);
    out.put_u64_le(volume.data_sector_bytes);
    out.put_u32_le(volume.segments);
    out.put_u64_le(volume.generation.0);
    out.put_u8(volume.read_only.into());
    for rate in [volume.levels.base, volume.levels.burst] {
        out.put_u64_le(rate.iops);
        out.put_u64_le(rate.bytes_per_sec);
    }
    out.put_u32_le(volume.levels.credits.cap_seconds);
    out.put_u32_le(volume.levels.credits.percent);
    out.put_u8(volume.forwarding as u8);
    put_text(out, &volume.name);
    put_text(out, &volume.owner);
}

pub(super) fn volume(fields: &mut Fields<'_>) -> Option<VolumeDescriptor> {
    let id = VolumeId(fields.u64()?);
    let (size, data_sector_bytes, segments) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let (generation, read_only) = (Generation(fields.u64()?), fields.bool()?);
    let mut rate = || Some(Rate { iops: fields.u64()?, bytes_per_sec: fields.u64()? });
    let (base, burst) = (rate()?, rate()?);
    let credits = Credits { cap_seconds: fields.u32()?, percent: fields.u32()? };
    let forwarding = Forwarding::of(fields.u8()?)?;
    let (name, owner) = (fields.text()?, fields.text()?);
    let levels = Levels { base, burst, credits };
    // A layout can be made of this only.
    Layout::is_data_sector(data_sector_bytes).then_some(VolumeDescriptor {
        id,
        name,
        size,
        data_sector_bytes,
        segments,
        generation,
        read_only,
        owner,
        levels,
        forwarding,
    })
}
